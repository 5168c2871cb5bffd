"""Private temporary directories: one per Session on this worker, outside of the checkout."""

import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "team-scratch-"
KEPT_SESSIONS: Final = 64
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_MODE: Final = 0o1777


class Scratch:
    """The temporary directories of one worker process, removed with ``close``.

    Making one removes what workers left that were killed: a living worker holds a lock on its own.

    Raises:
        OSError: There is no place for temporary files.
    """

    def __init__(self, parent: Path | None = None, *, kept: int = KEPT_SESSIONS) -> None:
        place = parent or Path(tempfile.gettempdir())
        self._kept = kept
        remove_abandoned(place)
        self.base, self._handle = _claimed(place)
        self._lock = threading.Lock()
        self._users: OrderedDict[str, int] = OrderedDict()

    def take(self, session_id: str) -> Path:
        """The directory of a Session, kept at least until ``give_back``. Raises OSError."""
        name = _directory_name(session_id)
        path = self.base / name
        with self._lock:
            path.mkdir(exist_ok=True)
            path.chmod(_SHARED_MODE)  # like /tmp, which it stands for
            self._users[name] = self._users.get(name, 0) + 1
            self._users.move_to_end(name)
        return path

    def give_back(self, session_id: str) -> None:
        """A use of the Session's directory is over. Of many Sessions the ones longest out of use lose theirs."""
        name = _directory_name(session_id)
        with self._lock:
            self._users[name] -= 1
            idle = [other for other, users in self._users.items() if not users]
            for other in idle[: max(0, len(self._users) - self._kept)]:
                del self._users[other]
                shutil.rmtree(self.base / other, ignore_errors=True)

    def close(self) -> None:
        """Remove everything. Idempotent."""
        if self._handle >= 0:
            shutil.rmtree(self.base, ignore_errors=True)
            os.close(self._handle)
            self._handle = -1


def _directory_name(session_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", session_id)[:100] or "_"


def _claimed(place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        handle = os.open(path, _DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        # Between its making and its lock another starting worker may have taken it for abandoned.
        if path.exists():
            return path, handle
        os.close(handle)


def remove_abandoned(place: Path) -> None:
    """Remove the directories of dead workers of this user."""
    for path in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone already, or another user's
            handle = os.open(path, _DIRECTORY)
            try:
                if os.fstat(handle).st_uid != os.geteuid():
                    continue
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
