"""The hand-over of a worker: it begins once, and after its limit no step is waited for any longer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DrainExpired(Exception):  # noqa: N818  # a control signal of the step loop, not an error that anybody reads
    """The limit passed; the work was cancelled and has ended."""


class Drain:
    """State of the hand-over, for the event loop's thread."""

    def __init__(self) -> None:
        self.begun = False
        self._expired = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        return self._expired.is_set()

    def begin(self, limit_seconds: float) -> None:
        """Begin, or shorten the limit of a hand-over that has begun."""
        self.begun = True
        if self._timer is not None:
            self._timer.cancel()
        if limit_seconds <= 0:
            self._expired.set()
        else:
            self._timer = asyncio.get_running_loop().call_later(limit_seconds, self._expired.set)

    async def bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, unless the limit passes first.

        Raises:
            DrainExpired: The limit passed: ``work`` was cancelled and has ended.
        """
        if self.expired:
            work.close()
            raise DrainExpired
        task = asyncio.ensure_future(work)
        expiry = asyncio.ensure_future(self._expired.wait())
        try:
            await asyncio.wait({task, expiry}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise DrainExpired
            return task.result()
        finally:
            expiry.cancel()
            await ended(task)


async def ended(task: "asyncio.Future[Any]") -> None:
    """Cancel ``task`` unless it is done, and wait until it has ended; its outcome is left to others.

    Being cancelled oneself meanwhile stays visible: ``wait`` raises for the waiter only.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen
