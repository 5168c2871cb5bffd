"""A small deployment of real processes for one fault at a time: a coordinator, workers, a broker behind a link."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.faults.cluster import Supervised
from tests.faults.links import Links
from tests.support.coordinator import OPERATOR_TOKEN, REPOSITORY, WORKER_TOKEN
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

PREFIX: Final = "site:"
BROKER: Final = "broker"

ECHO: Final = """
version: 1
default:
  start: first
  on_message: first
  states:
    first: {say: "re: ${message.text}"}
"""
"""Everybody answers every message at once."""


class Site:
    """What ends is started again while ``supervised`` is set. Everybody reaches the broker over ``links``.

    Args:
        directory: Of this site: checkout, data, logs.
        database_url: Where the log is.
        broker: Its own: faults strike it. It must run.
        scenario: What the script model plays.
        workers: Their names.
        variables: More settings.
    """

    def __init__(
        self,
        directory: Path,
        database_url: str,
        broker: ValkeyProcess,
        *,
        scenario: str = ECHO,
        workers: tuple[str, ...] = ("one",),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self.broker = directory, broker
        self.database_url = database_url
        self.checkout = directory / "checkout"
        self._points = directory / "points"
        for place in (self.checkout, directory / "data", self._points):
            place.mkdir(parents=True, exist_ok=True)
        self.links = Links()
        link = self.links.add(BROKER, [broker.port])
        self.port = free_port()
        script = directory / "scenario.yaml"
        script.write_text(scenario)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.endswith("_API_KEY") and (not name.startswith(("TEAM_", "PYTEST_")) or name == "TEAM_TEST_RUN")
        }
        self._environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), inherited.get("PYTHONPATH")))),
            "TEAM_DATA_DIR": str(directory / "data"),
            "TEAM_WORKSPACE_ROOT": str(self.checkout),
            "TEAM_DATABASE_URL": database_url,
            "TEAM_BROKER_URL": f"redis://127.0.0.1:{link}/0",
            "TEAM_KEY_PREFIX": PREFIX,
            "TEAM_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "TEAM_WORKER_TOKEN": WORKER_TOKEN,
            "TEAM_PORT": str(self.port),
            "TEAM_MODEL": f"script:{script}",
            "TEAM_LEASE_SECONDS": "2",
            "TEAM_SLOTS": "2",
            "TEAM_DRAIN_SECONDS": "5",
            "TEAM_LIVENESS_SECONDS": "4",
            "TEAM_SWEEP_SECONDS": "0.5",
            "TEAM_DISPATCH_BACKOFF_SECONDS": "1",
            "TEAM_DISPATCH_BACKOFF_MAX_SECONDS": "4",
            "TEAM_SANDBOX": "off",
            "TEAM_FAULT_DIR": str(self._points),
            **(variables or {}),
        }
        self.coordinator = Supervised("coordinator", [sys.executable, "-m", "team.api"], self._environment, directory)
        self.workers = {name: self._worker(name) for name in workers}
        self.supervised = True
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            timeout=30,
            trust_env=False,
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def _worker(self, name: str, **variables: str) -> Supervised:
        environment = {**self._environment, "TEAM_WORKER_NAME": name, **variables}
        return Supervised(f"worker-{name}", [sys.executable, "-m", "workers"], environment, self.directory)

    @property
    def processes(self) -> list[Supervised]:
        return [self.coordinator, *self.workers.values()]

    def start(self) -> "Site":
        """Start everything; returns when the coordinator and every worker are ready."""
        for process in self.processes:
            process.start()
        self._thread.start()
        return self.ready()

    def ready(self) -> "Site":
        wait_until(self._healthy, "the coordinator", 40)
        wait_until(
            lambda: {worker["name"] for worker in self.get("/v1/workers")["workers"]} >= {*self.workers},
            "every worker's heartbeat",
            40,
        )
        return self

    def add_worker(self, name: str, **variables: str) -> Supervised:
        """One more worker, with these settings changed."""
        self.workers[name] = worker = self._worker(name, **variables)
        worker.start()
        return worker

    def restart(self, *processes: Supervised, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to each; returns when each of them runs again."""
        before = [process.pid for process in processes]
        for process in processes:
            process.send(number)
        for process, pid in zip(processes, before, strict=True):
            wait_until(lambda p=process, q=pid: p.pid not in (None, q), f"{process.name} to run again", 40)

    def close(self) -> None:
        """End everything, at once."""
        self.supervised = False
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for process in self.processes:
            process.send(signal.SIGCONT)
            process.send(signal.SIGKILL)
            wait_until(lambda process=process: not process.look(), f"{process.name} to end", 20)
        self.client.close()
        self.links.close()

    def arm(self, point: str) -> None:
        """The next process that comes to this point is killed there."""
        (self._points / point).touch()

    def armed(self, point: str) -> bool:
        """Whether nobody came there yet."""
        return (self._points / point).exists()

    # What people do and see.

    def get(self, path: str) -> dict[str, Any]:
        response = self.client.get(path)
        assert response.is_success, f"{path}: {response.status_code} {response.text}"
        return response.json()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = self.client.post(path, json=body)
        assert response.is_success, f"{path}: {response.status_code} {response.text}"
        return response.json()

    def lead(self, prompt: str | None = None, profile: str = "team") -> str:
        more = {} if prompt is None else {"prompt": prompt}
        return self.post("/v1/sessions", cwd=str(self.checkout), profile=profile, **more)["id"]

    def say(self, session: str, text: str) -> None:
        self.post(f"/v1/sessions/{session}/messages", text=text)

    def tool(self, team: str, member: str, tool: str, **parameters: Any) -> Any:
        return self.post(f"/v1/teams/{team}/members/{member}/tools/{tool}", **parameters)["result"]

    def session(self, session: str) -> dict[str, Any]:
        return self.get(f"/v1/sessions/{session}")

    def events(self, session: str, kind: str | None = None) -> list[dict[str, Any]]:
        """The data of its events, all or those of one type."""
        events = self.get(f"/v1/sessions/{session}/events?limit=1000")["events"]
        return [event["data"] for event in events if kind in (None, event["type"])]

    def said(self, session: str) -> list[str]:
        """The texts of its answers."""
        answers = [data["content"] for data in self.events(session, "assistant/message")]
        return ["".join(block.get("text", "") for block in content) for content in answers]

    def answered(self, session: str, *texts: str, deadline: float = 40) -> None:
        """Wait until each text got its answer; none got two."""
        wanted = [f"re: {text}" for text in texts]
        self.until(lambda: {*wanted} <= {*self.said(session)}, f"answers to {texts}", deadline)
        said = self.said(session)
        assert [said.count(answer) for answer in wanted] == [1] * len(wanted), said

    def until(self, predicate: Callable[[], object], what: str, deadline: float = 40) -> None:
        """Wait for something; a failure shows what the processes wrote last."""
        try:
            wait_until(predicate, what, deadline, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from None

    def is_sound(self) -> None:
        """The log of every Session replays to what the rows hold."""
        found = self.get("/v1/doctor")
        assert found["ok"], found

    def tails(self) -> str:
        return "\n".join(
            f"--- {process.name}\n{process.log.read_text(errors='replace')[-1500:]}"
            for process in self.processes
            if process.log.exists()
        )

    def _healthy(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx2.TransportError:
            return False

    def _supervise(self) -> None:
        while not self._ending.wait(0.05):
            for process in [*self.processes]:
                if not process.look() and self.supervised and not self._ending.is_set():
                    process.start()


def lasting(seconds: float) -> None:
    """Let a fault last: what it does meanwhile cannot be seen from outside."""
    threading.Event().wait(seconds)
