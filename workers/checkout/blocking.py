"""Blocking work beside the event loop."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec, Protocol, TypeVar, runtime_checkable

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_SECONDS: Final = 20.0


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> object: ...


async def off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a thread.

    A cancelled caller waits for its end first: what it was doing is then done or not done, but not under way, and
    a result that can be closed is closed.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await until_done(task)
        if task.done() and not task.cancelled() and task.exception() is None:
            result: object = task.result()
            if isinstance(result, _Closable):
                result.close()
        raise


async def until_done(task: "asyncio.Future[Any]") -> None:
    """Wait for the end of ``task`` although the caller is being cancelled, once or again; bounded.

    After PATIENCE_SECONDS the wait ends all the same: a hung file system must not hang the worker.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not task.done() and time.monotonic() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=end - time.monotonic())
