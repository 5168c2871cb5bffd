"""Heartbeats of the claims that this worker executes, from a thread of their own.

A thread, because building a large model request occupies the event loop for longer than a lease may wait.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import httpx2
import structlog

from config.profiles import DEFAULT_QUEUE
from team.model.claims import HeartbeatRequest, HeartbeatResult, Held, WorkerHello
from team.model.errors import TeamError
from workers.client import bearer, decode, tls

_log = structlog.stdlib.get_logger(__name__)


def renewal_bound(lease_seconds: float) -> float:
    """Seconds after a renewal for which its claim may still act: less than the lease, for clocks and latency."""
    return max(lease_seconds - 3.0, lease_seconds * 0.8)


class Holder(Protocol):
    """One executing claim. Both methods are called on the heartbeat's thread."""

    @property
    def held(self) -> Held: ...

    def overdue(self) -> bool:
        """Whether an operation of it has gone beyond its bound: it is not renewed then, and stops itself."""
        ...

    def renewed(self, valid_until: float) -> None:
        """The claim may act until ``valid_until`` of ``time.monotonic()``."""
        ...

    def cancelled(self) -> None:
        """The claim is over: stop, then drop it with ``confirm``."""
        ...


class Heartbeat:
    """Lists exactly the held claims every ``heartbeat_seconds``, and hands the answers to their holders."""

    def __init__(
        self,
        *,
        url: str,
        token: str,
        worker: str,
        hello: WorkerHello,
        slots: Callable[[], int],
        queues: tuple[str, ...] = (DEFAULT_QUEUE,),
        patience: float = 5.0,
    ) -> None:
        self._worker = worker
        self._period = hello.heartbeat_seconds
        self._bound = renewal_bound(hello.lease_seconds)
        self._slots = slots
        self._queues = queues
        read_seconds = min(patience, hello.lease_seconds / 3)
        self._http = httpx2.Client(
            base_url=url,
            headers=bearer(token),
            verify=tls(url),
            trust_env=False,
            timeout=httpx2.Timeout(read_seconds, connect=min(3.0, read_seconds)),
        )
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, int], Holder] = {}
        self._stopped: dict[tuple[str, int], Held] = {}
        self._wake = threading.Event()
        self._ending = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after a last heartbeat which delivers open confirmations."""
        self._ending = True
        self._wake.set()
        self._thread.join(timeout)

    def hold(self, holder: Holder) -> None:
        """List this claim from now on."""
        with self._lock:
            self._holders[holder.held.turn_id, holder.held.epoch] = holder

    def drop(self, holder: Holder, *, confirm: bool) -> None:
        """List it no longer; ``confirm`` tells the coordinator that nothing of it is left."""
        with self._lock:
            self._holders.pop((holder.held.turn_id, holder.held.epoch), None)
        if confirm:
            self.confirm(holder.held)

    def confirm(self, held: Held) -> None:
        """Tell the coordinator at once, and until it has heard it, that nothing of this claim is left."""
        with self._lock:
            self._stopped[held.turn_id, held.epoch] = held
        self._wake.set()

    def _run(self) -> None:
        while not self._ending:
            try:
                self._beat()
            except Exception:  # noqa: BLE001  # logged; see below
                # Without this thread every claim of the worker would lapse; one bad beat costs one period.
                _log.exception("heartbeat failed", worker=self._worker)
            self._wake.wait(self._period)
            self._wake.clear()
        with self._lock:
            unconfirmed = bool(self._stopped)
        if unconfirmed:
            self._beat()
        self._http.close()

    def _beat(self) -> None:
        with self._lock:
            holders = dict(self._holders)
            stopped = dict(self._stopped)
        holders = {key: holder for key, holder in holders.items() if not holder.overdue()}
        request = HeartbeatRequest(
            worker=self._worker,
            claims=tuple(holder.held for holder in holders.values()),
            stopped=tuple(stopped.values()),
            slots=self._slots(),
            queues=self._queues,
        )
        # The lease starts when the coordinator processes the request, which is never before it was sent.
        sent_at = time.monotonic()
        try:
            result = decode(self._http.post("/worker/heartbeat", content=request.to_json()), HeartbeatResult)
        except (httpx2.TransportError, TeamError) as error:
            # Nothing else to do: a claim whose renewals stay away lapses by its own clock.
            if not self._failing:
                reason = error.message if isinstance(error, TeamError) else type(error).__name__
                _log.warning("heartbeat not answered", worker=self._worker, reason=reason, claims=len(holders))
            self._failing = True
            return
        if self._failing:
            _log.info("heartbeat answered again", worker=self._worker)
        self._failing = False
        with self._lock:
            for key in stopped:
                self._stopped.pop(key, None)
        for held in result.renewed:
            holder = holders.get((held.turn_id, held.epoch))
            if holder is not None:
                holder.renewed(sent_at + self._bound)
        for held in result.cancelled:
            holder = holders.get((held.turn_id, held.epoch))
            if holder is not None:
                holder.cancelled()
