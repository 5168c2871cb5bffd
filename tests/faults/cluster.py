"""A whole deployment of real processes that faults may strike: coordinators, workers, broker, database, links."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.faults.links import Links
from tests.support.coordinator import OPERATOR_TOKEN, REPOSITORY, WORKER_TOKEN
from tests.support.ports import free_port
from tests.support.postgres import PostgresProcess
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

CLOCK: Final = Path(__file__).parent / "clock"
CANARY: Final = "canary-of-a-provider-key"
CHECKOUT_BYTES: Final = 16 * 1024 * 1024
_PAUSE_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Death:
    """One end of a supervised process, with the exit code that told of it."""

    at: float
    pid: int
    code: int


class Supervised:
    """One process that is started again whenever it ends, as every supervisor of the product does."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.clock_file = directory / f"{name}.clock"
        self.deaths: list[Death] = []
        self._command = command
        self._environment = {
            **environment,
            "FAULT_CLOCK": str(self.clock_file),
        }
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._offset = 0
        self.step_clock(0.0)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._offset = log.tell()
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def look(self) -> bool:
        """Take note of its end; True while it runs."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self.deaths.append(Death(time.monotonic(), self._process.pid, code))
        self._process = None
        return False

    def words(self, *, everything: bool = False) -> str:
        """What it wrote since its newest start, or since the first."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return data[0 if everything else self._offset :].decode(errors="replace")

    def step_clock(self, ahead_seconds: float) -> None:
        """Let its wall clock, and that of its successors, be so far ahead."""
        fresh = self.clock_file.with_suffix(".fresh")
        if self.clock_file.exists():
            with self.clock_file.open("r+b") as stream:
                stream.write(struct.pack("d", ahead_seconds))
        else:
            fresh.write_bytes(struct.pack("d", ahead_seconds))
            fresh.rename(self.clock_file)

    def send(self, number: signal.Signals) -> bool:
        """False when there was nobody to send it to."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        process.send_signal(number)
        return True


class Cluster:
    """Starts everything, keeps it running, and is the hand of the faults.

    Args:
        directory: Of this run; it holds data, checkout, logs.
        database: ``sqlite``, or a PostgreSQL server; it gets a database of this run.
        coordinators: How many; more than one needs PostgreSQL.
        variables: More settings for every process.
    """

    def __init__(
        self,
        directory: Path,
        database: "PostgresProcess | None",
        *,
        workers: int = 3,
        coordinators: int = 1,
        lease_seconds: float = 3.0,
        model: str,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self.postgres = directory, database
        self.lease_seconds = lease_seconds
        self.checkout = directory / "checkout"
        self.checkout.mkdir(parents=True)
        self.own_disk = _mount(self.checkout)
        self.database_url = (
            f"sqlite:///{directory / 'data' / 'team.db'}" if database is None else database.create_database()
        )
        (directory / "data").mkdir()
        self.broker = ValkeyProcess(directory)
        self.links = Links()
        ports = [free_port() for _ in range(coordinators)]
        self.public_url = f"http://127.0.0.1:{self.links.add('public', ports)}"
        self.points = {name: directory / f"{name}-points" for name in ("coordinator", "worker")}
        for points in self.points.values():
            points.mkdir()
        common = self._environment(model, variables or {})
        self.coordinators = [
            Supervised(
                f"coordinator-{number}",
                [sys.executable, "-m", "team.api"],
                {**common, "TEAM_PORT": str(port), "TEAM_FAULT_DIR": str(self.points["coordinator"])},
                directory,
            )
            for number, port in enumerate(ports, 1)
        ]
        self.workers = [
            Supervised(
                f"worker-{number}",
                [sys.executable, "-m", "workers"],
                {
                    **common,
                    "OPENAI_API_KEY": CANARY,
                    "TEAM_FAULT_DIR": str(self.points["worker"]),
                    "TEAM_WORKER_NAME": f"worker-{number}",
                    "TEAM_COORDINATOR_URL": f"http://127.0.0.1:{self.links.add(f'worker-{number}', ports)}",
                },
                directory,
            )
            for number in range(1, workers + 1)
        ]
        self.broker_away_until = 0.0
        self._ending = threading.Event()
        self._unattended: set[str] = set()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def _environment(self, model: str, variables: Mapping[str, str]) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.endswith("_API_KEY") and not name.startswith(("TEAM_", "PYTEST_"))
        }
        if "TEAM_TEST_RUN" in os.environ:
            inherited["TEAM_TEST_RUN"] = os.environ["TEAM_TEST_RUN"]
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join((str(CLOCK), str(REPOSITORY))),
            "TEAM_DATA_DIR": str(self.directory / "data"),
            "TEAM_WORKSPACE_ROOT": str(self.checkout),
            "TEAM_DATABASE_URL": self.database_url,
            "TEAM_BROKER_URL": self.broker.url,
            "TEAM_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "TEAM_WORKER_TOKEN": WORKER_TOKEN,
            "TEAM_LEASE_SECONDS": f"{self.lease_seconds:g}",
            "TEAM_MODEL": model,
            "TEAM_SLOTS": "3",
            "TEAM_DRAIN_SECONDS": "5",
            "TEAM_LIVENESS_SECONDS": "4",
            "TEAM_DISPATCH_BACKOFF_SECONDS": "1",
            "TEAM_DISPATCH_BACKOFF_MAX_SECONDS": "5",
            "TEAM_MAX_STEPS": "100000",
            # The driver kills the same turn many times in a row; that such a turn ends is another test's subject.
            "TEAM_POISON_LOSSES": "1000",
            **variables,
        }

    @property
    def processes(self) -> list[Supervised]:
        return [*self.coordinators, *self.workers]

    def start(self) -> None:
        """Start everything; returns when every worker is ready."""
        self.broker.start()
        for process in self.processes:
            process.start()
        self._supervisor.start()
        for process in self.workers:
            wait_until(lambda process=process: "worker ready" in process.words(), f"{process.name} to be ready", 180)

    def _supervise(self) -> None:
        due: dict[str, float] = {}
        while not self._ending.wait(_LOOK_SECONDS):
            for process in self.processes:
                if process.look() or process.name in self._unattended:
                    continue
                at = due.setdefault(process.name, time.monotonic() + _PAUSE_SECONDS)
                if time.monotonic() >= at:
                    del due[process.name]
                    process.start()
            broker = self.broker.process
            gone = broker is None or broker.poll() is not None
            if gone and time.monotonic() >= self.broker_away_until:
                # Not waited for: it answers when it answers.
                self.broker.launch()

    @contextmanager
    def unattended(self, *processes: Supervised) -> Generator[None]:
        """Nobody starts these processes again inside the block; all of them when none is named."""
        self._unattended = {process.name for process in processes or self.processes}
        try:
            yield
        finally:
            self._unattended = set()

    def kill_everything(self) -> None:
        """SIGKILL to coordinators, workers and broker at one moment; nothing of Redis is left."""
        for process in self.processes:
            process.send(signal.SIGKILL)
        if self.broker.process is not None:
            self.broker.process.kill()

    def stop(self) -> dict[str, int]:
        """Stop everything in order; the exit codes of workers and coordinators."""
        self._ending.set()
        self._supervisor.join()
        codes: dict[str, int] = {}
        for group in (self.workers, self.coordinators):
            for process in group:
                process.send(signal.SIGCONT)
                process.send(signal.SIGTERM)
            for process in group:
                wait_until(lambda process=process: not process.look(), f"{process.name} to end", 40)
                if process.deaths:
                    codes[process.name] = process.deaths[-1].code
        self.broker.kill()
        return codes

    def close(self) -> None:
        """End whatever is left, at once."""
        self._ending.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for process in self.processes:
            process.send(signal.SIGKILL)
            wait_until(lambda process=process: not process.look(), f"{process.name} to end", 20)
        self.broker.kill()
        self.links.close()
        if self.own_disk:
            # Commands of killed workers end by themselves; until then they keep the mount busy.
            wait_until(lambda: _unmounted(self.checkout), "the checkout to be unmounted", 20)

    def outlived(self) -> list[psutil.Process]:
        """Processes of commands that are still there: each carries the name of its guard."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                directory = process.cwd()
                if directory.startswith(str(self.checkout)) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def fill_disk(self) -> Callable[[], None]:
        """Take all that is left of the checkout's file system; returns what gives it back."""
        assert self.own_disk, "the checkout shares its file system with everything else"
        ballast = self.checkout / ".team" / "ballast"
        with ballast.open("wb", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(b"\0" * 65_536)
        with ballast.open("ab", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(b"\0" * 512)
        return ballast.unlink


def _mount(directory: Path) -> bool:
    """A small file system of its own where the system lets us; False otherwise."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={CHECKOUT_BYTES}", "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmounted(directory: Path) -> bool:
    return subprocess.run(["umount", str(directory)], capture_output=True, check=False).returncode == 0
