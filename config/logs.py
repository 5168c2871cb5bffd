"""Logging of every long-lived process: one line per event on stderr, with the same ids on both sides.

A line that concerns a turn names its ``team``, ``member``, ``session``, ``turn`` and ``step`` and the ``worker`` that
has it, as far as they are known where it is written. Never on a line: text of messages, arguments of tools, secrets.
"""

import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import structlog
from celery.exceptions import CPendingDeprecationWarning
from pydantic import SecretStr, ValidationError

from config.settings import Settings
from team.model.errors import TeamError
from team.model.events import first_fault

IDS: Final = ("team", "member", "session", "turn", "step", "worker")
"""The id set, in the order in which key=value lines show it."""

_FIRST: Final = ("timestamp", "level", "event", *IDS)

# Per task and per request lines would tell the ids that the turn's own lines tell, twice and at length.
_QUIET: Final = (
    "alembic",
    "celery.worker.strategy",
    "celery.app.trace",
    "httpx2",
    "httpcore2",
    "kombu",
    "amqp",
    "openai",
    "anthropic",
    "opentelemetry",
    "urllib3",
)

_MASK: Final = "***"
# Below this a "secret" is a word that ordinary lines contain.
_SHORTEST_SECRET: Final = 6
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^\s/@:'\"]*):[^\s/'\"]+@")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")

_Entry = structlog.typing.EventDict


def known_secrets(settings: Settings) -> set[str]:
    """Every secret that the settings hold, passwords of URLs included, as it is written and as it is meant."""
    found = {value.get_secret_value() for _, value in settings if isinstance(value, SecretStr)}
    for url in (settings.database_url, settings.broker_url, settings.model_base_url):
        found |= _passwords(url or "")
    return found


def _passwords(url: str) -> set[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()


class Mask:
    """Takes secrets out of lines: the given ones wherever they stand, and what looks like one in a URL or a header."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Longer ones first: one may be a part of another.
        self._known = sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True)

    def __call__(self, line: str) -> str:
        for secret in self._known:
            line = line.replace(secret, _MASK)
        line = _URL_PASSWORD.sub(rf"\1:{_MASK}@", line)
        return _BEARER.sub(rf"\1 {_MASK}", line)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Masks the finished line, so that nothing that any library puts into it gets around the mask."""

    def __init__(self, mask: Mask, **options: Any) -> None:
        super().__init__(**options)
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        return self._mask(super().format(record))


def detail_of(error: BaseException) -> str:
    """Of an error's text what cannot quote a message, an argument or a row."""
    if isinstance(error, ValidationError):
        return first_fault(error)
    if isinstance(error, TeamError):
        return f"{error.code}: {error.message}"
    return (error.strerror or "") if isinstance(error, OSError) else ""


def trace_of(error: BaseException) -> str:
    """An error and its causes with the places that they passed, and of their texts only ``detail_of``."""
    lines: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        detail = detail_of(current)
        lines += [f"{type(current).__name__}{detail and ': '}{detail}\n", *traceback.format_tb(current.__traceback__)]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if current is not None:
            lines.append("while handling ")
    return "".join(lines).rstrip()


def _without_values(_logger: object, _method: str, entry: _Entry) -> _Entry:
    """Replaces ``exc_info`` by the trace of the error."""
    error: Any = entry.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = cast("tuple[Any, ...]", error)[1]
    if isinstance(error, BaseException):
        entry["exception"] = trace_of(error)
    return entry


def configure(
    settings: Settings, *, worker: str | None = None, secrets: Iterable[str] = (), level: int = logging.INFO
) -> None:
    """Send structlog and the standard library's logging to stderr in the form of ``TEAM_LOG_FORMAT``.

    Every line is masked of the secrets of ``settings`` and of ``secrets``. May be called again, when more of them are
    known.

    Args:
        settings: Of the process; ``log_format`` and its secrets are used.
        worker: The name that every line of a worker bears. None: lines name the worker of their turn.
        secrets: More that must not appear, such as the provider keys.
        level: Below it nothing is written.
    """
    own: Mapping[str, object] = {} if worker is None else {"worker": worker}

    def named(_logger: object, _method: str, entry: _Entry) -> _Entry:
        return {**own, **entry}

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.processors.KeyValueRenderer(key_order=list(_FIRST), drop_missing=True)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Formatter(
            Mask((*known_secrets(settings), *secrets)),
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_values,
                renderer,
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
