"""One deployment under measurement: real coordinator, workers, Valkey and database."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx2
from team.log.database import Database
from tests.support.coordinator import WORKER_TOKEN, CoordinatorProcess
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

_ENOUGH: Final = "1000000"


class Site:
    """Started by ``with``; everything ends with the block.

    Args:
        directory: Of this site alone.
        database_url: A fresh database.
        roles: The scenario of the script model by member; ``default`` plays for all others.
        workers: How many are started at once; ``add_worker`` starts more.
        variables: More settings of every process.
    """

    def __init__(
        self,
        directory: Path,
        database_url: str,
        *,
        roles: Mapping[str, Any] | None = None,
        workers: int = 1,
        slots: int = 8,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._valkey_directory = directory / "valkey"
        self._valkey_directory.mkdir()
        self.valkey = ValkeyProcess(self._valkey_directory)
        self.workers: list[WorkerProcess] = []
        self._wanted = workers
        self._variables = {
            "TEAM_DATABASE_URL": database_url,
            "TEAM_BROKER_URL": self.valkey.url,
            "TEAM_WORKSPACE_ROOT": str(directory / "checkout"),
            "TEAM_WORKER_TOKEN": WORKER_TOKEN,
            "TEAM_SLOTS": str(slots),
            "TEAM_MAX_STEPS": _ENOUGH,
            "TEAM_MAX_INBOX": _ENOUGH,
            "TEAM_MAX_TEAM_TURNS": _ENOUGH,
            "TEAM_SANDBOX": "off",
            **(variables or {}),
        }
        if roles is not None:
            self._variables["TEAM_MODEL"] = f"script:{write_script(directory / 'script.yaml', roles)}"
        self._clients = ExitStack()
        self.coordinator: CoordinatorProcess
        self.rows: Database

    def __enter__(self) -> Self:
        self.valkey.start()
        try:
            self.coordinator = CoordinatorProcess(self._directory, "coordinator", self._variables).ready()
            self.rows = Database(self._variables["TEAM_DATABASE_URL"])
            for _ in range(self._wanted):
                self.add_worker()
            for worker in self.workers:
                worker.ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        if hasattr(self, "rows"):
            self.rows.close()
        if hasattr(self, "coordinator"):
            self.coordinator.stop()
        self.valkey.stop()

    def add_worker(self) -> WorkerProcess:
        """Start one more worker; it is not waited for."""
        settings = {
            **self._variables,
            "TEAM_COORDINATOR_URL": f"http://127.0.0.1:{self.coordinator.port}",
            "TEAM_DATA_DIR": str(self._directory / "worker-data"),
        }
        self.workers.append(WorkerProcess(f"worker-{len(self.workers) + 1}", self._directory, settings))
        return self.workers[-1]

    def client(self) -> httpx2.Client:
        """One more client of the public API, closed with the site."""
        return self._clients.enter_context(self.coordinator.new_client())

    def post(self, path: str, **body: Any) -> Any:
        """The decoded answer of a public POST."""
        response = self.coordinator.client.post(path, json=body)
        assert response.is_success, response.text
        return response.json()

    def tool(self, team: str, member: str, tool: str, **parameters: Any) -> Any:
        """A Team tool's result."""
        response = self.coordinator.tool(team, member, tool, **parameters)
        assert response.is_success, response.text
        return response.json()["result"]

    def spawn(self, team: str, name: str) -> str:
        """A teammate with its first turn queued; its Session."""
        self.tool(team, "lead", "spawn_teammate", name=name, description="measured", prompt="begin")
        return self.value("SELECT member_id FROM member WHERE session_id = ? AND name = ?", team, name)

    def prompt(self, session: str) -> None:
        self.post(f"/v1/sessions/{session}/messages", text="go on")

    def all(self, statement: str, *values: Any) -> list[Any]:
        """Rows of the store as the database has them; ``?`` stands for a value."""
        text = statement if self.rows.is_sqlite else statement.replace("?", "%s")
        with self.rows.reading() as connection:
            return list(connection.exec_driver_sql(text, tuple(values)))

    def value(self, statement: str, *values: Any) -> Any:
        """The first column of the only row."""
        return self.all(statement, *values)[0][0]

    def open_turns(self, state: str | None = None) -> int:
        """How many turns are open, or open in one state."""
        if state is None:
            return self.value("SELECT count(*) FROM run")
        return self.value("SELECT count(*) FROM run WHERE state = ?", state)

    def until(self, predicate: Callable[[], Any], what: str, deadline: float = 120.0, every: float = 0.01) -> Any:
        """Wait for a condition; a failure shows the end of the logs."""
        try:
            return wait_until(predicate, what, deadline, every=every)
        except AssertionError as error:
            logs = "\n".join(worker.log[-1500:] for worker in self.workers)
            raise AssertionError(f"{error}\n{self.coordinator.log[-1500:]}\n{logs}") from None

    def until_idle(self) -> None:
        """Every turn has ended."""
        self.until(lambda: self.open_turns() == 0, "all turns to end", 280)


def write_script(path: Path, roles: Mapping[str, Any]) -> Path:
    """A scenario file; JSON is YAML. ``roles`` maps members to roles, ``default`` to that of all others."""
    members = {name: role for name, role in roles.items() if name != "default"}
    path.write_text(json.dumps({"version": 1, "members": members, "default": roles.get("default")}))
    return path
