"""A whole deployment under test: as local processes, or as the compose file runs it. Both take the same faults."""

import json
import os
import secrets
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from team.cli.client import Operator
from team.cli.tokens import token_path
from team.model.events import Event
from tests.support.ports import free_port
from tests.support.postgres import PostgresProcess
from tests.support.stack import ROOT, Command, LiveStack, command_environment, running_stack
from tests.support.waiting import wait_until

LEASE_SECONDS: Final = 4
SAMPLE: Final = ROOT / "examples" / "demo" / "sample"
SCENARIO: Final = ROOT / "examples" / "demo" / "scenario.yaml"
_BACK_SECONDS: Final = 60.0


class Deployment(ABC):
    """One deployment with its workers. Every fault returns when it has happened, not when it was repaired."""

    operator: Operator
    directory: Path
    model: str

    @abstractmethod
    def workers(self) -> list[str]:
        """The workers that run now, by the names that the other methods take."""

    @abstractmethod
    def serving(self, worker: str) -> str:
        """The name of a worker in the views of the coordinator."""

    @abstractmethod
    def prepare(self) -> str:
        """A fresh copy of the demo's sample in the workspace; returns its directory there."""

    @abstractmethod
    def kill_worker(self, worker: str) -> None:
        """SIGKILL; its supervisor starts it again."""

    @abstractmethod
    @contextmanager
    def paused(self, worker: str) -> Generator[None]:
        """Frozen inside the block."""
        yield

    @abstractmethod
    def restart_broker(self) -> None:
        """It comes back empty."""

    @abstractmethod
    def restart_database(self) -> None:
        """In order, with what it holds."""

    @abstractmethod
    def replace_coordinator(self) -> None:
        """End it in order; another one takes its place."""

    @abstractmethod
    def roll_workers(self) -> None:
        """Replace every worker, in order, whatever it runs."""

    @abstractmethod
    def scale(self, workers: int) -> None:
        """So many workers; those that leave hand over."""

    @abstractmethod
    def restart_everything(self) -> None:
        """Stop all of it in order and start it again, with the database that it had."""

    def environment(self) -> dict[str, str]:
        """Of a ``team`` command on another machine: address and token, nothing else."""
        token = self.operator_token()
        variables = {"TEAM_COORDINATOR_URL": self.operator.url, "TEAM_OPERATOR_TOKEN": token}
        environment = command_environment(self.directory / "client", self.directory, variables)
        del environment["TEAM_WORKSPACE_ROOT"]
        return environment

    @abstractmethod
    def operator_token(self) -> str:
        """The token of the public API."""

    def run_demo(self) -> Command:
        """``team run`` of the demo, against this deployment, on a fresh copy of the sample."""
        arguments = ["--profile", "team", "--model", self.model, "--cwd", self.prepare(), "Do what TASK.md says."]
        return self.command("run", *arguments)

    def command(self, *arguments: str) -> Command:
        """A ``team`` command in the background."""
        output = self.directory / f"{arguments[0]}-{secrets.token_hex(3)}.log"
        return Command(["-m", "team.cli.main", *arguments], self.environment(), self.directory, output)

    def logs(self, root: str) -> dict[str, list[Event]]:
        """Every log of a Team by its Session's id, the Lead's first."""
        return {
            session.id: list(self.operator.events(session.id))
            for session in self.operator.sessions()
            if session.root_id == root
        }

    def newest_root(self, known: set[str]) -> str:
        """The root Session that was made since ``known`` was taken."""

        def found() -> str | None:
            roots = self.roots() - known
            return roots.pop() if roots else None

        root = wait_until(found, "a new Session", _BACK_SECONDS)
        assert root is not None
        return root

    def roots(self) -> set[str]:
        return {session.id for session in self.operator.sessions() if session.parent_id is None}


