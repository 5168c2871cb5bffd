"""One claim while this worker executes it: its task, its clock, and why it was stopped."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import structlog

from team.model.claims import Claim, Held
from workers.checkout import Guard
from workers.deadlines import Deadlines
from workers.steps import describe, ids_of

_log = structlog.stdlib.get_logger(__name__)

Stop = Literal["cancelled", "lapsed", "overdue"]


class Execution:
    """Runs ``work`` as a task until it ends, is cancelled by the coordinator, lapses, or goes beyond a deadline.

    Args:
        claim: What it runs for.
        work: The turn; its result names how the claim ended.
        guard: Ends the processes of the claim when it is not renewed.
        valid_until: Until when the claim may act, of ``time.monotonic()``.
        deadlines: The bounds of the operations of ``work``.
        wedged: Called once, on the event loop, with what went beyond its bound.
        step: The step that ``work`` is at, for the log.
    """

    def __init__(
        self,
        claim: Claim,
        work: Coroutine[Any, Any, str],
        *,
        guard: Guard,
        valid_until: float,
        deadlines: Deadlines,
        wedged: Callable[[str], None],
        step: Callable[[], int],
    ) -> None:
        self.held = Held(turn_id=claim.turn_id, epoch=claim.epoch)
        self._guard = guard
        self._deadlines = deadlines
        self._wedged = wedged
        self._valid_until = valid_until
        self._late = False
        self._loop = asyncio.get_running_loop()
        self._stopped: Stop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bound = _log.bind(**ids_of(claim))
        self._step = step
        self._began = time.monotonic()
        self._name = claim.execution
        self._guard.renewed(self._name, valid_until - self._began)
        self.task = asyncio.ensure_future(work)
        self._expect(valid_until)
        self._log.info("turn claimed")

    @property
    def _log(self) -> structlog.stdlib.BoundLogger:
        return self._bound.bind(step=self._step())

    def renewed(self, valid_until: float) -> None:
        """On the heartbeat's thread: the guard learns it first, whatever the event loop is doing."""
        self._valid_until = valid_until
        self._guard.renewed(self._name, valid_until - time.monotonic())
        self._loop.call_soon_threadsafe(self._expect, valid_until)

    def cancelled(self) -> None:
        """On the heartbeat's thread: the coordinator ended the turn."""
        self._loop.call_soon_threadsafe(self._stop, "cancelled")

    def overdue(self) -> bool:
        """On the heartbeat's thread: whether an operation went beyond its bound; the first such look stops the work."""
        if self._late or time.monotonic() >= self._valid_until:
            # Lapsed, as after a stop of the whole process: that says nothing about its operations.
            return self._late
        late = self._deadlines.overdue()
        if late is not None:
            # For good: the operation ends when it is cancelled, and the claim must not be renewed after that.
            self._late = True
            self._loop.call_soon_threadsafe(self._expire, late)
        return self._late

    async def ended(self) -> str:
        """Wait for the end of the work; how it ended, with what stopped it before its own word."""
        try:
            await asyncio.wait({self.task})
        finally:
            self.task.cancel()
        if self._stopped is not None and self.task.cancelled():
            ending = str(self._stopped)
        elif self.task.cancelled():
            ending = "dropped"
        elif (error := self.task.exception()) is not None:
            self._log.error("claim dropped, its lease ends by itself", **describe(error))
            ending = "dropped"
        else:
            ending = self.task.result()
        self._log.info("claim over", ending=ending, seconds=round(time.monotonic() - self._began, 3))
        return ending

    def close(self) -> None:
        """No timer stays behind."""
        if self._timer is not None:
            self._timer.cancel()

    def _expect(self, valid_until: float) -> None:
        self.close()
        if self.task.done():
            return
        # The loop's clock is time.monotonic.
        self._timer = self._loop.call_at(valid_until, self._stop, "lapsed")

    def _expire(self, late: str) -> None:
        if self.task.done() or self._stopped is not None:
            return
        self._log.error("operation beyond its bound, claim not renewed", operation=late)
        self._stop("overdue")
        self._wedged(late)

    def _stop(self, why: Stop) -> None:
        if self.task.done() or self._stopped is not None:
            return
        self._stopped = why
        self._log.warning("turn stopped", why=why)
        self.task.cancel()
