"""Striped lock files: one writer per path among all workers that mount the workspace.

``flock`` is held by an open file description, so opening the stripe anew for every critical section also excludes
tasks and threads of one process. On NFS the kernel maps it to a lock at the server.
"""

import asyncio
import fcntl
import hashlib
import os
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from workers.checkout.blocking import off_loop
from workers.checkout.errors import LockTimeoutError
from workers.checkout.paths import Workspace, os_fault

STRIPES: Final = 256
PATIENCE_SECONDS: Final = 30.0
_SHORTEST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.025


class PathLocks:
    """The locks of one workspace."""

    def __init__(self, workspace: Workspace, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._workspace = workspace
        self._patience = patience_seconds
        self._local: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def holding(self, path: str) -> AsyncGenerator[None]:
        """Hold the lock of ``path`` (relative to the root).

        Raises:
            LockTimeoutError: Somebody else held it for the whole patience.
            FileFaultError: The lock file cannot be opened.
        """
        stripe = stripe_of(path)
        end = time.monotonic() + self._patience
        # Tasks of this process queue in order instead of racing with their own polling.
        local = self._local.setdefault(stripe, asyncio.Lock())
        try:
            async with asyncio.timeout(self._patience):
                await local.acquire()
        except TimeoutError as error:
            raise _timeout(path, self._patience) from error
        try:
            held = await self._acquire(path, stripe, end)
            try:
                yield
            finally:
                held.close()
        finally:
            local.release()

    async def _acquire(self, path: str, stripe: str, end: float) -> "HeldLock":
        pause = _SHORTEST_PAUSE
        while True:
            try:
                held = await off_loop(try_lock, self._workspace, stripe)
            except OSError as error:
                raise os_fault(f"the lock of {path}", error) from error
            if held:
                return held
            if time.monotonic() >= end:
                raise _timeout(path, self._patience)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads rivals, guards nothing
            pause = min(_LONGEST_PAUSE, pause * 2)


class HeldLock:
    """The open file whose description holds a lock."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)


def stripe_of(path: str) -> str:
    """The name of the lock file of ``path``: the same on every machine."""
    return f"{hashlib.sha256(path.encode()).digest()[0] % STRIPES:02x}"


def try_lock(workspace: Workspace, stripe: str) -> HeldLock | None:
    """Lock a stripe; None when another one holds it. Raises OSError."""
    directory = workspace.data_directory("locks")
    try:
        handle = os.open(stripe, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=directory)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed meanwhile; a lock on a nameless file would exclude nobody.
            if os.fstat(handle).st_nlink and _same_file(handle, stripe, directory):
                return HeldLock(handle)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None
    finally:
        os.close(directory)


def _same_file(handle: int, stripe: str, directory: int) -> bool:
    try:
        named = os.stat(stripe, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(handle))


def _timeout(path: str, seconds: float) -> LockTimeoutError:
    return LockTimeoutError(
        f"{path} was being changed by somebody else for {seconds:g} s. Nothing was changed; try again."
    )
