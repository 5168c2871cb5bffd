"""The verdicts of the end-to-end self check."""

from collections.abc import Callable

import pytest

from tests.support.waiting import wait_until
from workers.liveness import BrokerAway, Liveness
from workers.slots import Slots


def never(_reason: str) -> None:
    raise AssertionError("nobody is deaf here")


def away(_nonce: str) -> None:
    raise BrokerAway("ConnectionError")


def test_a_ping_that_arrives_means_alive() -> None:
    def publish(nonce: str) -> None:
        liveness.answered(nonce)

    liveness = Liveness(publish, Slots(1), never, every=1.0, within=5.0)
    assert liveness.check() == "alive"


def test_a_ping_that_stays_away_means_deaf() -> None:
    assert Liveness(lambda nonce: None, Slots(1), never, every=1.0, within=0.05).check() == "deaf"


def test_an_old_ping_proves_nothing() -> None:
    sent: list[str] = []

    def publish(nonce: str) -> None:
        if sent:
            liveness.answered(sent[0])
        sent.append(nonce)

    liveness = Liveness(publish, Slots(1), never, every=1.0, within=0.05)
    assert [liveness.check(), liveness.check()] == ["deaf", "deaf"]


def test_a_worker_without_a_free_slot_is_not_judged() -> None:
    slots = Slots(1)
    with slots.taken():
        assert Liveness(lambda nonce: None, slots, never, every=1.0, within=0.05).check() == "unknown"


def test_a_worker_that_was_full_for_a_moment_is_not_judged() -> None:
    slots = Slots(1)

    def publish(_nonce: str) -> None:
        with slots.taken():
            pass

    assert Liveness(publish, slots, never, every=1.0, within=0.3).check() == "unknown"


def test_a_broker_that_is_away_gives_no_verdict() -> None:
    assert Liveness(away, Slots(1), never, every=1.0, within=0.05).check() == "broker-away"


def run(publish: Callable[[int, str, Liveness], None], deaf: Callable[[str], None]) -> Liveness:
    count = 0

    def numbered(nonce: str) -> None:
        nonlocal count
        count += 1
        publish(count, nonce, liveness)

    liveness = Liveness(numbered, Slots(1), deaf, every=0.01, within=0.05)
    liveness.start()
    return liveness


def test_two_failures_in_a_row_end_the_worker_once() -> None:
    reasons: list[str] = []
    run(lambda count, nonce, liveness: None, reasons.append)
    assert wait_until(lambda: reasons, "the verdict")[0].startswith("2 pings")


@pytest.mark.parametrize("between", ["alive", "broker-away"])
def test_a_failure_is_forgotten_when_the_next_check_is_another(between: str) -> None:
    reasons: list[str] = []
    checks: list[int] = []

    def publish(count: int, nonce: str, liveness: Liveness) -> None:
        checks.append(count)
        if count % 2:
            return
        if between == "alive":
            liveness.answered(nonce)
        else:
            away(nonce)

    liveness = run(publish, reasons.append)
    wait_until(lambda: len(checks) >= 6, "six checks")
    liveness.stop()
    assert reasons == []
