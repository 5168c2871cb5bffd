"""B06 and jobs: commands in the background that bash reports, bounded, and gone with the claim."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from team.model.errors import TurnFenced
from tests.support.checkout import Desk, error_of, guard_process, guarded, open_descriptors, run, workspace_processes
from tests.support.waiting import wait_until_async
from workers.checkout import Guard, LocalResult
from workers.checkout.jobs import JOBS_OF_TURN, JOBS_OF_WORKER
from workers.checkout.sandbox import Mode

SERVER = "touch ready; while sleep 0.05; do echo tick; done"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture(params=["off", "on"])
def sandbox(request: pytest.FixtureRequest) -> Mode:
    """Jobs work with and without confinement."""
    if request.param == "on":
        request.getfixturevalue("confinement")
    mode: Mode = request.param
    return mode


def test_a_job_goes_on_while_other_commands_run_and_its_output_can_be_read(root: Path, sandbox: Mode) -> None:
    async def work() -> None:
        async with guarded(root, sandbox=sandbox) as (desk, _):
            text = await desk.bash(SERVER, background=True)
            assert text.startswith("Started job-1; its output goes to "), text
            path = text.split()[6]
            assert await desk.bash("echo on") == f"on\n[exit code 0; running: job-1 ({SERVER})]"

            async def ticks() -> bool:
                return "tick" in (await desk.run("read", path=path)).content

            await wait_until_async(ticks, "the job's output")
            await desk.tools.end_turn("turn-1")
            assert workspace_processes(root) == []

    run(work())


def test_the_end_of_a_job_is_told_once(root: Path, sandbox: Mode) -> None:
    async def work() -> None:
        async with guarded(root, sandbox=sandbox) as (desk, _):
            await desk.bash("until [ -e go ]; do sleep 0.02; done; exit 3", background=True)
            (root / "go").touch()

            async def told() -> bool:
                return "job-1 (until [ -e go ]; do sleep 0.02; done; exit 3) ended with exit code 3; output: " in (
                    await desk.bash("true")
                )

            await wait_until_async(told, "the end of the job to be told")
            assert await desk.bash("true") == "[exit code 0]"

    run(work())


def test_a_job_that_ends_at_once_is_reported_by_its_own_call(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            text = await desk.bash("echo no such port; exit 1", background=True)
            assert text.startswith("[job-1 (echo no such port; exit 1) ended with exit code 1; output: ")
            assert "no such port" in (await desk.run("read", path=text.split()[-1].rstrip("]"))).content

    run(work())


def test_a_job_is_stopped_by_name_and_only_there(root: Path, sandbox: Mode) -> None:
    async def work() -> None:
        async with guarded(root, sandbox=sandbox) as (desk, _):
            await desk.bash(f"trap '' TERM; setsid sleep 300 & {SERVER}", background=True)
            await desk.bash("sleep 300", background=True)
            code, message = await desk.fails("bash", command="touch ran", stop_job="job-9")
            assert code == "JOB_NOT_FOUND"
            assert "running: job-1, job-2" in message
            assert not (root / "ran").exists()
            text = await desk.bash("echo after", stop_job="job-1")
            assert text.startswith("after\n[exit code 0; job-1 (")
            assert "was stopped" in text
            assert "running: job-2 (sleep 300)" in text

    run(work())


def test_a_job_has_a_timeout_only_when_the_call_gives_one(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            await desk.bash("sleep 300", background=True, timeout_ms=1000)

            async def told() -> bool:
                return "job-1 (sleep 300) timed out and was ended" in await desk.bash("true")

            await wait_until_async(told, "the job's timeout", 15)

    run(work())


def test_jobs_end_with_a_lease_that_is_not_renewed(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            await desk.bash(SERVER, background=True)
            guard.renewed("turn-1", 0.2)
            await wait_until_async(lambda: _true(workspace_processes(root) == []), "the job to end with the lease")
            with pytest.raises(TurnFenced):
                await desk.run("bash", command="true", background=True)

    run(work())


def test_a_job_starts_nowhere_when_its_directory_is_gone(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            desk.cwd = str(root / "gone")
            code, message = await desk.fails("bash", command="touch ran", background=True)
            assert code == "FS_NOT_FOUND"
            assert "Nothing was run" in message

    run(work())


def test_b06_two_hundred_starts_over_twenty_turns_stay_within_the_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four members with five turns of ten starts each; then all is cancelled and started again at once."""
    monkeypatch.setattr("workers.checkout.jobs._START_SECONDS", 0.01)

    async def member(desk: Desk, guard: Guard, name: str, turns: int) -> list[str]:
        refused: list[str] = []
        for number in range(turns):
            execution = f"{name}-{number}"
            guard.renewed(execution, 600)
            for start in range(10):
                result = await _call(desk, execution, f"{execution}-{start}", command="exec sleep 300", background=True)
                if result.outcome == "error":
                    code, message = error_of(result)
                    assert code == "JOB_LIMIT", message
                    refused.append(message)
            assert len(_sleepers(root)) <= JOBS_OF_WORKER
            await desk.tools.end_turn(execution)
        return refused

    async def work() -> None:
        async with guarded(root) as (desk, guard):
            await desk.bash("true")
            descriptors = open_descriptors()
            refused = await asyncio.gather(*(member(desk, guard, name, 5) for name in ("a", "b", "c", "d")))
            assert sum(len(texts) for texts in refused) >= 4 * 5 * (10 - JOBS_OF_TURN)
            assert "stop_job" in refused[0][0]
            await wait_until_async(lambda: _true(_sleepers(root) == []), "all jobs to end")
            again = await asyncio.gather(*(member(desk, guard, name, 1) for name in ("e", "f", "g", "h")))
            assert [len(texts) for texts in again] == [10 - JOBS_OF_TURN] * 4
            await wait_until_async(lambda: _true(_sleepers(root) == []), "all jobs to end")
            jobs = desk.tools._bash._jobs  # pyright: ignore[reportPrivateUsage]  # nothing of it may be kept
            await wait_until_async(lambda: _true(not jobs._turns), "every turn to be forgotten")  # pyright: ignore[reportPrivateUsage]
            await wait_until_async(lambda: _true(open_descriptors() == descriptors), "descriptors to be closed")

    run(work())


