"""Points of worker and coordinator at which a fault test may kill the process; nothing happens unless settings ask."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from team.model.errors import ConfigurationInvalid

WORKER_POINTS: Final = (
    "after-claim",
    "before-answer-post",
    "after-answer-post",
    "before-compact-post",
    "after-compact-post",
    "in-tool",
    "after-intent",
    "before-result-post",
    "before-boundary",
    "after-boundary",
    "at-turn-end",
)
COORDINATOR_POINTS: Final = ("before-commit", "after-commit", "before-publish", "after-publish", "in-workflow")
POINTS: Final = WORKER_POINTS + COORDINATOR_POINTS

_armed: dict[str, int] = {}
_directory: Path | None = None


def arm(spec: str | None, directory: Path | None = None) -> None:
    """Replace what is armed: by ``NAME:NTH[,NAME:NTH]``, and by any file NAME that appears in ``directory``.

    Of all processes that share the directory, the first at the point dies; the file is then called ``NAME.PID``.

    Raises:
        ConfigurationInvalid: A name is unknown or a count is not a positive number.
    """
    global _directory  # noqa: PLW0603  # what is armed belongs to the process, as a signal handler does
    _directory = directory
    _armed.clear()
    for item in (spec or "").split(","):
        if not item.strip():
            continue
        name, _, count = item.strip().partition(":")
        if name not in POINTS or not count.isdigit() or int(count) < 1:
            raise ConfigurationInvalid(f"TEAM_FAULT_POINTS: {item!r} is not NAME:NTH; names are {', '.join(POINTS)}")
        _armed[name] = int(count)


def reached(name: str) -> None:
    """Count one passage of ``name``; at the armed one this process gets SIGKILL."""
    if _directory is not None:
        with suppress(FileNotFoundError):
            (_directory / name).rename(_directory / f"{name}.{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
