"""Edges in: one subscriber per coordinator resolves parked waits and wakes blocking HTTP waits.

The subscriber resolves, never the committer directly, so that one coordinator or ten behave alike.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import redis
import structlog

from config.settings import Settings
from team.dispatch.outbox import broker_client, edge_channel
from team.model.errors import StoreUnavailable
from team.model.ids import TeamId
from team.service.recovery import RecoveryService

_log = structlog.get_logger(__name__)

RECONNECT_SECONDS = 0.5


@dataclass
class EdgeSignals:
    """Lets coroutines of this process wait for the next edge of a Team."""

    _waiting: dict[TeamId, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def notify(self, team_id: TeamId) -> None:
        with self._lock:
            waiting = self._waiting.pop(team_id, [])
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    @asynccontextmanager
    async def listening(self, team_id: TeamId) -> AsyncGenerator[asyncio.Event]:
        """An event that the next edge of the Team sets; edges from here on are heard."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting[team_id].append(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                if entry in self._waiting.get(team_id, []):
                    self._waiting[team_id].remove(entry)
                    if not self._waiting[team_id]:
                        del self._waiting[team_id]


class EdgeSubscriber:
    """Listens on pub/sub and wakes Teams; edges of one Team that arrive together cost one transaction."""

    def __init__(self, settings: Settings, recovery: RecoveryService, signals: EdgeSignals) -> None:
        self._settings, self._recovery, self._signals = settings, recovery, signals
        self._changed: set[TeamId] = set()
        self._wakeup = threading.Condition()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="edge-listener", daemon=True),
            threading.Thread(target=self._resolve, name="edge-resolver", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._wakeup:
            self._wakeup.notify_all()

    def changed(self, team_id: TeamId) -> None:
        """An edge of this Team was heard of."""
        with self._wakeup:
            self._changed.add(team_id)
            self._wakeup.notify_all()

    def _listen(self) -> None:
        reported = False
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._follow()
            except (redis.RedisError, OSError) as error:
                reported &= time.monotonic() - started < RECONNECT_SECONDS
                if not reported:
                    _log.warning("edge subscription lost", error=type(error).__name__)
                reported = True
                self._stopping.wait(RECONNECT_SECONDS)
            except Exception:
                # Whatever came over the channel: this thread is the only ear of its coordinator.
                _log.exception("edge subscription failed")
                self._stopping.wait(RECONNECT_SECONDS)

    def _follow(self) -> None:
        with broker_client(self._settings) as client, client.pubsub(ignore_subscribe_messages=True) as subscription:  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves types open
            subscription.subscribe(edge_channel(self._settings.key_prefix))  # pyright: ignore[reportUnknownMemberType] -- the same
            while not self._stopping.is_set():
                message = subscription.get_message(timeout=1.0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- the same
                if message is not None:
                    self.changed(TeamId(str(message["data"])))  # pyright: ignore[reportUnknownArgumentType] -- the same

    def _resolve(self) -> None:
        while True:
            with self._wakeup:
                self._wakeup.wait_for(lambda: self._changed or self._stopping.is_set())
                if self._stopping.is_set():
                    return
                team_ids, self._changed = self._changed, set()
            for team_id in team_ids:
                try:
                    self._signals.notify(team_id)
                    self._recovery.wake(team_id)
                except StoreUnavailable as error:
                    _log.warning("edge not resolved yet", team=team_id, error=error.message)
                except Exception:
                    _log.exception("edge not resolved", team=team_id)
