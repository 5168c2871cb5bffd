"""When a failed model request is tried again."""

import pytest

from config.settings import settings
from workers.models import ModelFailure, retry_delay_seconds
from workers.models.failure import MAX_MESSAGE_LENGTH, FailureKind


def delays(failure: ModelFailure, attempts: int, jitter: float) -> list[float | None]:
    return [retry_delay_seconds(failure, attempt, attempts=attempts, jitter=jitter) for attempt in range(1, attempts)]


def test_the_delay_doubles_up_to_a_minute() -> None:
    failure = ModelFailure("transient", "cut off")
    assert delays(failure, 10, 0.0) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_jitter_shortens_a_delay_by_at_most_a_half() -> None:
    failure = ModelFailure("transient", "cut off")
    assert delays(failure, 5, 1.0) == [0.5, 1, 2, 4]
    for attempt in range(1, 40):
        full = retry_delay_seconds(failure, attempt, attempts=100, jitter=0.0)
        drawn = retry_delay_seconds(failure, attempt, attempts=100)
        assert full is not None
        assert drawn is not None
        assert full / 2 <= drawn <= full


@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_a_retry_after_is_never_undercut(jitter: float) -> None:
    failure = ModelFailure("rate-limit", "slow down", retry_after_seconds=20)
    assert delays(failure, 8, jitter)[:4] == [20, 20, 20, 20]
    assert delays(failure, 8, 0.0)[5:] == [32, 60]


def test_a_retry_after_of_more_than_an_hour_gives_up() -> None:
    assert retry_delay_seconds(ModelFailure("rate-limit", "", retry_after_seconds=3600), 1) == 3600
    assert retry_delay_seconds(ModelFailure("rate-limit", "", retry_after_seconds=3601), 1) is None


def test_the_last_attempt_gives_up() -> None:
    """L01: bounded, then the turn ends visibly."""
    failure = ModelFailure("transient", "cut off")
    assert retry_delay_seconds(failure, 2, attempts=3) is not None
    assert retry_delay_seconds(failure, 3, attempts=3) is None
    assert retry_delay_seconds(failure, 4, attempts=3) is None


def test_the_number_of_attempts_is_the_deployments_by_default() -> None:
    failure = ModelFailure("transient", "cut off")
    limit = settings().provider_attempts
    assert retry_delay_seconds(failure, limit - 1) is not None
    assert retry_delay_seconds(failure, limit) is None


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("transient", "provider", True),
        ("rate-limit", "rate-limit", True),
        ("auth", "auth", False),
        ("context-length", "context-length", False),
        ("quota", "quota", False),
        ("not-found", "not-found", False),
        ("rejected", "provider", False),
        ("script", "script", False),
    ],
)
def test_each_kind_has_the_code_that_ends_a_turn(kind: FailureKind, code: str, retryable: bool) -> None:
    failure = ModelFailure(kind, "a reason")
    assert (failure.code, failure.retryable, failure.message, str(failure)) == (code, retryable, "a reason", "a reason")
    assert (retry_delay_seconds(failure, 1) is not None) == retryable


def test_a_long_message_is_cut() -> None:
    """S06: error text does not grow without bound."""
    assert len(ModelFailure("rejected", "x" * 5000).message) == MAX_MESSAGE_LENGTH
