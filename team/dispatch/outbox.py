"""What happens after a commit: edges and activity to Redis pub/sub, queued turns to Celery.

All are hints; SQL holds the truth.
"""

import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, cast

import redis
import structlog
from kombu.exceptions import OperationalError

from config import faults
from config.broker import redis_url
from config.celery import TURN_TASK, celery_app
from config.settings import Settings
from team.log.transaction import Effects, Queued
from team.model.ids import TeamId

_log = structlog.get_logger(__name__)

CAPACITY: Final = 10_000
SAFE_POLICY: Final = "noeviction"
PAUSE_SECONDS: Final = 1.0
"""How long hints are dropped after the broker failed once: the sweep sends them again."""


def edge_channel(key_prefix: str) -> str:
    """The pub/sub channel of all edges; a message is the Team's id."""
    return f"{key_prefix}edge"


def activity_channel(key_prefix: str, team_id: str) -> str:
    """The channel on which viewers of one Team hear that it may look different."""
    return f"{key_prefix}activity:{team_id}"


def broker_client(settings: Settings) -> redis.Redis:
    """A Redis client with bounded waits. Raises ValueError for a malformed URL."""
    return redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves keyword types open
        redis_url(settings.broker_url),
        socket_timeout=5,
        socket_connect_timeout=5,
        socket_keepalive=True,
        health_check_interval=5,
        decode_responses=True,
    )


def eviction_policy(client: redis.Redis) -> str | None:
    """What the server does when its memory is full; None when it does not tell. Raises RedisError."""
    try:
        info = client.info("memory")  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves types open
    except redis.ResponseError:
        return None  # a user without the right to ask
    policy = cast("dict[str, object]", info).get("maxmemory_policy")
    return None if policy is None else str(policy)


@dataclass
class Outbox:
    """Publishes effects on a thread of its own, so that no caller waits for the broker.

    A failing or frozen broker costs nothing but latency: its hints are dropped, and the sweep repeats them.
    """

    settings: Settings
    _pending: "queue.Queue[Effects | None]" = field(default_factory=lambda: queue.Queue(CAPACITY))
    _thread: threading.Thread | None = None
    _paused_until: float = 0.0

    def __post_init__(self) -> None:
        self._redis = broker_client(self.settings)
        self._celery = celery_app(self.settings.broker_url or "", self.settings.key_prefix)

    def __call__(self, effects: Effects) -> None:
        """Take the effects of a committed transaction; returns at once."""
        if not effects.edges and not effects.queued and not effects.activity:
            return
        try:
            self._pending.put_nowait(effects)
        except queue.Full:
            _log.warning("hints dropped", reason="the outbox is full", edges=len(effects.edges))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish what is waiting and end the thread."""
        self._pending.put(None)
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        checked = self._check_policy()
        while (effects := self._pending.get()) is not None:
            checked = checked or self._check_policy()
            if time.monotonic() < self._paused_until:
                continue
            try:
                faults.reached("before-publish")
                self.publish_changes(effects.edges, effects.activity)
                self.publish_turns(effects.queued)
                faults.reached("after-publish")
            except (redis.RedisError, OperationalError, OSError) as error:
                self._paused_until = time.monotonic() + PAUSE_SECONDS
                _log.warning("broker unreachable", error=type(error).__name__)
            except Exception:
                _log.exception("hint not published")

    def _check_policy(self) -> bool:
        """Warn of a broker that may drop the queue; False while it does not answer."""
        if time.monotonic() < self._paused_until:
            return False
        try:
            policy = eviction_policy(self._redis)
        except (redis.RedisError, OSError):
            return False
        if policy not in (None, SAFE_POLICY):
            _log.warning(
                "broker may drop queued hints",
                policy=policy,
                advice="set its maxmemory-policy to noeviction; accepted work is in SQL and is sent again, but late",
            )
        return True

    def publish_changes(self, edges: Iterable[TeamId], activity: Iterable[TeamId]) -> None:
        """Tell every coordinator which Teams have changed, and viewers which may look different, in one round trip.

        Raises RedisError.
        """
        prefix = self.settings.key_prefix
        with self._redis.pipeline(transaction=False) as pipeline:  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves types open
            for team_id in edges:
                pipeline.publish(edge_channel(prefix), team_id)  # pyright: ignore[reportUnknownMemberType] -- the same
            for team_id in activity:
                pipeline.publish(activity_channel(prefix, team_id), "")  # pyright: ignore[reportUnknownMemberType] -- the same
            pipeline.execute()  # pyright: ignore[reportUnknownMemberType] -- the same

    def publish_turns(self, queued: Iterable[Queued]) -> None:
        """Send one task per queued turn. Raises OperationalError when the broker is away."""
        for turn in queued:
            self._celery.send_task(  # pyright: ignore[reportUnknownMemberType] -- Celery's signature is untyped
                TURN_TASK,
                args=(turn.turn_id,),
                queue=turn.queue,
                argsrepr=f"(team={turn.team_id}, member={turn.member}, turn={turn.turn_id})",
                kwargsrepr="{}",
                ignore_result=True,
                retry=False,
            )

    def queue_length(self, queue_name: str) -> int:
        """Messages that wait in the broker. Raises RedisError."""
        length = self._redis.llen(f"{self.settings.key_prefix}{queue_name}")  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves types open
        assert isinstance(length, int)
        return length
