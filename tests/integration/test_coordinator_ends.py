"""A coordinator at its ends: before its database is there, and when it is told to stop while something hangs."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.coordinator import CoordinatorProcess
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

CUT_EXIT = 1


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def held(directory: Path, postgres_url: str, valkey: ValkeyProcess) -> Iterator[tuple[CoordinatorProcess, str]]:
    """A coordinator whose request hangs in the database, behind a lock that somebody else holds."""
    variables = {"TEAM_DATABASE_URL": postgres_url, "TEAM_BROKER_URL": valkey.url}
    process = CoordinatorProcess(directory, "one", variables).ready()
    lead = process.lead()
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as blocker:
        blocker.execute("LOCK TABLE session IN ACCESS EXCLUSIVE MODE")
        outcome: list[object] = []

        def ask() -> None:
            try:
                outcome.append(process.client.get(f"/v1/sessions/{lead}").status_code)
            except Exception as error:  # noqa: BLE001 -- a cut connection is what the test expects
                outcome.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as watcher:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: watcher.execute(query).fetchone() != (0,), "the request to hang in the database")
        yield process, lead
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait()
        thread.join()
        blocker.rollback()
    assert outcome
    # Whatever was cut: the next one serves what the log holds.
    again = CoordinatorProcess(directory, "again", variables).ready()
    assert again.client.get(f"/v1/sessions/{lead}").is_success
    assert again.stop() == 0


def test_d07_a_stop_that_hangs_in_the_database_is_cut_at_its_bound_with_a_code_that_says_so(
    held: tuple[CoordinatorProcess, str],
) -> None:
    process, _lead = held
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(30) == CUT_EXIT
    assert "did not end in time" in process.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_d07_a_second_signal_does_not_wait_for_the_bound(
    held: tuple[CoordinatorProcess, str], number: signal.Signals
) -> None:
    process, _lead = held
    process.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not listens(process.port), "it to stop listening")
    sent = time.monotonic()
    process.process.send_signal(number)
    assert process.process.wait(30) == CUT_EXIT
    # The bound after one signal is fifteen seconds.
    assert time.monotonic() - sent < 12


def test_l05_a_coordinator_waits_for_a_database_that_is_still_starting(
    directory: Path, postgres_url: str, valkey: ValkeyProcess
) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        name = str(admin.info.dbname)
    server = postgres_url.replace("+psycopg", "").replace(f"/{name}", "/postgres")
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        process = CoordinatorProcess(
            directory, "early", {"TEAM_DATABASE_URL": postgres_url, "TEAM_BROKER_URL": valkey.url}
        )
        wait_until(lambda: "waiting for the database" in process.log, "it to wait", 30)
        assert process.process.poll() is None
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
    process.ready()
    assert process.stop() == 0, process.log


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
