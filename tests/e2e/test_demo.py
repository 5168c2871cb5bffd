"""The main job on real processes: as it should be, on one worker, and while parts of it are killed."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from team.cli.views import WorkerView
from team.model.events import Event, MemberChanged, TaskChanged
from team.model.views import TeamMemberView, TeamView
from tests.support.histories import assert_sound, messages_in_mid_turn
from tests.support.stack import ROOT, Command, LiveStack, attached, command_environment, stored_logs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

_RUN_SECONDS = 150.0


class DemoRun:
    """``make demo`` in a directory of its own."""

    def __init__(self, directory: Path, workers: int, **variables: str) -> None:
        self.directory = directory
        environment = command_environment(directory / "demo" / "data", directory / "demo" / "checkout", variables)
        arguments = [str(ROOT / "examples/demo/run.py"), "--workers", str(workers)]
        self.command = Command(
            [*arguments, "--directory", str(directory / "demo")], environment, directory, directory / "demo.log"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.command.stop()

    def finish(self) -> str:
        """Wait for its end, which must be good; returns what it printed."""
        code = self.command.wait(_RUN_SECONDS, "the demo")
        assert code == 0, self.command.text()
        return self.command.text()

    def logs(self) -> dict[str, list[Event]]:
        """Every log that it left behind."""
        return stored_logs(f"sqlite:///{self.directory / 'demo' / 'data' / 'team.db'}")


def team_of(stack: LiveStack) -> TeamView | None:
    """The only Team, once it is there."""
    roots = [session for session in stack.operator.sessions() if session.parent_id is None]
    return stack.operator.team(roots[0].id) if roots else None


def running_on(stack: LiveStack, name: str, *, after: int = 0) -> TeamMemberView | None:
    """The member, when it is executing now and its log has grown beyond ``after`` events."""
    team = team_of(stack)
    members = team.members if team is not None else ()
    for member in members:
        turn = member.turn
        if member.target == name and turn is not None and turn.state == "running" and member.last_seq > after:
            return member
    return None


def assert_complete(logs: Mapping[str, Sequence[Event]]) -> None:
    """Sound histories, the roster and the board of the scenario, and a message that reached an open turn."""
    assert_sound(logs)
    lead = next(iter(logs))
    decoded = [event.decoded() for event in logs[lead]]
    members = {item.member.id: item.member for item in decoded if isinstance(item, MemberChanged)}
    assert [(member.name, member.phase) for member in members.values()] == [
        ("researcher", "active"),
        ("implementer", "active"),
    ]
    first, second = {item.task.id: item.task for item in decoded if isinstance(item, TaskChanged)}.values()
    assert (first.status, second.status) == ("completed", "completed")
    assert second.blocked_by == (first.id,)
    assert [members[task.owner_id].name for task in (first, second) if task.owner_id] == ["researcher", "implementer"]
    in_mid_turn = [sender for events in logs.values() for sender in messages_in_mid_turn(events)]
    assert "implementer" in in_mid_turn, "no message reached a running turn"


def test_two_workers_repair_the_sample(tmp_path: Path) -> None:
    with DemoRun(tmp_path, 2) as demo:
        text = demo.finish()
    assert "its tests before:  FAILED" in text
    assert "its tests after:   OK" in text
    assert "workers that ran:  worker-1, worker-2" in text
    assert "all 3 Sessions: replay equals projections" in text
    assert_complete(demo.logs())


def test_one_worker_of_one_slot_is_enough(tmp_path: Path) -> None:
    """A waiting member holds no slot, or nobody else could ever run."""
    with DemoRun(tmp_path, 1) as demo:
        assert "workers that ran:  worker-1\n" in demo.finish()
    assert_complete(demo.logs())


def test_workers_are_killed_in_the_middle_of_a_step_and_idle(tmp_path: Path) -> None:
    with DemoRun(tmp_path, 2) as demo, attached(tmp_path / "demo" / "data") as stack:

        def executing() -> str | None:
            # Its claim and its first two steps are over: what is killed now is a step in the making.
            member = running_on(stack, "researcher", after=20)
            return member.turn.worker if member is not None and member.turn is not None else None

        def idle() -> WorkerView | None:
            workers = stack.operator.workers()
            return next((worker for worker in workers if not worker.executing), None) if len(workers) > 1 else None

        busy = wait_until(executing, "the researcher to execute", 60)
        assert busy is not None
        stack.kill(busy)
        spare = wait_until(idle, "a worker that executes nothing", 60)
        assert spare is not None
        stack.kill(spare.name)
        text = demo.finish()
    assert text.count("ended (signal 9) and was started again") == 2
    assert_complete(demo.logs())


def test_the_broker_is_flushed_twice_and_killed_once_and_so_is_the_coordinator(tmp_path: Path) -> None:
    with DemoRun(tmp_path, 2) as demo, attached(tmp_path / "demo" / "data") as stack:
        wait_until(lambda: running_on(stack, "researcher"), "the researcher to execute", 60)
        stack.flush_broker()
        wait_until(lambda: running_on(stack, "researcher", after=20), "the researcher to go on", 60)
        stack.kill("valkey")
        stack.flush_broker()
        wait_until(lambda: running_on(stack, "implementer", after=40), "the implementer to go on", 90)
        stack.kill("coordinator")
        text = demo.finish()
    for name in ("valkey", "coordinator"):
        assert text.count(f"{name} ended (signal 9) and was started again") == 1
    assert_complete(demo.logs())


def test_a_run_that_is_killed_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    """SIGKILL of ``team run`` itself: the kernel ends its children; the log knows how to go on."""
    data, checkout = tmp_path / "demo" / "data", tmp_path / "demo" / "checkout"
    with DemoRun(tmp_path, 2) as demo, attached(data) as stack:
        wait_until(lambda: running_on(stack, "implementer", after=10), "the implementer to execute", 60)
        team = team_of(stack)
        assert team is not None
        children = list(stack.children.values())
        os.kill(stack.supervisor, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in children), "every child to be gone")
        assert demo.command.wait(60) == 1, "the demo must tell that its run failed"

    environment = command_environment(data, checkout, {})
    resumed = Command(
        ["-m", "team.cli.main", "resume", team.team_id, "--workers", "2", "--slots", "1"],
        environment,
        tmp_path,
        tmp_path / "resume.log",
    )
    assert resumed.wait(_RUN_SECONDS, "the run to be finished") == 0, resumed.text()
    assert "all 7 tests pass" in resumed.text()
    assert_complete(demo.logs())


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
