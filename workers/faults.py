"""Points of the step loop at which a fault test may kill the worker; nothing happens unless settings ask."""

import os
import signal
from typing import Final

from team.model.errors import ConfigurationInvalid

POINTS: Final = (
    "after-claim",
    "before-answer-post",
    "after-answer-post",
    "in-tool",
    "after-intent",
    "before-result-post",
    "before-boundary",
    "after-boundary",
)

_armed: dict[str, int] = {}


def arm(spec: str | None) -> None:
    """Replace what is armed by ``NAME:NTH[,NAME:NTH]``; None disarms.

    Raises:
        ConfigurationInvalid: A name is unknown or a count is not a positive number.
    """
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
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
