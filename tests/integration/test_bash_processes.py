"""B01, B02, B06: a command returns with its shell, and nothing that it started outlives it."""

import asyncio
from pathlib import Path

import pytest

from team.model.errors import TurnFenced
from tests.support.checkout import guard_process, guarded, open_descriptors, run, workspace_processes
from tests.support.waiting import wait_until_async
from workers.checkout import Guard


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


DAEMON = """python3 -c '
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
null = os.open(os.devnull, os.O_RDWR)
for end in (0, 1, 2): os.dup2(null, end)
os.environ.clear()
os.execve("/bin/sleep", ["sleep", "300"], {})
'"""

LEAVERS = {
    "background": "sleep 300 & echo hi",
    "nohup": "nohup sleep 300 & echo hi",
    "setsid": "setsid sleep 300 & echo hi",
    "setsid of a cleared environment": "env -i setsid sleep 300 & echo hi",
    "subshell": "(sleep 300 >/dev/null &) ; echo hi",
    "closed streams": "sleep 300 </dev/null >/dev/null 2>&1 & echo hi",
    "daemon": f"{DAEMON}; echo hi",
    "deaf to TERM": "(trap '' TERM HUP INT; sleep 300; sleep 300) & echo hi",
    "stopped": "sleep 300 & kill -STOP $!; echo hi",
    "disowned group": "set -m; (sleep 300; true) & disown; echo hi",
    "chain": "setsid bash -c 'setsid bash -c \"setsid sleep 300 & sleep 300\" & sleep 300' & echo hi",
}


@pytest.mark.parametrize("command", LEAVERS.values(), ids=LEAVERS.keys())
def test_b01_a_command_returns_with_its_shell_and_its_rest_is_ended(root: Path, command: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            async with asyncio.timeout(20):
                text = await desk.bash(command, timeout_ms=60_000)
            assert text.startswith("hi\n[exit code 0; ended what it left running: "), text
            assert "sleep" in text or "bash" in text
            assert workspace_processes(root) == []

    run(work())


def test_b01_the_rest_of_a_pipe_may_finish_by_itself(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            text = await desk.bash("echo through > >(cat > copied)")
            assert text == "[exit code 0]"
            assert (root / "copied").read_text() == "through\n"

    run(work())


@pytest.mark.parametrize(
    "command",
    [
        "exec sleep 300",
        "trap '' TERM; for i in 1 2 3; do (trap '' TERM; sleep 300; sleep 300) & done; wait",
        "setsid sleep 300 & sleep 300",
        "kill -STOP $$",
        "cat /dev/zero > /dev/null & wait",
    ],
)
def test_b02_a_timeout_ends_the_whole_tree(root: Path, command: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            async with asyncio.timeout(30):
                text = await desk.bash(f"echo started; {command}", timeout_ms=1000)
            assert text.startswith("started\n[timed out after 1,000 ms")
            assert workspace_processes(root) == []

    run(work())


@pytest.mark.parametrize("how", ["cancel", "end of turn", "close"])
def test_b02_an_interrupt_ends_the_whole_tree(root: Path, how: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            command = "trap '' TERM; setsid sleep 300 & (trap '' TERM; sleep 300; sleep 300) & touch ready; wait"
            task = asyncio.create_task(desk.run("bash", command=command))
            await wait_until_async(lambda: _true((root / "ready").exists()), "the command to run")
            if how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert workspace_processes(root) == []
            elif how == "end of turn":
                await desk.tools.end_turn("turn-1")
                assert workspace_processes(root) == []
                assert "stopped from outside" in (await task).content
                with pytest.raises(TurnFenced):
                    await desk.run("bash", command="true")
            else:
                await guard.close()
                assert workspace_processes(root) == []
                assert "stopped from outside" in (await task).content

    run(work())


def test_the_end_of_one_turn_leaves_another_alone(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            guard.renewed("turn-2", 60)
            desk.execution = "turn-2"
            other = asyncio.create_task(desk.bash("touch ready; until [ -e go ]; do sleep 0.02; done; echo went"))
            await wait_until_async(lambda: _true((root / "ready").exists()), "the command to run")
            await desk.tools.end_turn("turn-1")
            await desk.tools.end_turn("turn-1")
            (root / "go").touch()
            assert await other == "went\n[exit code 0]"

    run(work())


def test_b01_many_calls_leak_no_descriptor_no_process_and_no_zombie(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            await desk.bash("true")
            process = guard_process(guard)
            own = open_descriptors()
            theirs = process.num_fds()
            for _ in range(50):
                await asyncio.gather(*(desk.bash("sleep 300 & echo hi") for _ in range(4)))
            assert open_descriptors() == own
            await wait_until_async(lambda: _true(process.num_fds() == theirs), "the guard to close its descriptors")
            await wait_until_async(lambda: _true(process.children() == []), "the guard to reap its shepherds")
            assert workspace_processes(root) == []

    run(work())


def test_calls_of_one_turn_beyond_the_limit_wait_for_their_slot(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            command = "mkdir -p run && mkdir run/$$ && ls run | wc -l && sleep 0.05 && rmdir run/$$"
            texts = await asyncio.gather(*(desk.bash(command) for _ in range(24)))
            counts = [int(text.split()[0]) for text in texts]
            assert max(counts) <= 8
            assert all(text.endswith("[exit code 0]") for text in texts)

    run(work())


def test_d08_a_fork_bomb_is_ended_and_the_next_command_runs(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            async with asyncio.timeout(60):
                text = await desk.bash("bomb() { bomb | bomb & }; bomb; sleep 100", timeout_ms=100_000)
            assert "started too many processes" in text or "Resource temporarily unavailable" in text, text
            assert workspace_processes(root) == []
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


def test_a_turn_without_a_lease_runs_nothing(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            desk.execution = "turn-9"
            for tool, arguments in (
                ("bash", {"command": "touch ran"}),
                ("glob", {"pattern": "*"}),
                ("grep", {"pattern": "x"}),
            ):
                with pytest.raises(TurnFenced):
                    await desk.run(tool, **arguments)
            guard.renewed("turn-9", 60)
            await desk.bash("true")
            assert not (root / "ran").exists()

    run(work())


def test_a_guard_that_was_never_started_starts_with_the_first_command(root: Path) -> None:
    async def work() -> None:
        guard = Guard()
        guard.renewed("t", 60)
        await guard.end_turn("unknown")
        assert guard.pid is None
        await guard.start()
        pid = guard.pid
        await guard.start()
        assert guard.pid == pid
        await guard.close()
        await guard.close()
        assert guard.pid is None

    run(work())


async def _true(value: bool) -> bool:
    return value
