"""Real worker processes (``python -m workers``) against a fake coordinator and a real broker."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
from kombu.exceptions import OperationalError

from config.celery import TURN_TASK, celery_app
from tests.support.fake_coordinator import WORKER_TOKEN, FakeCoordinator
from tests.support.fake_turns import WORKSPACE_ID, FakeTurn
from tests.support.processes import MARKER
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PREFIX: Final = "test:"


class WorkerProcess:
    """One worker; its log is a file."""

    def __init__(
        self, name: str, directory: Path, settings: dict[str, str], program: tuple[str, ...] = ("-m", "workers")
    ) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        environment = {
            key: value for key, value in os.environ.items() if key == MARKER or not key.startswith(("TEAM_", "PYTEST_"))
        }
        environment |= {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{REPOSITORY}".strip(":")} | settings
        environment["TEAM_WORKER_NAME"] = name
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ready(self) -> "WorkerProcess":
        """Wait until it consumes."""
        wait_until(lambda: "worker ready" in self.log or self.process.poll() is not None, f"{self.name} ready", 30)
        assert self.process.poll() is None, self.log
        return self

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def code(self, deadline: float = 20.0) -> int:
        """Its exit code, once it has ended."""
        wait_until(lambda: self.process.poll() is not None, f"the end of {self.name}: {self.log[-2000:]}", deadline)
        return self.process.returncode


class Fleet:
    """A fake coordinator, a broker, and the workers of one test."""

    def __init__(self, directory: Path, broker: ValkeyProcess, *, lease_seconds: float = 3.0) -> None:
        self.directory = directory
        self.broker = broker
        self.root = directory / "checkout"
        (self.root / ".team").mkdir(parents=True)
        (self.root / ".team" / "workspace-id").write_text(f"{WORKSPACE_ID}\n")
        self.coordinator = FakeCoordinator(self.root, lease_seconds=lease_seconds)
        self.coordinator.dispatch = self._dispatch
        self.turns = self.coordinator.turns
        self.workers: list[WorkerProcess] = []
        self._producer = celery_app(broker.url, PREFIX)

    def close(self) -> None:
        """End what still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        self.coordinator.stop()
        self._producer.close()

    def settings(self, **changes: str) -> dict[str, str]:
        base = {
            "COORDINATOR_URL": self.coordinator.url,
            "WORKER_TOKEN": WORKER_TOKEN,
            "BROKER_URL": self.broker.url,
            "KEY_PREFIX": PREFIX,
            "WORKSPACE_ROOT": str(self.root),
            "SLOTS": "2",
            "DRAIN_SECONDS": "10",
            # Tests watch commands from outside: by files beside the workspace, by their processes.
            "SANDBOX": "off",
        }
        return {f"TEAM_{name}": value for name, value in (base | changes).items() if value}

    def worker(self, name: str, **changes: str) -> WorkerProcess:
        """Start a worker with these ``TEAM_*`` settings changed."""
        worker = WorkerProcess(name, self.directory, self.settings(**changes))
        self.workers.append(worker)
        return worker

    def script(self, states: str) -> str:
        """The name of a script model that plays these YAML states from ``first`` on, whoever asks."""
        path = self.directory / f"script-{len(list(self.directory.glob('script-*')))}.yaml"
        lines = "".join(f"    {line}\n" for line in states.strip("\n").splitlines())
        path.write_text(f"version: 1\ndefault:\n  start: first\n  states:\n{lines}")
        return f"script:{path}"

    def ended(self, turn: FakeTurn, deadline: float = 30.0) -> FakeTurn:
        """Wait until the turn has ended."""
        wait_until(lambda: turn.status == "ended", f"the end of {turn.turn_id}; {self._logs()}", deadline)
        return turn

    def _dispatch(self, turn: FakeTurn) -> None:
        try:
            with self._producer.connection_for_write() as connection:
                self._producer.send_task(
                    TURN_TASK, args=(turn.turn_id,), queue="turns", connection=connection, retry=False
                )
        except (OperationalError, OSError):
            # As in the product: SQL is the queue, the next sweep sends it again.
            return

    def _logs(self) -> str:
        return "\n".join(f"--- {worker.name}\n{worker.log[-3000:]}" for worker in self.workers)


def processes_with(text: str) -> list[psutil.Process]:
    """Live processes whose command line holds ``text``."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(text in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