class ProcessDeployment(Deployment):
    """``team up`` with PostgreSQL, and workers beside it when it is scaled."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.directory = directory
        self.model = f"script:{SCENARIO}"
        self._postgres = PostgresProcess(directory / "postgres")
        url = self._postgres.create_database()
        self._variables = {"TEAM_DATABASE_URL": url, "TEAM_LEASE_SECONDS": str(LEASE_SECONDS)}
        self._count = workers
        self._more: dict[str, Command] = {}
        self._start()

    def _start(self) -> None:
        self._up = running_stack(self.directory, workers=self._count, slots=2, variables=self._variables)
        self.stack: LiveStack = self._up.__enter__()  # its owner closes it: a test may stop and start it in between
        self.operator = self.stack.operator

    def _stop(self) -> None:
        for command in self._more.values():
            assert command.stop() == 0, command.text()
        self._more.clear()
        self._up.__exit__(None, None, None)

    def close(self) -> None:
        self._stop()
        self._postgres.stop()

    def operator_token(self) -> str:
        return token_path(self.stack.data_dir, "operator").read_text().strip()

    def workers(self) -> list[str]:
        return [*(name for name in self.stack.children if name.startswith("worker")), *self._more]

    def serving(self, worker: str) -> str:
        return worker

    def prepare(self) -> str:
        name = f"run-{secrets.token_hex(3)}"
        shutil.copytree(SAMPLE, self.directory / "work" / name)
        return name

    def kill_worker(self, worker: str) -> None:
        self.stack.kill(worker)

    @contextmanager
    def paused(self, worker: str) -> Generator[None]:
        pid = self.stack.children[worker]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def restart_broker(self) -> None:
        self.stack.kill("valkey")

    def restart_database(self) -> None:
        self._postgres.restart()

    def replace_coordinator(self) -> None:
        self._replace("coordinator")

    def roll_workers(self) -> None:
        for name in [name for name in self.stack.children if name.startswith("worker")]:
            self._replace(name)

    def _replace(self, name: str) -> None:
        before = self.stack.children[name]
        os.kill(before, signal.SIGTERM)
        wait_until(lambda: self.stack.children.get(name) != before, f"another {name}", _BACK_SECONDS)

    def scale(self, workers: int) -> None:
        data_dir = self.stack.data_dir
        while self._count + len(self._more) < workers:
            name = f"more-{len(self._more) + 1}"
            variables = {
                "TEAM_COORDINATOR_URL": self.stack.url,
                "TEAM_WORKER_TOKEN": token_path(data_dir, "worker").read_text().strip(),
                "TEAM_BROKER_URL": self.stack.broker_url(),
                "TEAM_SLOTS": "2",
            }
            environment = command_environment(data_dir, self.directory / "work", variables)
            arguments = ["-m", "team.cli.main", "worker", "--name", name]
            command = Command(arguments, environment, self.directory, self.directory / f"{name}.log")
            self._more[name] = command
            wait_until(partial(_is_ready, command), f"{name} to be ready", _BACK_SECONDS)
        while self._count + len(self._more) > workers and self._more:
            _, command = self._more.popitem()
            assert command.stop() == 0, command.text()

    def restart_everything(self) -> None:
        self._stop()
        self._start()


class ComposeDeployment(Deployment):
    """The compose file of the product, in a project of its own; the image is built from the sources."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.directory = directory
        self.model = "script:/app/examples/demo/scenario.yaml"
        self._project = f"team-test-{secrets.token_hex(4)}"
        self._count = workers
        self._port = free_port()
        self._token = f"operator-{secrets.token_hex(16)}"
        self._values = {
            "POSTGRES_PASSWORD": secrets.token_hex(16),
            "REDIS_PASSWORD": secrets.token_hex(16),
            "TEAM_OPERATOR_TOKEN": self._token,
            "TEAM_WORKER_TOKEN": secrets.token_hex(16),
            "FLOWER_USER": "operator",
            "FLOWER_PASSWORD": secrets.token_hex(16),
            "TEAM_PORT": str(self._port),
            "FLOWER_PORT": str(free_port()),
            "TEAM_LEASE_SECONDS": str(LEASE_SECONDS),
            "TEAM_SLOTS": "2",
            "TEAM_IMAGE": "celery-agent-teams:test",
        }
        (directory / "env").write_text("".join(f"{name}={value}\n" for name, value in self._values.items()))
        self.operator = Operator(f"http://127.0.0.1:{self._port}", self._token, patience_seconds=60)
        self._up()

    @property
    def values(self) -> Mapping[str, str]:
        """What its ``.env`` says."""
        return self._values

    def _up(self) -> None:
        self.compose("up", "-d", "--build", "--wait", "--wait-timeout", "240", "--scale", f"worker={self._count}")

    def close(self) -> None:
        self.operator.__exit__(None, None, None)
        self.compose("down", "--volumes", "--timeout", "10")

    def compose(self, *arguments: str) -> str:
        """One ``docker compose`` command; returns what it printed."""
        place = ["--project-name", self._project, "--env-file", str(self.directory / "env")]
        environment = {name: value for name, value in os.environ.items() if name not in self._values}
        return _run(["docker", "compose", *place, "--file", str(ROOT / "docker-compose.yml"), *arguments], environment)

    def operator_token(self) -> str:
        return self._token

    def workers(self) -> list[str]:
        return self.compose("ps", "--quiet", "worker").split()

    def serving(self, worker: str) -> str:
        return f"{worker[:12]}-1"

    def prepare(self) -> str:
        name = f"run-{secrets.token_hex(3)}"
        self.compose("exec", "-T", "coordinator", "cp", "-r", "/app/examples/demo/sample", f"/workspace/{name}")
        return name

    def kill_worker(self, worker: str) -> None:
        # From outside, as a crash: what `docker kill` ends stays down.
        before = _inspect(worker, "{{.State.Pid}} {{.State.StartedAt}}")
        os.kill(int(before.split()[0]), signal.SIGKILL)
        wait_until(
            lambda: _inspect(worker, "{{.State.Pid}} {{.State.StartedAt}}") != before, "its restart", _BACK_SECONDS
        )

    @contextmanager
    def paused(self, worker: str) -> Generator[None]:
        _run(["docker", "pause", worker])
        try:
            yield
        finally:
            _run(["docker", "unpause", worker])

    @contextmanager
    def disconnected(self, worker: str) -> Generator[None]:
        """Without any network inside the block."""
        networks = [f"{self._project}_{name}" for name in ("broker", "edge")]
        for network in networks:
            _run(["docker", "network", "disconnect", "--force", network, worker])
        try:
            yield
        finally:
            for network in networks:
                _run(["docker", "network", "connect", "--alias", "worker", network, worker])

    def restart_broker(self) -> None:
        self.compose("restart", "--timeout", "2", "redis")

    def restart_database(self) -> None:
        self.compose("restart", "db")

    def replace_coordinator(self) -> None:
        self.compose("up", "-d", "--force-recreate", "--no-deps", "coordinator")

    def roll_workers(self) -> None:
        for worker in self.workers():
            _run(["docker", "restart", "--time", "40", worker])

    def scale(self, workers: int) -> None:
        self.compose("up", "-d", "--no-recreate", "--no-deps", "--scale", f"worker={workers}", "worker")

    def restart_everything(self) -> None:
        self.compose("down")
        self._up()

    def inspect(self) -> dict[str, dict[str, object]]:
        """State of every container by service and number, as the engine tells it."""
        found = json.loads(_run(["docker", "inspect", *self.compose("ps", "--all", "--quiet").split()]))
        return {item["Name"].removeprefix(f"/{self._project}-"): item for item in found}


def _is_ready(worker: Command) -> bool:
    return "worker ready" in worker.text()


def docker_fault() -> str | None:
    """Why the compose file cannot be run here; None when it can."""
    if shutil.which("docker") is None:
        return "no docker command"
    for arguments in (["docker", "version"], ["docker", "compose", "version"]):
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`{' '.join(arguments)}` fails: no engine, or no compose v2"
    return None


def _run(arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, f"{' '.join(arguments)} ended {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _inspect(container: str, form: str) -> str:
    return _run(["docker", "inspect", "--format", form, container]).strip()
