"""The limits of the machine: a bare commit, a bare POST with one commit on the same server stack, Redis."""

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import httpx2
import psycopg
import redis
from tests.support.coordinator import REPOSITORY
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

CLIENTS: Final = 8


@dataclass(frozen=True)
class Limits:
    """Samples in milliseconds, and requests per second of ``CLIENTS`` clients at once."""

    commit_ms: list[float]
    post_ms: list[float]
    post_rate: float
    redis_ms: list[float]


def timed_ms(action: Callable[[], object], times: int, warm_up: int = 10) -> list[float]:
    """Milliseconds of each run of ``action`` after some that do not count."""
    for _ in range(warm_up):
        action()
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def plain_url(url: str) -> str:
    """A SQLAlchemy URL as the driver takes it: a file's path, or a PostgreSQL URI."""
    return url.removeprefix("sqlite:///").replace("postgresql+psycopg://", "postgresql://")


@contextmanager
def inserting(url: str) -> Generator[Callable[[], None]]:
    """One connection to a table; the action inserts a row and commits. Durable as the product is."""
    if url.startswith("sqlite"):
        lite = sqlite3.connect(plain_url(url), isolation_level=None, check_same_thread=False, timeout=15)
        lite.execute("PRAGMA journal_mode=WAL").close()
        lite.execute("PRAGMA synchronous=FULL").close()
        lite.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, words TEXT)").close()

        def insert_lite() -> None:
            lite.execute("BEGIN IMMEDIATE").close()
            lite.execute("INSERT INTO bare (words) VALUES (?)", ("x" * 200,)).close()
            lite.execute("COMMIT").close()

        with closing(lite):
            yield insert_lite
        return
    postgres = psycopg.connect(plain_url(url))
    postgres.execute(cast("LiteralString", "SELECT pg_advisory_lock(1)"))
    postgres.execute(cast("LiteralString", "CREATE TABLE IF NOT EXISTS bare (id BIGSERIAL PRIMARY KEY, words TEXT)"))
    postgres.execute(cast("LiteralString", "SELECT pg_advisory_unlock(1)"))
    postgres.commit()

    def insert_postgres() -> None:
        postgres.execute("INSERT INTO bare (words) VALUES (%s)", ("x" * 200,))
        postgres.commit()

    with postgres:
        yield insert_postgres


def rate_of(clients: int, seconds: float, make: Callable[[int], Callable[[], object]]) -> float:
    """Actions per second of several threads, each with an action of its own."""
    counts = [0] * clients
    gate = threading.Barrier(clients + 1)
    ends = [float("inf")]

    def work(number: int) -> None:
        try:
            action = make(number)
            action()
        except BaseException:
            gate.abort()
            raise
        gate.wait()
        while time.perf_counter() < ends[0]:
            action()
            counts[number] += 1

    with ThreadPoolExecutor(clients) as pool:
        working = [pool.submit(work, number) for number in range(clients)]
        with suppress(threading.BrokenBarrierError):
            gate.wait()
        started = time.perf_counter()
        ends[0] = started + seconds
        wait(working)
        taken = time.perf_counter() - started
    faults = [error for done in working if (error := done.exception()) is not None]
    for fault in sorted(faults, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise fault
    return sum(counts) / taken


def measure_limits(url: str, directory: Path, times: int) -> Limits:
    """Measure them all on a database of their own."""
    with inserting(url) as insert:
        commit_ms = timed_ms(insert, times)
    port = free_port()
    with (directory / "bare.log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_server", url, str(port)], cwd=REPOSITORY, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _answers(port), "the bare server", 30)
        with ExitStack() as stack:
            posts = [_post(stack.enter_context(_client(port))) for _ in range(CLIENTS)]
            post_ms = timed_ms(posts[0], times)
            post_rate = rate_of(CLIENTS, min(5.0, times / 300), lambda number: posts[number])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)
    return Limits(commit_ms, post_ms, post_rate, _redis_ms(directory, times))


def _client(port: int) -> httpx2.Client:
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)


def _post(client: httpx2.Client) -> Callable[[], object]:
    return lambda: client.post("/", json={"words": "x" * 200}).raise_for_status()


def _answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/", trust_env=False).is_success
    except httpx2.TransportError:
        return False


def _redis_ms(directory: Path, times: int) -> list[float]:
    valkey = ValkeyProcess(directory)
    valkey.start()
    client: Any = redis.Redis(host="127.0.0.1", port=valkey.port)
    try:
        return timed_ms(client.ping, times)
    finally:
        client.close()
        valkey.stop()