def test_b06_a_place_is_free_only_when_the_job_is_really_gone(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            for _ in range(JOBS_OF_TURN):
                await desk.bash("exec sleep 300", background=True)
            process = guard_process(guard)
            keepers = [process, min(process.children(), key=lambda child: child.create_time())]
            for keeper in keepers:
                keeper.suspend()
            stop = asyncio.create_task(_call(desk, "turn-1", "stop", command="true", stop_job="job-1"))
            # Asked to end, and still there: nobody acts on it.
            await wait_until_async(lambda: _true(_cancelling(desk)), "the job to be asked to end")
            result = await _call(desk, "turn-1", "early", command="exec sleep 300", background=True)
            assert error_of(result)[0] == "JOB_LIMIT"
            assert len(workspace_processes(root)) == JOBS_OF_TURN
            for keeper in keepers:
                keeper.resume()
            assert "was stopped" in (await stop).content
            text = await desk.bash("exec sleep 300", background=True)
            assert text.startswith(f"Started job-{JOBS_OF_TURN + 1}")

    run(work())


def test_b06_the_history_of_ended_jobs_is_bounded(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            jobs = desk.tools._bash._jobs  # pyright: ignore[reportPrivateUsage]  # the report without a command of its own

            async def ended() -> Any:
                raise FileNotFoundError

            for number in range(40):
                await jobs.start("turn-1", f"number {number}", "out", ended)
            report = jobs.report("turn-1")
            assert len(report) == 16
            assert report[-1].startswith("job-40 (number 39) failed: FileNotFoundError")
            assert jobs.report("turn-1") == []

    run(work())


async def _call(desk: Desk, execution: str, call: str, **arguments: Any) -> LocalResult:
    context = Desk(desk.tools, desk.cwd, execution=execution, session_id=execution, call_id=call)
    return await desk.tools.run("bash", json.dumps(arguments), context)


def _cancelling(desk: Desk) -> bool:
    jobs = desk.tools._bash._jobs  # pyright: ignore[reportPrivateUsage]  # what no result tells
    return jobs._turns["turn-1"].running["job-1"].task.cancelling() > 0  # pyright: ignore[reportPrivateUsage]


def _sleepers(root: Path) -> list[Any]:
    return workspace_processes(root)


async def _true(value: bool) -> bool:
    return value
