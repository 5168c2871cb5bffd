"""SIGINT, SIGTERM and SIGHUP as one orderly interruption; repeated, as an escalation."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):  # noqa: N818  # a request, like its base
    """The user or the system asked this command to stop."""


class Interruption:
    """What a second signal does. Set ``again`` once there is something to escalate."""

    def __init__(self) -> None:
        self.count = 0
        self.again: Callable[[], None] = lambda: None


@contextmanager
def interruptible() -> Generator[Interruption]:
    """Raise Interrupted in the main thread at the first signal; call ``again`` at every later one."""
    state = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        state.count += 1
        if state.count == 1:
            raise Interrupted(signal.Signals(number).name)
        state.again()

    before = {number: signal.signal(number, handle) for number in _HANDLED}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
