"""Why a model request failed, and how long to wait before the next try. Pure."""

import random
from typing import Final, Literal

from config.settings import settings

FailureKind = Literal[
    "transient",
    "rate-limit",
    "auth",
    "context-length",
    "quota",
    "not-found",
    "rejected",
    "script",
]

_CODES: Final[dict[str, str]] = {"transient": "provider", "rejected": "provider"}
_RETRYABLE: Final = frozenset({"transient", "rate-limit"})

FIRST_DELAY_SECONDS: Final = 1.0
LONGEST_DELAY_SECONDS: Final = 60.0
LONGEST_RETRY_AFTER_SECONDS: Final = 3600.0
MAX_MESSAGE_LENGTH: Final = 600


class ModelFailure(Exception):  # noqa: N818  # its name on both sides of the step loop
    """One request that gave no complete answer; nothing of it may be used.

    It never leaves the worker as an HTTP error: the step loop waits and asks again, or ends the turn with ``code``
    and ``message``.

    Attributes:
        kind: What went wrong.
        code: The stable code of a turn's end: auth, context-length, quota, rate-limit, not-found, provider, script.
        message: One or two sentences for a person; never a key or a request's text.
        retry_after_seconds: How long the provider asked to wait, if it said so.
        retryable: Whether the same request may succeed later.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.code = _CODES.get(kind, kind)
        self.message = message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + "…"
        self.retry_after_seconds = retry_after_seconds
        self.retryable = kind in _RETRYABLE if retryable is None else retryable


def retry_delay_seconds(
    failure: ModelFailure, attempt: int, *, attempts: int | None = None, jitter: float | None = None
) -> float | None:
    """Seconds to wait before the next try, or None to give up.

    The delay doubles from one second to a minute and is shortened by up to a half, so that members that failed
    together do not ask together. A Retry-After is never undercut; one of more than an hour means giving up.

    Args:
        failure: What the last try raised.
        attempt: How many tries have failed, from 1.
        attempts: Tries in all; default ``Settings.provider_attempts``.
        jitter: 0 for the full delay to 1 for half of it; default random.
    """
    limit = settings().provider_attempts if attempts is None else attempts
    if not failure.retryable or attempt >= limit:
        return None
    asked = failure.retry_after_seconds or 0.0
    if asked > LONGEST_RETRY_AFTER_SECONDS:
        return None
    share = random.random() if jitter is None else jitter  # noqa: S311  # spreads load, guards nothing
    full = min(FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 32), LONGEST_DELAY_SECONDS)
    return max(full * (1.0 - share / 2.0), asked)
