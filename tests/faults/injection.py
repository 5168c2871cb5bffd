"""Each kind of fault as an act on a cluster, and how it is seen that the product has recovered from it."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import redis
from sqlalchemy import make_url

from tests.faults.cluster import Cluster, Death, Supervised
from tests.faults.schedule import Fault
from tests.faults.store import Onlooker, Running
from tests.support.waiting import wait_until

REACHED_SECONDS: Final = 30.0
RECOVERY_SECONDS: Final = 150.0
_THERE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.05


@dataclass
class Outcome:
    """What became of one planned fault; times are monotonic.

    Attributes:
        struck_at: When it happened; None when it could not (its point was not reached, its victim was not there).
        affected: The turns that its worker executed; empty for what strikes all.
        recovered_at: When those turns, or any turn, ran again.
    """

    fault: Fault
    struck_at: float | None = None
    affected: int = 0
    recovered_at: float | None = None
    trouble: str | None = None

    @property
    def recovery_seconds(self) -> float | None:
        """From the beginning of the fault."""
        if self.struck_at is None or self.recovered_at is None:
            return None
        return self.recovered_at - self.struck_at


@dataclass(frozen=True)
class Dead:
    """A process that a fault has ended."""

    process: Supervised
    death: Death


class Injector:
    """Carries out faults, one per call and thread; several may overlap."""

    def __init__(self, cluster: Cluster, onlooker: Onlooker) -> None:
        self._cluster, self._onlooker = cluster, onlooker
        self._database = threading.Lock()
        self._disk = threading.Lock()
        self._broker = threading.Lock()
        self._points: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._over = threading.Event()

    def hurry(self) -> None:
        """End every disturbance that lasts."""
        self._over.set()

    def _pause(self, seconds: float) -> None:
        """As long as a disturbance lasts: it is the fault itself, not a wait for something."""
        self._over.wait(seconds)

    def carry_out(self, fault: Fault) -> Outcome:
        """Strike, wait for the recovery, and tell."""
        outcome = Outcome(fault)
        try:
            if fault.kind.victim == "worker":
                self._strike_worker(outcome)
            else:
                self._strike_all(outcome)
        except Exception as error:  # noqa: BLE001  # a driver that fails must show up in its table
            outcome.trouble = f"{type(error).__name__}: {error}"
        return outcome

    # Faults of one worker: its turns must run again.

    def _strike_worker(self, outcome: Outcome) -> None:
        fault = outcome.fault
        worker = self._cluster.workers[fault.victim]
        name = fault.kind.name
        if name == "worker-term":
            turns, outcome.struck_at = self._turns_of(worker), time.monotonic()
            if self._end(worker, fault) is None:
                outcome.struck_at = None
                return
            self._await_others(outcome, turns, same_claim=False)
            return
        if name.startswith("worker-kill"):
            dead = self._reach(fault) if fault.kind.point is not None else self._end(worker, fault)
            if dead is None:
                return
            outcome.struck_at = dead.death.at
            self._await_others(outcome, self._turns_of(dead.process), same_claim=False)
            return
        begin, end = self._disturbance(worker, fault)
        turns = self._turns_of(worker)
        outcome.struck_at = time.monotonic()
        begin()
        try:
            self._pause(fault.seconds)
        finally:
            end()
        self._await_others(outcome, turns, same_claim=True)

    def _end(self, process: Supervised, fault: Fault) -> "Dead | None":
        """SIGTERM or SIGKILL, whichever the fault is; None when the process did not end."""
        wait_until(lambda: process.pid is not None, f"{process.name} to be there", _THERE_SECONDS)
        deaths = len(process.deaths)
        process.send(signal.SIGTERM if fault.kind.name.endswith("-term") else signal.SIGKILL)
        try:
            wait_until(lambda: len(process.deaths) > deaths, "its end", REACHED_SECONDS, every=_LOOK_SECONDS)
        except AssertionError:
            return None
        return Dead(process, process.deaths[deaths])

    def _reach(self, fault: Fault) -> "Dead | None":
        """Let the first process that reaches the point die there; None when none did in time."""
        point, directory = fault.kind.point, self._cluster.points[fault.kind.victim]
        assert point is not None
        armed = directory / point
        with self._points[point]:
            armed.touch()
            try:
                wait_until(lambda: not armed.exists(), "the point to be reached", REACHED_SECONDS, every=_LOOK_SECONDS)
            except AssertionError:
                with suppress(FileNotFoundError):
                    armed.unlink()
                    return None
            (trace,) = directory.glob(f"{point}.*")
            pid = int(trace.suffix.removeprefix("."))
            trace.unlink()

        def found() -> "Dead | None":
            deaths = ((process, death) for process in self._cluster.processes for death in process.deaths)
            return next((Dead(process, death) for process, death in deaths if death.pid == pid), None)

        return wait_until(found, f"the end of process {pid}", _THERE_SECONDS, every=_LOOK_SECONDS)

    def _disturbance(self, worker: Supervised, fault: Fault) -> tuple[Callable[[], object], Callable[[], object]]:
        links, name = self._cluster.links, worker.name
        match fault.kind.name:
            case "worker-freeze":
                pid = wait_until(lambda: worker.pid, f"{name} to be there", _THERE_SECONDS)
                assert pid is not None
                return lambda: _signal(pid, signal.SIGSTOP), lambda: _signal(pid, signal.SIGCONT)
            case "worker-clock":
                return lambda: worker.step_clock(fault.step_seconds), lambda: None
            case "link-cut":
                return lambda: links.change(name, "cut"), lambda: links.change(name, "open")
            case "link-slow":
                return lambda: links.change(name, "slow"), lambda: links.change(name, "open")
            case "link-silent":
                return lambda: links.change(name, "silent"), lambda: links.change(name, "open")
            case other:
                raise NotImplementedError(other)

    def _turns_of(self, worker: Supervised) -> list[Running]:
        turns = self._onlooker.open_turns() or []
        return [turn for turn in turns if turn.worker == worker.name and turn.state == "running"]

    def _await_others(self, outcome: Outcome, turns: list[Running], *, same_claim: bool) -> None:
        """Until each turn has ended, was parked, was claimed anew, or (if that counts) went on under its claim."""
        outcome.affected = len(turns)
        if not turns:
            self._await_claim(outcome)
            return

        def again() -> bool:
            now = self._onlooker.open_turns()
            if now is None:
                return False
            by_turn = {turn.turn: turn for turn in now}
            return all(_runs_again(turn, by_turn.get(turn.turn), same_claim=same_claim) for turn in turns)

        self._await(outcome, again, f"turns of {outcome.fault.kind.name}")

    # Faults of what all share: some turn must be claimed and go on afterwards.

    def _strike_all(self, outcome: Outcome) -> None:
        fault = outcome.fault
        outcome.struck_at = time.monotonic()
        match fault.kind.victim:
            case "coordinator":
                self._strike_coordinator(outcome, self._cluster.coordinators[fault.victim])
            case "broker":
                with self._broker:
                    self._strike_broker(fault)
            case "database":
                with self._database:
                    self._strike_database(fault)
            case "checkout":
                with self._disk:
                    give_back = self._cluster.fill_disk()
                    self._pause(fault.seconds)
                    give_back()
            case _:
                with self._broker:
                    self._cluster.kill_everything()
        self._await_claim(outcome)

    def _strike_coordinator(self, outcome: Outcome, process: Supervised) -> None:
        fault = outcome.fault
        match fault.kind.name:
            case "coordinator-freeze":
                pid = wait_until(lambda: process.pid, f"{process.name} to be there", _THERE_SECONDS)
                assert pid is not None
                _signal(pid, signal.SIGSTOP)
                self._pause(fault.seconds)
                _signal(pid, signal.SIGCONT)
            case "coordinator-clock":
                process.step_clock(fault.step_seconds)
            case _:
                dead = self._reach(fault) if fault.kind.point is not None else self._end(process, fault)
                outcome.struck_at = None if dead is None else dead.death.at

    def _strike_broker(self, fault: Fault) -> None:
        broker = self._cluster.broker
        match fault.kind.name:
            case "broker-kill":
                self._cluster.broker_away_until = time.monotonic() + fault.seconds
                if broker.process is not None:
                    broker.process.kill()
                    broker.process.wait()
            case "broker-freeze":
                process = broker.process
                if process is not None:
                    _signal(process.pid, signal.SIGSTOP)
                    self._pause(fault.seconds)
                    _signal(process.pid, signal.SIGCONT)
            case "broker-pause":
                self._command("CLIENT", "PAUSE", str(round(fault.seconds * 1000)), "ALL")
            case "broker-flush":
                self._command("FLUSHALL")
            case "broker-drop-clients":
                self._command("CLIENT", "KILL", "TYPE", "normal")
            case "broker-drop-subscribers":
                self._command("CLIENT", "KILL", "TYPE", "pubsub")
            case other:
                raise NotImplementedError(other)

    def _command(self, *words: str) -> None:
        def sent() -> bool:
            client: Any = self._cluster.broker.client()
            try:
                client.execute_command(*words)
            except redis.RedisError:
                return False
            finally:
                client.close()
            return True

        wait_until(sent, "the broker to take a command", _THERE_SECONDS, every=0.2)

    def _strike_database(self, fault: Fault) -> None:
        server = self._cluster.postgres
        match fault.kind.name:
            case "database-busy":
                with _written_by_another(self._cluster.database_url):
                    self._pause(fault.seconds)
            case "database-restart":
                assert server is not None
                server.restart()
            case "database-kill":
                assert server is not None
                server.kill()
                server.restart()
            case "database-drop-connections":
                url = make_url(self._cluster.database_url).set(drivername="postgresql")
                with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            case other:
                raise NotImplementedError(other)

    def _await_claim(self, outcome: Outcome) -> None:
        if outcome.struck_at is None:
            return
        before = self._onlooker.patiently(
            lambda connection: connection.exec_driver_sql("SELECT count(*) FROM claim").scalar_one()
        )

        def claimed() -> bool:
            now = self._onlooker.claims()
            return now is not None and now > before

        self._await(outcome, claimed, "a claim")

    def _await(self, outcome: Outcome, recovered: Callable[[], bool], what: str) -> None:
        try:
            wait_until(recovered, what, RECOVERY_SECONDS, every=_LOOK_SECONDS)
        except AssertionError as error:
            outcome.trouble = str(error)
            return
        outcome.recovered_at = time.monotonic()


def _runs_again(before: Running, now: Running | None, *, same_claim: bool) -> bool:
    if now is None or now.state == "parked":
        return True
    if now.epoch > before.epoch:
        return now.state == "running"
    return same_claim and now.state == "running" and now.seq > before.seq


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # a fault that overlaps has ended it


@contextmanager
def _written_by_another(url: str) -> Generator[None]:
    """Another process holds SQLite's write lock inside the block."""
    path = make_url(url).database
    assert path is not None
    program = (
        "import sqlite3, sys\n"
        "held = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n"
        "held.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise sqlite3.OperationalError("the write lock could not be had")
        yield
    finally:
        holder.communicate()
