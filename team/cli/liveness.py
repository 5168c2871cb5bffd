"""Finds workers that are alive and deaf: the process is there, but it takes nothing from the broker any more."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from config.celery import celery_app
from config.settings import Settings

_PERIOD_SECONDS: Final = 5.0
_REPLY_SECONDS: Final = 2.0
_MISSES: Final = 3
_STARTUP_SECONDS: Final = 20.0


class WorkerLiveness:
    """Asks every worker through the broker, from a thread of its own, for an answer of its consumer.

    A worker is deaf when it missed three rounds in a row in which the broker itself worked. Rounds in which the
    broker is away count for nobody: reconnecting is the worker's own affair, and it takes a few seconds.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._misses: dict[str, int] = {}
        self._ages: Mapping[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def deaf(self, ages: Mapping[str, float]) -> list[str]:
        """Names of workers to replace now; each is reported once. ``ages`` are seconds since each was started."""
        with self._lock:
            self._ages = dict(ages)
            found = [name for name, misses in self._misses.items() if misses >= _MISSES]
            for name in found:
                self._misses.pop(name)
            return found

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_SECONDS):
            answered = self._round()
            if answered is None:
                continue
            with self._lock:
                for name, age in self._ages.items():
                    if name in answered or age < _STARTUP_SECONDS:
                        self._misses.pop(name, None)
                    else:
                        self._misses[name] = self._misses.get(name, 0) + 1

    def _round(self) -> set[str] | None:
        """Names of the workers that answered, or None when the broker could not be used."""
        settings = self._settings
        app: Any = celery_app(settings.broker_url or "", settings.key_prefix, settings.queue_names[0])
        begun = time.monotonic()
        try:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=0, timeout=_REPLY_SECONDS)
                replies = app.control.ping(timeout=_REPLY_SECONDS, connection=connection)
        except (OSError, app.connection_for_write().connection_errors):
            return None
        finally:
            app.close()
        if time.monotonic() - begun > 3 * _REPLY_SECONDS:
            return None  # the machine or the broker was stalled: nothing can be said about the workers
        return {str(node).split("@", 1)[0] for reply in replies for node in reply}
