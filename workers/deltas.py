"""Streamed text on its way to viewers, over Redis pub/sub. Losing it harms nothing: the log holds the answer.

Each piece says how many characters of its request came before it, so that a viewer sees what it missed.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from team.model.claims import Claim

_log = structlog.stdlib.get_logger(__name__)

_COALESCE_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 1.0
# What one request may leave unpublished while Redis is away; viewers fall back to the committed answer.
_MAX_WAITING_CHARACTERS: Final = 65_536

Stream = tuple[str, str, int, int, int]


class Deltas:
    """One publisher per worker. ``push`` never waits and never fails."""

    def __init__(self, url: str, key_prefix: str) -> None:
        self._redis: Any = redis.asyncio.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # untyped library
            url, socket_timeout=2, socket_connect_timeout=2
        )
        self._prefix = key_prefix
        self._waiting: dict[Stream, list[str]] = {}
        self._sizes: dict[Stream, int] = {}
        self._offsets: dict[Stream, int] = {}
        self._arrived = asyncio.Event()
        self._failing = False
        self._task = asyncio.create_task(self._publish_all(), name="deltas")

    def writer(self, claim: Claim, step: int, attempt: int) -> Callable[[str], None]:
        """A callback for the text of one model request."""
        stream = (claim.session_id, claim.turn_id, claim.epoch, step, attempt)
        written = 0

        def write(text: str) -> None:
            nonlocal written
            self._push(stream, text, written)
            written += len(text)

        return write

    async def close(self) -> None:
        """Publish what waits, once, and disconnect."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._failing:
            await self._flush()
        await self._redis.aclose()

    def _push(self, stream: Stream, text: str, offset: int) -> None:
        size = self._sizes.get(stream, 0) + len(text)
        if not text or size > _MAX_WAITING_CHARACTERS:
            return
        self._offsets.setdefault(stream, offset)
        self._waiting.setdefault(stream, []).append(text)
        self._sizes[stream] = size
        self._arrived.set()

    async def _publish_all(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(_COALESCE_SECONDS)
            self._arrived.clear()
            await self._flush()
            if self._failing:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _flush(self) -> None:
        waiting, offsets = self._waiting, self._offsets
        self._waiting, self._sizes, self._offsets = {}, {}, {}
        if not waiting:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for stream, texts in waiting.items():
            session, turn, epoch, step, attempt = stream
            delta = {"turnId": turn, "epoch": epoch, "step": step, "attempt": attempt, "offset": offsets[stream]}
            delta["text"] = "".join(texts)
            pipeline.publish(f"{self._prefix}delta:{session}", json.dumps(delta))
        try:
            await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            if not self._failing:
                _log.warning("deltas are not published", reason=type(error).__name__)
            self._failing = True
        else:
            self._failing = False
