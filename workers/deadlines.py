"""How long each operation of a claim may take at most: beyond it the claim is wedged, and is not renewed."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from workers.checkout.bash import COMMANDS_AT_ONCE

MARGIN_SECONDS: Final = 60.0
"""On top of what an operation allows itself: ending processes, a busy machine, a slow file system."""

COMMAND_SECONDS: Final = 600.0
"""The longest timeout that a call of ``bash`` may ask for; no other local tool takes longer."""


class Deadlines:
    """The open operations of one claim. ``overdue`` may be called on any thread, the rest on the event loop.

    Every operation bounds itself; these bounds lie beyond, for what does not keep its own: a hung file system, a
    library that waits for ever, a defect. Between two operations a claim may take ``pause_seconds``.

    Args:
        answer_seconds: Longest time of one model request.
        pause_seconds: Longest time without any operation: writes to the coordinator and their retries.
        margin_seconds: Added to every bound.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self,
        *,
        answer_seconds: float,
        pause_seconds: float,
        margin_seconds: float = MARGIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._pause_seconds = pause_seconds
        self._margin_seconds = margin_seconds
        self._clock = clock
        self._open: dict[object, tuple[str, float]] = {}
        self._pause_until = self._at(pause_seconds)

    @contextmanager
    def answer(self) -> Generator[None]:
        """Around one model request."""
        with self._within("a model request", self._answer_seconds):
            yield

    @contextmanager
    def call(self, tool: str, beside: int = 1) -> Generator[None]:
        """Around one local call; ``beside`` calls of this answer, itself included, may wait for each other's slots."""
        rounds = 1 + (beside - 1) // COMMANDS_AT_ONCE
        with self._within(f"a call of {tool}", COMMAND_SECONDS * rounds):
            yield

    def overdue(self) -> str | None:
        """What has gone beyond its bound, for an operator; None while everything may still be in order."""
        now = self._clock()
        running = tuple(self._open.values())
        late = next((what for what, until in running if now > until), None)
        if late is not None:
            return late
        return "the work between two operations" if not running and now > self._pause_until else None

    @contextmanager
    def _within(self, what: str, seconds: float) -> Generator[None]:
        operation = object()
        self._open[operation] = (what, self._at(seconds))
        try:
            yield
        finally:
            # First: with nothing open and an old pause, another thread would see a claim that is overdue.
            self._pause_until = self._at(self._pause_seconds)
            del self._open[operation]

    def _at(self, seconds: float) -> float:
        return self._clock() + seconds + self._margin_seconds
