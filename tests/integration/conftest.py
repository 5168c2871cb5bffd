"""The core over both databases."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import Core, create_tables, empty_tables
from tests.support.invariants import assert_sound
from tests.support.postgres import PostgresProcess

MakeCore = Callable[..., Core]


@pytest.fixture(scope="session")
def postgres_store(postgres: PostgresProcess) -> Iterator[str]:
    """One PostgreSQL database with tables for all tests of the core."""
    url = postgres.create_database()
    create_tables(url)
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """An empty store of each kind: the test runs once on each."""
    if request.param == "sqlite":
        create_tables(sqlite_url)
        return sqlite_url
    url: str = request.getfixturevalue("postgres_store")
    empty_tables(url)
    return url


@pytest.fixture
def make_core(store_url: str, tmp_path: Path) -> Iterator[MakeCore]:
    """Makes the core with chosen settings; what a test leaves behind must be sound."""
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        made.append(Core(store_url, tmp_path / "checkout", **settings))
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
