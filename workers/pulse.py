"""Whether the event loop of this worker still moves. Without it the heartbeat's thread would renew claims for ever."""

import asyncio
import faulthandler
import sys
import threading
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.5


class Pulse:
    """Watches a loop from a thread of its own.

    Time counts only while this thread runs: a process that was stopped and continued has not stalled.

    Args:
        loop: The event loop to watch; it must be running when ``start`` is called.
        stalled: Called once, on the watching thread, with the seconds without a sign of life.
        within: Seconds that the loop may stand still.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stalled: Callable[[float], None], *, within: float) -> None:
        self._loop = loop
        self._stalled = stalled
        self._within = within
        self._beats = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._beat)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._ending.set()
        faulthandler.cancel_dump_traceback_later()

    def _beat(self) -> None:
        self._beats += 1
        if not self._ending.is_set():
            self._loop.call_later(LOOK_SECONDS, self._beat)

    def _run(self) -> None:
        seen, still = -1, 0.0
        while not self._ending.wait(LOOK_SECONDS):
            # A thread that keeps the interpreter to itself stops this one too: then only the C library is left to act.
            faulthandler.dump_traceback_later(2 * self._within, exit=True, file=sys.__stderr__ or 2)
            beats = self._beats
            still = 0.0 if beats != seen else still + LOOK_SECONDS
            seen = beats
            if still >= self._within:
                self._stalled(still)
                return
        faulthandler.cancel_dump_traceback_later()
