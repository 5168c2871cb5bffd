"""The core over both databases."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from team.log.database import Database
from tests.support.checkout import sandbox_fault
from tests.support.core import Core, create_tables, empty
from tests.support.invariants import assert_sound
from tests.support.postgres import PostgresProcess

MakeCore = Callable[..., Core]


@pytest.fixture(scope="session")
def confinement(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips a test that needs the sandbox of commands where the kernel refuses it."""
    fault = sandbox_fault(tmp_path_factory.mktemp("sandbox"))
    if fault:
        pytest.skip(fault)


@pytest.fixture(scope="session")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One SQLite file with tables for all tests of the core."""
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'team.db'}"
    create_tables(url)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgres_store(postgres: PostgresProcess) -> Iterator[Database]:
    """One PostgreSQL database with tables for all tests of the core."""
    url = postgres.create_database()
    create_tables(url)
    database = Database(url)
    yield database
    database.close()
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_store(request: pytest.FixtureRequest) -> Database:
    """An empty store of each kind: the test runs once on each."""
    database: Database = request.getfixturevalue("sqlite_store" if request.param == "sqlite" else "postgres_store")
    empty(database)
    return database


@pytest.fixture
def store_url(empty_store: Database) -> str:
    return empty_store.url.render_as_string(hide_password=False)


@pytest.fixture
def make_core(empty_store: Database, store_url: str, tmp_path: Path) -> Iterator[MakeCore]:
    """Makes the core with chosen settings; what a test leaves behind must be sound.

    A second core of one test is a coordinator of its own: it shares nothing with the first but the store.
    """
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        lent = None if made else empty_store
        made.append(Core(store_url, tmp_path / "checkout", lent, **settings))
        return made[-1]

    yield make
    for core in made:
        try:
            if not core.may_be_damaged:
                assert_sound(core)
        finally:
            core.close()


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    return make_core()
