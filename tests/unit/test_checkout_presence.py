"""F05 across machines: a worker that starts proves that the locks of the others exclude it."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from team.model.errors import ConfigurationInvalid, WorkspaceUnavailable
from tests.support.waiting import wait_until
from workers.__main__ import AWAY, main
from workers.checkout import presence
from workers.checkout.paths import Workspace
from workers.checkout.presence import Presence

HOLD = (
    "import sys, time; from pathlib import Path; from workers.checkout.paths import Workspace; "
    "from workers.checkout.presence import Presence; "
    "held = Presence(Workspace(Path(sys.argv[1]))); print('here', flush=True); sys.stdin.read(); held.close()"
)


def marks(root: Path) -> list[str]:
    return [path.name for path in (root / ".team" / "workers").iterdir()]


def grant_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mount without locks does."""

    def grant(_handle: int, _operation: int) -> None:
        pass

    monkeypatch.setattr(fcntl, "flock", grant)


def from_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = presence.machine_mark()
    monkeypatch.setattr(presence, "machine_mark", lambda: f"another-boot {own.partition(' ')[2]}")


def test_workers_whose_locks_exclude_stand_side_by_side_and_leave_nothing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first, second = Presence(workspace), Presence(workspace)
    assert len(marks(tmp_path)) == 2
    for held in (first, second, first):
        held.close()
    assert marks(tmp_path) == []


def test_f05_a_mount_that_grants_a_living_workers_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "here\n"
        Presence(Workspace(tmp_path)).close()
        grant_everything(monkeypatch)
        with pytest.raises(ConfigurationInvalid, match="do not exclude between workers"):
            Presence(Workspace(tmp_path))
        # The same from where its process cannot be seen: it is alive because it touches its file.
        from_another_machine(monkeypatch)
        with pytest.raises(ConfigurationInvalid, match="nolock"):
            Presence(Workspace(tmp_path))
    finally:
        holder.kill()
        holder.communicate()


def test_what_a_killed_worker_left_is_removed_at_once_here_and_after_a_while_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "WATCH_SECONDS", 0.3)
    for _ in range(2):
        command = [sys.executable, "-c", f"{HOLD.replace('sys.stdin.read()', 'import os; os._exit(9)')}", str(tmp_path)]
        subprocess.run(command, cwd=Path(__file__).resolve().parents[2], check=False, capture_output=True)
        (left,) = marks(tmp_path)
        held = Presence(Workspace(tmp_path))
        assert left not in marks(tmp_path)
        held.close()
        from_another_machine(monkeypatch)
    assert marks(tmp_path) == []


def test_a_worker_touches_its_file_and_survives_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "TOUCH_SECONDS", 0.01)
    held = Presence(Workspace(tmp_path))
    (path,) = (tmp_path / ".team" / "workers").iterdir()
    os.utime(path, ns=(0, 0))
    wait_until(lambda: path.stat().st_mtime_ns > 0, "a touch")
    assert path.stat().st_mtime <= time.time() + 5
    path.unlink()
    held.close()


def test_a_workspace_that_cannot_be_locked_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigurationInvalid, match=r"cannot lock files .*Operation not supported.*flock"):
        Presence(Workspace(tmp_path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO])
def test_a_workspace_that_cannot_be_locked_now_is_told_apart_from_one_that_never_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A worker that starts on a full disk is started again by its supervisor; a setting would not help."""

    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(WorkspaceUnavailable, match=os.strerror(number)) as caught:
        Presence(Workspace(tmp_path))
    monkeypatch.setattr("workers.__main__._run", _raising(caught.value))
    assert main() == AWAY


def _raising(error: Exception) -> Callable[[object], int]:
    def run(_settings: object) -> int:
        raise error

    return run


def test_workers_that_start_together_never_try_the_lock_of_one_that_is_not_named_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_another = Presence(Workspace(tmp_path))
    directory = tmp_path / ".team" / "workers"
    fresh, left = directory / ".fresh", directory / ".left"
    fresh.touch()
    left.touch()
    long_ago = time.time() - presence.LEFT_SECONDS - 60
    os.utime(left, (long_ago, long_ago))
    tried: list[str] = []
    flock = fcntl.flock

    def note(handle: int, operation: int) -> None:
        tried.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        flock(handle, operation)

    (other,) = set(marks(tmp_path)) - {".fresh", ".left"}
    monkeypatch.setattr(fcntl, "flock", note)
    Presence(Workspace(tmp_path)).close()
    assert other in tried
    assert not {".fresh", ".left"} & set(tried)
    with_another.close()
    assert marks(tmp_path) == [".fresh"]
