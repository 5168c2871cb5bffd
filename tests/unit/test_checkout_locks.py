"""F05: one writer per path, among tasks, threads and processes."""

import asyncio
import fcntl
import os
import threading
from pathlib import Path

import pytest

from team.model.errors import ConfigurationInvalid
from tests.support.checkout import open_descriptors, run
from tests.support.waiting import wait_until
from workers.checkout import locks as locks_module
from workers.checkout import prove_locks
from workers.checkout.errors import LockTimeoutError
from workers.checkout.locks import PathLocks, stripe_of, try_lock
from workers.checkout.paths import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_tasks_that_share_the_locks_hold_them_one_after_the_other(workspace: Workspace) -> None:
    locks = PathLocks(workspace)
    inside = 0
    order: list[int] = []

    async def hold(number: int) -> None:
        nonlocal inside
        async with locks.holding("f"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            order.append(number)

    async def work() -> None:
        await asyncio.gather(*(hold(number) for number in range(20)))

    run(work())
    assert order == list(range(20))


def test_another_holder_makes_the_wait_end_with_a_typed_error_and_its_release_lets_in(workspace: Workspace) -> None:
    async def work() -> None:
        held = try_lock(workspace, stripe_of("f"))
        assert held
        with pytest.raises(LockTimeoutError, match="f was being changed by somebody else"):
            async with PathLocks(workspace, patience_seconds=0.05).holding("f"):
                raise AssertionError("the lock was given twice")
        held.close()
        async with PathLocks(workspace, patience_seconds=5).holding("f"):
            assert try_lock(workspace, stripe_of("f")) is None

    run(work())


def test_a_task_that_waits_in_its_own_process_also_gives_up(workspace: Workspace) -> None:
    async def work() -> None:
        locks = PathLocks(workspace, patience_seconds=0.05)
        async with locks.holding("f"):
            with pytest.raises(LockTimeoutError):
                async with locks.holding("f"):
                    raise AssertionError("the lock was given twice")

    run(work())


def test_a_cancelled_waiter_leaves_no_lock_and_no_descriptor(workspace: Workspace) -> None:
    async def work() -> None:
        locks = PathLocks(workspace)
        held = try_lock(workspace, stripe_of("f"))
        assert held
        before = open_descriptors()

        async def wait() -> None:
            async with locks.holding("f"):
                raise AssertionError("the lock was given twice")

        for _ in range(5):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert open_descriptors() == before
        held.close()
        async with locks.holding("f"):
            pass

    run(work())


def test_a_lock_file_that_is_removed_while_it_is_held_is_not_given_to_its_waiter(workspace: Workspace) -> None:
    held = try_lock(workspace, "00")
    assert held
    path = workspace.root / ".team" / "locks" / "00"
    waiting = os.open(path, os.O_RDWR)
    granted: list[bool] = []

    def wait() -> None:
        fcntl.flock(waiting, fcntl.LOCK_EX)
        granted.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    path.unlink()
    held.close()
    wait_until(lambda: granted, "the waiter on the removed file")
    thread.join()
    # Somebody holds a lock on the nameless file: a newcomer must lock the file that has the name now.
    again = try_lock(workspace, "00")
    assert again
    assert try_lock(workspace, "00") is None
    again.close()
    os.close(waiting)


def test_a_stripe_is_the_same_for_everybody() -> None:
    assert stripe_of("src/app.py") == "04"
    assert len({stripe_of(f"f{number}") for number in range(5000)}) == 256


def test_start_up_proves_that_locks_exclude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove_locks(tmp_path)

    def granting(*_: object) -> None:
        return

    monkeypatch.setattr(locks_module.fcntl, "flock", granting)
    with pytest.raises(ConfigurationInvalid, match="do not exclude"):
        prove_locks(tmp_path)


def test_a_workspace_without_locking_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks_module.fcntl, "flock", refusing)
    with pytest.raises(ConfigurationInvalid, match="Operation not supported"):
        prove_locks(tmp_path)
