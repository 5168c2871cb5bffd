"""B02, D08: whatever dies - worker, guard, shepherd, some or all - nothing of a command goes on."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from team.model.errors import TurnFenced
from tests.support.checkout import Desk, guard_process, guarded, run, workspace_processes
from tests.support.waiting import wait_until, wait_until_async
from workers.checkout import Guard, LocalTools

TREE = "trap '' TERM HUP INT; env -i setsid sleep 300 & (trap '' TERM; sleep 300; sleep 300) & touch ready; wait"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@contextmanager
def worker(root: Path, lease_seconds: float, command: str = TREE) -> Generator[subprocess.Popen[str]]:
    """A worker process in the middle of a command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.checkout_worker", str(root), str(lease_seconds), command],
        cwd=Path(__file__).resolve().parents[2],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until((root / "ready").exists, "the command to run", 20)
        yield process
    finally:
        process.kill()
        process.communicate()


def kept_by(process: psutil.Process) -> list[psutil.Process]:
    """The guard of a worker and its shepherds."""
    (guard,) = process.children()
    return [guard, *(child for child in guard.children() if child.name() == "team-shepherd")]


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_b02_kill_9_of_the_worker_ends_its_commands_and_its_guard(root: Path) -> None:
    with worker(root, 600) as process:
        keepers = kept_by(psutil.Process(process.pid))
        assert len(keepers) == 2
        assert len(workspace_processes(root)) >= 4
        process.kill()
        wait_until(lambda: workspace_processes(root) == [], "the commands to end")
        wait_until(lambda: gone(keepers), "the guard to end")


def test_a_worker_that_is_stopped_loses_its_commands_with_its_lease(root: Path) -> None:
    with worker(root, 2) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: workspace_processes(root) == [], "the commands to end with the lease")
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=20)
        assert "TurnFenced" in errors


def test_a_lease_that_is_renewed_goes_on_and_one_that_is_not_ends_the_command(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            guard.renewed("turn-1", 0.6)
            started = time.monotonic()
            task = asyncio.create_task(desk.run("bash", command=TREE))
            while time.monotonic() - started < 1.5:
                await asyncio.sleep(0.1)
                guard.renewed("turn-1", 0.6)
            assert not task.done()
            with pytest.raises(TurnFenced):
                await task
            assert workspace_processes(root) == []
            with pytest.raises(TurnFenced):
                await desk.run("bash", command="true")

    run(work())


async def _kill_guard(guard: psutil.Process) -> None:
    guard.kill()


async def _kill_shepherd(guard: psutil.Process) -> None:
    guard.children()[0].kill()


async def _kill_both(guard: psutil.Process) -> None:
    shepherd = guard.children()[0]
    # Stopped first, so that neither can act on the death of the other.
    for process in (guard, shepherd):
        process.suspend()
    for process in (guard, shepherd):
        process.kill()


@pytest.mark.parametrize("kill", [_kill_guard, _kill_shepherd, _kill_both])
def test_d08_when_keepers_are_killed_the_command_ends_and_the_next_one_runs(
    root: Path, kill: Callable[[psutil.Process], Awaitable[None]]
) -> None:
    # A process that has cleared its environment and lost guard and shepherd at once cannot be found any more.
    command = TREE.replace("env -i ", "") if kill is _kill_both else TREE

    async def work() -> None:
        async with guarded(root) as (desk, guard):
            task = asyncio.create_task(desk.run("bash", command=command))
            await wait_until_async(lambda: _ready(root), "the command to run")
            await kill(guard_process(guard))
            result = await task
            assert "COMMAND_LOST" in result.content or "stopped from outside" in result.content
            await wait_until_async(lambda: _quiet(root), "the command to end")
            assert await desk.bash("echo on") == "on\n[exit code 0]"
            await desk.tools.end_turn("turn-1")

    run(work())


def test_d08_what_outlived_worker_guard_and_shepherd_is_ended_by_the_next_worker(root: Path) -> None:
    command = "setsid sleep 300 & nohup sleep 300 & touch ready; wait"
    with worker(root, 600, command) as process:
        victims = [psutil.Process(process.pid), *kept_by(psutil.Process(process.pid))]
        for victim in victims:
            victim.suspend()
        for victim in victims:
            victim.kill()
        wait_until(lambda: gone(victims), "worker, guard and shepherd to die")
        # The shell died with its shepherd; what it had detached goes on.
        wait_until(lambda: _names(workspace_processes(root)) == {"sleep"}, "the shell to die")

        async def next_worker() -> None:
            async with guarded(root):
                await wait_until_async(lambda: _quiet(root), "the next worker to end what was left")

        run(next_worker())


@pytest.mark.parametrize("command", ["kill -9 $PPID", "kill -STOP $PPID", "kill $PPID"])
def test_d08_a_command_that_attacks_its_shepherd_ends_itself(root: Path, command: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            async with asyncio.timeout(30):
                result = await desk.run("bash", command=f"setsid sleep 300 & {command}; sleep 300", timeout_ms=2000)
            assert any(part in result.content for part in ("COMMAND_LOST", "stopped from outside", "timed out"))
            await wait_until_async(lambda: _quiet(root), "the command to end")
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


def test_a_guard_that_hangs_is_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.checkout.guard.GONE_SECONDS", 0.5)

    async def work() -> None:
        async with guarded(root) as (desk, guard):
            process = guard_process(guard)
            process.suspend()
            result = await desk.run("bash", command="true", timeout_ms=1000)
            assert "COMMAND_LOST" in result.content
            await wait_until_async(lambda: _is(gone([process])), "the guard to be killed")
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


def test_keepers_hold_no_secret_and_no_descriptor_of_the_worker(root: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    os.environ["CANARY_KEY"] = "canary-7c1"

    async def work() -> None:
        async with guarded(root) as (desk, guard):
            task = asyncio.create_task(desk.run("bash", command=TREE))
            await wait_until_async(lambda: _ready(root), "the command to run")
            process = guard_process(guard)
            for keeper in (process, *process.children()):
                assert "canary-7c1" not in str(keeper.environ())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            os.close(write_end)
            assert os.read(read_end, 1) == b""  # would block if a keeper held the other end

    try:
        run(work())
    finally:
        del os.environ["CANARY_KEY"]
        os.close(read_end)


def test_the_guard_imports_the_standard_library_alone() -> None:
    code = (
        "import sys; sys.path.append(sys.argv[1]); import workers.guardian.process; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    repository = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-I", "-S", "-c", code, str(repository)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.strip() == "['__main__', 'workers']" or output.strip() == "['workers']"


def _names(processes: list[psutil.Process]) -> set[str]:
    names: set[str] = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


async def _ready(root: Path) -> bool:
    return (root / "ready").exists()


async def _quiet(root: Path) -> bool:
    return workspace_processes(root) == []


async def _is(value: bool) -> bool:
    return value


def test_renewals_come_from_any_thread(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            desk.execution = "turn-2"
            await asyncio.to_thread(guard.renewed, "turn-2", 60)
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


def test_renewals_before_the_start_and_after_a_restart_are_known_to_the_guard(root: Path) -> None:
    async def work() -> None:
        guard = Guard()
        guard.renewed("turn-1", 60)
        desk = Desk(LocalTools(root, output_bytes=1000, guard=guard), str(root))
        try:
            assert await desk.bash("echo on") == "on\n[exit code 0]"
            old = guard_process(guard)
            old.kill()
            await wait_until_async(lambda: _is(guard.pid not in {None, old.pid}), "a new guard")
            assert await desk.bash("echo on") == "on\n[exit code 0]"
        finally:
            await guard.close()

    run(work())
