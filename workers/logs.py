"""Logging of a worker process: one line of key=value pairs per event, to stderr, never message text or secrets."""

import logging
import sys
import warnings
from typing import Final

import structlog
from celery.exceptions import CPendingDeprecationWarning

# Per task and per request lines would tell the ids that the turn's own lines tell, twice and at length.
_QUIET: Final = (
    "celery.worker.strategy",
    "celery.app.trace",
    "httpx2",
    "httpcore2",
    "kombu",
    "amqp",
    "openai",
    "anthropic",
)


def configure(*, worker: str, level: int = logging.INFO) -> None:
    """Send structlog and the standard library's logging to stderr in one form; ``worker`` is on every line."""

    def named(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {"worker": worker, **event}

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event", "worker"]),
            ],
        )
    )
    # About late acknowledgements, which are off, at every loss of the broker.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
