"""What a coordinator does on its own: reap lost claims, expire waits, send due turns, wake what pub/sub missed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis
import structlog
from kombu.exceptions import OperationalError

from config.settings import Settings
from team.dispatch.outbox import Outbox
from team.model.errors import StoreUnavailable
from team.service.housekeeping import Housekeeping
from team.service.recovery import RecoveryService
from team.service.turns import TurnService

_log = structlog.get_logger(__name__)

DEADLINE_TICK_SECONDS = 0.25
MISSED_EDGE_SECONDS = 2.0
CREATION_SECONDS = 1.0
CLOCK_SECONDS = 1.0
FORGET_SECONDS = 300.0
WORKSPACE_SECONDS = 5.0
DISPATCH_BATCH = 200


@dataclass
class LeaseReaper:
    """Takes back claims whose lease ran out, unless this process itself was away.

    After a gap of more than a third of a lease on the monotonic clock (stopped process, database outage, restart) the
    heartbeats of that time were lost with it, so the reaper waits one full lease before it judges anybody.
    """

    turns: TurnService
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    _last_tick: float | None = None
    _hold_until: float = 0.0

    def tick(self) -> int:
        """Reap once; returns how many claims were taken back. Raises StoreUnavailable, which makes a gap."""
        now = self.clock()
        if self._last_tick is None or now - self._last_tick > self.lease_seconds / 3:
            self._hold_until = now + self.lease_seconds
        reaped = self.turns.reap() if now >= self._hold_until else 0
        self._last_tick = self.clock()
        return reaped


class Loops:
    """The periodic work of one coordinator, a thread each. Several coordinators may run them at once."""

    def __init__(
        self,
        settings: Settings,
        outbox: Outbox,
        turns: TurnService,
        recovery: RecoveryService,
        housekeeping: Housekeeping,
    ) -> None:
        self._outbox, self._recovery = outbox, recovery
        self._stopping = threading.Event()
        reaper = LeaseReaper(turns, settings.lease_seconds)
        jobs: list[tuple[str, float, Callable[[], object]]] = [
            ("reaper", min(1.0, settings.lease_seconds / 6), reaper.tick),
            ("deadlines", DEADLINE_TICK_SECONDS, recovery.expire_waits),
            ("creations", CREATION_SECONDS, recovery.settle_creations),
            ("clock", CLOCK_SECONDS, recovery.bring_back_times),
            ("workspace", WORKSPACE_SECONDS, turns.hello),
            ("housekeeping", FORGET_SECONDS, housekeeping.tidy),
        ]
        if settings.sweep_seconds > 0:
            jobs += [
                ("dispatch", settings.sweep_seconds, self.dispatch_due),
                ("missed-edges", max(MISSED_EDGE_SECONDS, settings.sweep_seconds), recovery.wake_missed),
            ]
        self._threads = [
            threading.Thread(target=self._run, args=job, name=f"loop-{job[0]}", daemon=True) for job in jobs
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def dispatch_due(self) -> int:
        """Send queued turns whose dispatch is due; returns how many.

        A queue of the broker that holds more messages than turns are queued is skipped: more hints would not help. So
        one that nobody serves, and that fills, delays no other.
        """
        queued = self._recovery.count_queued()
        short = [name for name, count in queued.items() if self._outbox.queue_length(name) <= count]
        if not short:
            return 0
        due = self._recovery.due_dispatches(DISPATCH_BATCH, short)
        sent = 0
        try:
            for turn in due:
                self._outbox.publish_turns((turn,))
                sent += 1
        finally:
            # What the broker did not take (it is full, or went away) was not sent: its back-off must not grow.
            self._recovery.not_dispatched(due[sent:])
        return sent

    def _run(self, name: str, period_seconds: float, job: Callable[[], object]) -> None:
        reported = False
        while not self._stopping.wait(period_seconds):
            try:
                job()
                reported = False
            except (StoreUnavailable, redis.RedisError, OperationalError, OSError) as error:
                if not reported:
                    _log.warning("loop cannot do its work", loop=name, error=type(error).__name__)
                reported = True
            except Exception:
                _log.exception("loop failed", loop=name)
