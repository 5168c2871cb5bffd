"""Real stacks for tests: the command line as a process, its children, and what the coordinator says of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import redis

from team.cli.client import Operator
from team.cli.places import StackRecord, live_stack
from team.log import sessions
from team.log.database import Database
from team.log.events import stream_events
from team.model.events import Event
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
LEASE_SECONDS: Final = 6.0
_START_SECONDS: Final = 40.0
_STOP_SECONDS: Final = 60.0


def command_environment(data_dir: Path, workspace: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a ``team`` command: a data directory and a workspace of its own, a short lease, no keys."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_API_KEY") and (not name.startswith("TEAM_") or name == "TEAM_TEST_RUN")
    }
    return {
        **inherited,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH")))),
        "TEAM_DATA_DIR": str(data_dir),
        "TEAM_WORKSPACE_ROOT": str(workspace),
        "TEAM_LEASE_SECONDS": str(LEASE_SECONDS),
        "NO_COLOR": "1",
        "COLUMNS": "200",
        **variables,
    }


class Command:
    """One ``team`` command, or another program, in the background; its output goes to a file."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path) -> None:
        self.output = output
        with output.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def text(self) -> str:
        """What it printed so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait(self, deadline: float, what: str = "the command to end") -> int:
        """Its exit code; the failure shows what it printed."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"waited {deadline:g} s for {what}; it printed:\n{self.text()}") from None

    def stop(self) -> int:
        """Ask it to stop, as a service manager does, and wait for its orderly end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(_STOP_SECONDS)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def stored_logs(database_url: str) -> dict[str, list[Event]]:
    """Every Session's log by its id, read from a store that nobody serves."""
    database = Database(database_url)
    try:
        with database.reading() as connection:
            return {
                session_id: list(stream_events(connection, session_id))
                for session_id in sessions.session_ids(connection)
            }
    finally:
        database.close()


class LiveStack:
    """A running stack, seen through its record and its API."""

    def __init__(self, data_dir: Path, record: StackRecord) -> None:
        self.data_dir = data_dir
        self.url = record.url
        self.supervisor = record.pid
        self.operator = Operator(record.url, record.token)

    @property
    def children(self) -> dict[str, int]:
        """Process ids by name, as of now."""
        record = live_stack(self.data_dir)
        assert record is not None, "the stack has stopped"
        return record.children

    def kill(self, name: str) -> None:
        """SIGKILL one child, and wait until its supervisor has started it again."""
        before = self.children[name]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.children.get(name) != before, f"{name} to be started again")

    def broker_url(self) -> str:
        """Of the embedded broker, with its password."""
        return psutil.Process(self.children["coordinator"]).environ()["TEAM_BROKER_URL"]

    def broker(self) -> redis.Redis:
        """A client of the embedded broker; the caller closes it."""
        client: redis.Redis = redis.Redis.from_url(self.broker_url())  # pyright: ignore[reportUnknownMemberType]  # untyped library
        return client

    def flush_broker(self) -> None:
        """Drop every key of the embedded broker."""
        client = self.broker()
        try:
            wait_until(lambda: _flushed(client), "the broker to take a FLUSHALL")
        finally:
            client.close()

    def logs(self) -> dict[str, list[Event]]:
        """Every Session's log by its id."""
        return {session.id: list(self.operator.events(session.id)) for session in self.operator.sessions()}

    def close(self) -> None:
        """Close the client; the stack is its owner's."""
        self.operator.__exit__(None, None, None)


def _flushed(client: redis.Redis) -> bool:
    """Flush; False while a server that was started again does not listen yet."""
    try:
        client.execute_command("FLUSHALL")  # pyright: ignore[reportUnknownMemberType]  # untyped library
    except redis.ConnectionError:
        return False
    return True


@contextmanager
def attached(data_dir: Path) -> Generator[LiveStack]:
    """The stack that some command started on ``data_dir``, once it is ready."""
    record = wait_until(lambda: live_stack(data_dir) if data_dir.is_dir() else None, "a stack", _START_SECONDS)
    assert record is not None
    stack = LiveStack(data_dir, record)
    try:
        yield stack
    finally:
        stack.close()


@contextmanager
def running_stack(
    directory: Path, *, workers: int = 1, slots: int = 8, variables: Mapping[str, str] | None = None
) -> Generator[LiveStack]:
    """``team up`` in ``directory``: the workspace is ``directory/work``, the data ``directory/data``.

    Args:
        directory: Made if need be; a second stack in it finds the data of the first.
        workers: Worker processes; 0 for a coordinator alone.
        slots: Turns that each worker runs at once.
        variables: More settings, such as ``{"TEAM_DATABASE_URL": ...}``.
    """
    workspace, data_dir = directory / "work", directory / "data"
    workspace.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "team.cli.main", "up", "--workers", str(workers), "--slots", str(slots)]
    command = Command(
        [*arguments, "--port", str(free_port())],
        command_environment(data_dir, workspace, variables or {}),
        workspace,
        directory / "up.log",
    )
    try:
        wait_until(lambda: data_dir.is_dir() or command.process.poll() is not None, "team up to begin", _START_SECONDS)
        assert command.process.poll() is None, command.text()
        with attached(data_dir) as stack:
            yield stack
    finally:
        code = command.stop()
    assert code == 0, command.text()
