"""Celery's consumer, but one that looks for its broker every second."""

from typing import Any, Final

import structlog
from celery.worker import consumer as celery_consumer
from celery.worker.state import maybe_shutdown

_log = structlog.stdlib.get_logger(__name__)

_EVERY_SECONDS: Final = 1.0


class Consumer(celery_consumer.Consumer):
    """Named by the setting ``worker_consumer``.

    Celery itself waits two seconds longer after each failed attempt, up to half a minute, and has no setting for it:
    after an outage of a minute the worker would stay idle for as long as half a minute beside a sound broker.
    """

    def ensure_connected(self, conn: Any) -> Any:
        """Wait until ``conn`` is connected, for ever; a shutdown ends the wait."""
        waiting = False

        def failed(error: BaseException, _interval: float) -> None:
            nonlocal waiting
            if not waiting:
                _log.warning("waiting for the broker", url=conn.as_uri(), reason=type(error).__name__)
            waiting = True

        conn.ensure_connection(
            failed,
            interval_start=_EVERY_SECONDS,
            interval_step=0,
            interval_max=_EVERY_SECONDS,
            callback=maybe_shutdown,
        )
        return super().ensure_connected(conn)
