"""A short run of the soak on each database: nothing is lost, done twice or stuck. ``make soak`` is the long one."""

import tempfile
from pathlib import Path

import pytest

from tests.faults.soak import run, table
from tests.support.postgres import PostgresProcess

SECONDS = 10.0
SQLITE_SEED, POSTGRES_SEED = 8, 6

pytestmark = pytest.mark.timeout(600)


def test_m20_r05_c01_s02_teams_finish_on_sqlite_whatever_was_struck(tmp_path: Path) -> None:
    """Seeded: the same faults every time."""
    _assert_sound(tmp_path, "sqlite", None, SQLITE_SEED)


def test_m20_r05_c01_s07_teams_finish_on_postgresql_with_two_coordinators_whatever_was_struck(tmp_path: Path) -> None:
    """With a server of its own: its faults must not strike what other tests do."""
    with tempfile.TemporaryDirectory(prefix="team-postgres-", ignore_cleanup_errors=True) as directory:
        server = PostgresProcess(Path(directory) / "data")
        try:
            _assert_sound(tmp_path, "postgres", server, POSTGRES_SEED)
        finally:
            server.stop()


def _assert_sound(directory: Path, database: str, server: PostgresProcess | None, seed: int) -> None:
    result = run(
        directory / "run",
        database,
        seed=seed,
        seconds=SECONDS,
        postgres=server,
        people=1,
        workers=2,
        gap_seconds=(1.0, 2.0),
    )
    assert result.sound, table(result)
    assert len(result.injected) >= 3, table(result)
    assert result.told.jobs, "nobody worked"
