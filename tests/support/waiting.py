"""Waiting for a condition instead of sleeping."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], what: str, deadline: float = 10.0, *, every: float = 0.02) -> T:
    """Return the first truthy value of ``predicate``.

    Args:
        predicate: Called again and again; an exception from it ends the wait.
        what: What the test waits for, named in the failure.
        deadline: Seconds until the wait fails.
        every: Seconds between two calls.

    Raises:
        AssertionError: The deadline passed; the text names ``what`` and the last value.
    """
    end = time.monotonic() + deadline
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline:g} s for {what}; last value: {value!r}")
        time.sleep(every)


async def wait_until_async(
    predicate: Callable[[], Awaitable[T]], what: str, deadline: float = 10.0, *, every: float = 0.02
) -> T:
    """``wait_until`` with a coroutine function as predicate; it yields to the loop between two calls."""
    end = time.monotonic() + deadline
    while True:
        value = await predicate()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline:g} s for {what}; last value: {value!r}")
        await asyncio.sleep(every)
