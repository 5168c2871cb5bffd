"""An end-to-end self check: a ping through the broker must reach this very worker.

A worker can lose its consumer after a broker fault and stay up, deaf. Nothing but a message that arrives proves
the opposite (Celery's own ``inspect ping`` comes over another channel).
"""

import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

import structlog

from workers.slots import Slots

_log = structlog.stdlib.get_logger(__name__)

FAILURES: Final = 2
_LOOK_SECONDS: Final = 0.1

Verdict = Literal["alive", "deaf", "unknown", "broker-away"]


class BrokerAway(Exception):  # noqa: N818  # a state of the surroundings that only the check below reads
    """The ping could not be published."""


class Liveness:
    """Checks in a thread of its own.

    Args:
        publish: Sends a ping with the given text to this worker; raises BrokerAway.
        slots: A worker whose slots are all taken cannot run a ping, and is not judged.
        deaf: Called once, with the reason, after two failures in a row.
        every: Seconds between two checks.
        within: Seconds in which a ping must arrive.
    """

    def __init__(
        self,
        publish: Callable[[str], None],
        slots: Slots,
        deaf: Callable[[str], None],
        *,
        every: float,
        within: float,
    ) -> None:
        self._publish = publish
        self._slots = slots
        self._deaf = deaf
        self._every = every
        self._within = within
        self._expected: str | None = None
        self._arrived = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No check counts any longer; does not wait for one that runs."""
        self._ending.set()

    def answered(self, nonce: str) -> None:
        """A ping arrived; an older one than the expected is ignored."""
        if nonce == self._expected:
            self._arrived.set()

    def _run(self) -> None:
        failures = 0
        while not self._ending.wait(self._every):
            verdict = self.check()
            if self._ending.is_set():
                return
            if verdict == "deaf":
                failures += 1
                _log.warning("own ping did not arrive", failures=failures, within_seconds=self._within)
                if failures >= FAILURES:
                    self._deaf(
                        f"{failures} pings through the broker did not reach this worker within {self._within:g} s each"
                    )
                    return
            elif verdict != "unknown":
                failures = 0

    def check(self) -> Verdict:
        """One ping. ``unknown`` when no slot was free throughout."""
        saturations = self._slots.saturations
        if self._slots.free <= 0:
            return "unknown"
        nonce = secrets.token_hex(8)
        self._expected = nonce
        self._arrived.clear()
        try:
            self._publish(nonce)
        except BrokerAway as error:
            _log.info("broker away, no ping", reason=str(error))
            return "broker-away"
        end = time.monotonic() + self._within
        while time.monotonic() < end and not self._ending.is_set():
            if self._arrived.wait(_LOOK_SECONDS):
                return "alive"
            if self._slots.saturations != saturations:
                return "unknown"
        return "deaf"
