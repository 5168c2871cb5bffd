"""The bounds of a claim's operations, and the watch over a worker's event loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from team.model.tools import BashParameters
from tests.support.waiting import wait_until
from workers.checkout.bash import COMMANDS_AT_ONCE
from workers.deadlines import COMMAND_SECONDS, Deadlines
from workers.pulse import Pulse


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(answer_seconds=100, pause_seconds=10, margin_seconds=5, clock=clock)


def test_the_longest_command_is_the_longest_timeout_that_a_model_may_ask_for() -> None:
    longest = next(item.le for item in BashParameters.model_fields["timeout_ms"].metadata if hasattr(item, "le"))
    assert longest == COMMAND_SECONDS * 1000


def test_an_operation_is_overdue_after_its_own_bound_and_the_margin(clock: Clock, deadlines: Deadlines) -> None:
    with deadlines.answer():
        clock.now += 105
        assert deadlines.overdue() is None
        clock.now += 0.1
        assert deadlines.overdue() == "a model request"


def test_a_pause_between_operations_counts_from_the_end_of_the_last(clock: Clock, deadlines: Deadlines) -> None:
    with deadlines.call("grep"):
        clock.now += 300
    clock.now += 15
    assert deadlines.overdue() is None
    clock.now += 0.1
    assert deadlines.overdue() == "the work between two operations"


def test_of_several_operations_one_that_is_late_is_enough(clock: Clock, deadlines: Deadlines) -> None:
    with deadlines.call("bash"):
        clock.now += 600
        with deadlines.call("glob"):
            clock.now += 6
            assert deadlines.overdue() == "a call of bash"


def test_commands_that_wait_for_each_others_slots_have_longer(clock: Clock, deadlines: Deadlines) -> None:
    with deadlines.call("bash", COMMANDS_AT_ONCE + 1):
        clock.now += 2 * COMMAND_SECONDS
        assert deadlines.overdue() is None
        clock.now += 6
        assert deadlines.overdue() == "a call of bash"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def test_a_loop_that_stands_still_is_found_and_one_that_moves_is_not(loop: asyncio.AbstractEventLoop) -> None:
    told: list[float] = []
    pulse = Pulse(loop, told.append, within=2.0)
    release = threading.Event()
    pulse.start()
    try:
        # A loop that is busy again and again, but comes round, has not stalled.
        for _ in range(4):
            loop.call_soon_threadsafe(release.wait, 0.6)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
        assert not told
        loop.call_soon_threadsafe(release.wait)
        wait_until(lambda: told, "the stall to be found", 20)
    finally:
        release.set()
        pulse.stop()
    assert told == [pytest.approx(2.0, abs=0.6)]
