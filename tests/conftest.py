"""Fixtures that every layer of tests shares: both databases, a broker, and a check that no process stays behind."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.postgres import PostgresProcess
from tests.support.processes import RunProcesses, describe
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until


@pytest.fixture(scope="session", autouse=True)
def run_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunProcesses]:
    """Fails the run when a process that it started outlives it; such a process is then ended."""
    processes = RunProcesses(tmp_path_factory.getbasetemp())
    yield processes
    try:
        wait_until(lambda: not processes.survivors(), "every process of the test run to end", 15, every=0.1)
    except AssertionError:
        left = processes.survivors()
        report = describe(left)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        raise AssertionError(f"processes outlived the test run:\n{report}") from None


@pytest.fixture(scope="session")
def postgres(run_processes: RunProcesses) -> Iterator[PostgresProcess]:
    """One PostgreSQL server for the whole run.

    Its directory lies outside pytest's own: the server runs as another user, and every starting pytest closes that one
    to others.
    """
    with tempfile.TemporaryDirectory(prefix="team-postgres-", ignore_cleanup_errors=True) as directory:
        server = PostgresProcess(Path(directory) / "data")
        yield server
        server.stop()


@pytest.fixture
def postgres_url(postgres: PostgresProcess) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh PostgreSQL database."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The SQLAlchemy URL of a fresh SQLite file."""
    return f"sqlite:///{tmp_path / 'team.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind that the product supports: the test runs once on each."""
    kind: str = request.param
    url: str = request.getfixturevalue("sqlite_url" if kind == "sqlite" else "postgres_url")
    return url


@pytest.fixture(scope="session")
def valkey_server(run_processes: RunProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """One Valkey server for the whole run."""
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def valkey(valkey_server: ValkeyProcess) -> Iterator[ValkeyProcess]:
    """The run's Valkey server, empty; a key that would live for ever fails the test."""
    if not valkey_server.answers():
        valkey_server.kill()
        valkey_server.start()
    valkey_server.flush()
    yield valkey_server
    if valkey_server.answers():
        leaked = valkey_server.leaked_keys()
        assert not leaked, f"keys without a TTL: {leaked}"
