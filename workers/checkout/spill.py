"""The files to which commands spill their long output: one directory per turn, bounded all together."""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from workers.checkout.paths import Workspace

SPILL: Final = "spill"
KEPT_BYTES: Final = 1024 * 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class _Turn:
    changed_ns: int
    name: str
    size: int


def prune_spill(workspace: Workspace, spare: str, kept_bytes: int | None = None) -> None:
    """Remove the oldest turns' files until at most ``kept_bytes`` are left; those of ``spare`` stay.

    Several workers may do it at once. A directory that cannot be read or removed is left.
    """
    left = KEPT_BYTES if kept_bytes is None else kept_bytes
    with suppress(OSError):
        spill = workspace.data_directory(SPILL)
        try:
            turns = sorted(_turns(spill), key=lambda turn: turn.changed_ns, reverse=True)
            for turn in turns:
                left -= turn.size
                if left < 0 and turn.name != spare:
                    _remove(spill, turn.name)
        finally:
            os.close(spill)


def _turns(spill: int) -> list[_Turn]:
    turns: list[_Turn] = []
    for name in os.listdir(spill):
        with suppress(OSError):
            directory = os.open(name, _DIRECTORY, dir_fd=spill)
            try:
                with os.scandir(directory) as entries:
                    size = sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
                turns.append(_Turn(os.fstat(directory).st_mtime_ns, name, size))
            finally:
                os.close(directory)
    return turns


def _remove(spill: int, name: str) -> None:
    with suppress(OSError):
        directory = os.open(name, _DIRECTORY, dir_fd=spill)
        try:
            for file in os.listdir(directory):  # noqa: PTH208  # an open directory has no path
                with suppress(OSError):
                    os.unlink(file, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=spill)
