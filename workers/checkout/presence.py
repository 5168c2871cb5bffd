"""Proof that locks exclude between the workers of a workspace, not only within one machine.

Each worker holds a lock on a file of its own for its whole life, and touches it every second. A worker that starts
tries those locks: one that is granted belongs to a dead worker, or the mount grants locks that exclude nobody (NFS with
``nolock``, some container mounts). The touching tells which.
"""

import fcntl
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from team.model.errors import ConfigurationInvalid
from workers.checkout.paths import DATA_AREA, Workspace
from workers.checkout.workspace import locks_refused
from workers.guardian import kernel

WORKERS: Final = "workers"
TOUCH_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 3.5
"""How long a file of another machine's worker is watched for a touch: beyond what a network mount caches times."""

LEFT_SECONDS: Final = 3600.0
"""How old a file must be that its worker never named, before it is removed."""

_UNNAMED: Final = "."
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_PAUSE: Final = 0.1

_log = structlog.stdlib.get_logger(__name__)


class Presence:
    """This worker's lock among the workers of its workspace, held until ``close``. Blocks while it starts.

    Raises:
        ConfigurationInvalid: A living worker's lock was granted a second time, or locks cannot be taken at all.
        WorkspaceUnavailable: They cannot be taken now.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="presence", daemon=True)
        place = workspace.root / DATA_AREA / WORKERS
        try:
            self._directory = workspace.data_directory(WORKERS)
            try:
                _prove(self._directory, place)
                self._name, self._handle = _appear(self._directory)
            except BaseException:
                os.close(self._directory)
                raise
        except OSError as error:
            raise locks_refused(place, error) from error
        self._thread.start()

    def _touch(self) -> None:
        while not self._stopping.wait(TOUCH_SECONDS):
            try:
                os.utime(self._handle)
            except OSError as error:
                _log.warning("the workspace's file system failed", error=error.strerror)

    def close(self) -> None:
        """Leave. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory)
        os.close(self._handle)
        os.close(self._directory)


def machine_mark() -> str:
    """Names this process for ever and everywhere: its machine since boot, then what the guard's mark names."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {kernel.guard_mark()}"


def _appear(directory: int) -> tuple[str, int]:
    """Make this worker's file. It has its name only once it is locked: nobody tries its lock before."""
    name = secrets.token_hex(8)
    handle = os.open(f"{_UNNAMED}{name}", _OPEN | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, machine_mark().encode())
        os.fsync(handle)
        os.rename(f"{_UNNAMED}{name}", name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.close(handle)
        raise
    return name, handle


def _prove(directory: int, place: Path) -> None:
    names = os.listdir(directory)
    for name in names:
        if name.startswith(_UNNAMED) and 0 < _touched(directory, name) < (time.time() - LEFT_SECONDS) * 1e9:
            _remove(directory, name)
    named = [name for name in names if not name.startswith(_UNNAMED)]
    granted = {name: mark for name in named if (mark := _granted(directory, name)) is not None}
    own_boot, _, own = machine_mark().partition(" ")
    own_space = own.rpartition("]:")[0]
    watched: dict[str, int] = {}
    for name, text in granted.items():
        boot, _, mark = text.partition(" ")
        if boot == own_boot and mark.rpartition("]:")[0] == own_space:
            if not kernel.mark_is_dead(mark):
                raise _not_exclusive(place)
            _remove(directory, name)
        else:
            watched[name] = _touched(directory, name)
    end = time.monotonic() + WATCH_SECONDS
    while watched and time.monotonic() < end:
        time.sleep(_PAUSE)
        for name, before in watched.items():
            if _touched(directory, name) not in {before, 0}:
                raise _not_exclusive(place)
    for name in watched:
        _remove(directory, name)


def _granted(directory: int, name: str) -> str | None:
    """What the file says if its lock was granted, None when its worker holds it or has left."""
    try:
        handle = os.open(name, _OPEN, dir_fd=directory)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(handle, 1000).decode("ascii", "replace") if os.fstat(handle).st_nlink else None
    except BlockingIOError:
        return None
    finally:
        os.close(handle)


def _touched(directory: int, name: str) -> int:
    """When the file was touched, in nanoseconds; 0 when it is gone. Opened anew, as network mounts cache times."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return 0
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)


def _remove(directory: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _not_exclusive(place: Path) -> ConfigurationInvalid:
    return ConfigurationInvalid(
        f"locks under {place} do not exclude between workers: one that a living worker holds was granted again. Two "
        "members could overwrite each other's files. Mount the workspace with locks (NFS without nolock or local_lock)."
    )
