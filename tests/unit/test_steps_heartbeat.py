"""Heartbeats, the clock of a claim, and the slots, without Celery."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from team.model.claims import Claim, ClaimRequest, Held
from team.model.ids import TurnId
from tests.support.fake_coordinator import WORKER_TOKEN, FakeCoordinator, Fault
from tests.support.waiting import wait_until, wait_until_async
from workers.checkout import Guard
from workers.deadlines import Deadlines
from workers.execution import Execution
from workers.heartbeat import Heartbeat, renewal_bound
from workers.slots import Slots


class HolderDouble:
    def __init__(self, turn_id: str, epoch: int) -> None:
        self.held = Held(turn_id=TurnId(turn_id), epoch=epoch)
        self.valid_until: list[float] = []
        self.cancellations = 0
        self.late = False

    def overdue(self) -> bool:
        return self.late

    def renewed(self, valid_until: float) -> None:
        self.valid_until.append(valid_until)

    def cancelled(self) -> None:
        self.cancellations += 1


class GuardDouble:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def renewed(self, turn_id: str, seconds_valid: float) -> None:
        self.seconds.append(seconds_valid)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator(tmp_path, lease_seconds=2.0)
    fake.turns.heartbeat_seconds = 0.1
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def heartbeat(coordinator: FakeCoordinator) -> Iterator[Heartbeat]:
    beat = Heartbeat(
        url=coordinator.url, token=WORKER_TOKEN, worker="w", hello=coordinator.turns.hello(), slots=lambda: 3
    )
    beat.start()
    yield beat
    beat.stop()


def claimed(coordinator: FakeCoordinator) -> Claim:
    turn = coordinator.turns.begin("go", model="test:model")
    request = ClaimRequest(request_id=turn.turn_id, worker="w", turn_id=TurnId(turn.turn_id), queues=("turns",))
    claim = coordinator.turns.claim(request)
    assert claim is not None
    return claim


def executing(
    claim: Claim,
    work: Coroutine[Any, Any, str],
    guard: GuardDouble,
    valid_until: float,
    deadlines: Deadlines | None = None,
    wedged: Callable[[str], None] = lambda operation: None,
) -> Execution:
    return Execution(
        claim,
        work,
        guard=cast("Guard", guard),
        valid_until=valid_until,
        deadlines=deadlines or Deadlines(answer_seconds=60, pause_seconds=60),
        wedged=wedged,
        step=lambda: 1,
    )


@pytest.mark.parametrize(("lease", "bound"), [(15.0, 12.0), (60.0, 57.0), (5.0, 4.0), (1.0, 0.8)])
def test_the_bound_is_three_seconds_before_the_lease_ends_or_a_fifth_of_a_short_one(lease: float, bound: float) -> None:
    assert renewal_bound(lease) == pytest.approx(bound)


def test_a_held_claim_is_renewed_and_its_bound_counts_from_the_request(
    coordinator: FakeCoordinator, heartbeat: Heartbeat
) -> None:
    claim = claimed(coordinator)
    holder = HolderDouble(claim.turn_id, claim.epoch)
    heartbeat.hold(holder)

    wait_until(lambda: len(holder.valid_until) >= 2, "two renewals")

    assert holder.valid_until[0] <= time.monotonic() + renewal_bound(2.0)
    assert coordinator.turns.beats[-1].slots == 3
    assert coordinator.turns.turns[claim.turn_id].status == "running"


def test_a_cancelled_claim_is_told_and_its_stop_confirmed_without_waiting_for_the_period(
    coordinator: FakeCoordinator,
) -> None:
    hello = coordinator.turns.hello().model_copy(update={"heartbeat_seconds": 30.0})
    heartbeat = Heartbeat(url=coordinator.url, token=WORKER_TOKEN, worker="w", hello=hello, slots=lambda: 1)
    claim = claimed(coordinator)
    holder = HolderDouble(claim.turn_id, claim.epoch)
    coordinator.turns.interrupt(coordinator.turns.turns[claim.turn_id])
    heartbeat.hold(holder)
    heartbeat.start()
    try:
        wait_until(lambda: holder.cancellations, "the cancellation")
        heartbeat.drop(holder, confirm=True)
        wait_until(lambda: coordinator.turns.stopped == [holder.held], "the confirmation")
    finally:
        heartbeat.stop()


def test_a_confirmation_is_repeated_until_it_is_acknowledged(
    coordinator: FakeCoordinator, heartbeat: Heartbeat
) -> None:
    claim = claimed(coordinator)
    holder = HolderDouble(claim.turn_id, claim.epoch)
    fault = coordinator.fault(Fault("heartbeat", "refuse", times=3))
    heartbeat.hold(holder)
    heartbeat.drop(holder, confirm=True)

    wait_until(lambda: coordinator.turns.stopped, "the confirmation after three lost heartbeats")

    assert fault.used == 3
    assert all(not beat.claims for beat in coordinator.turns.beats if beat.stopped)


def test_the_last_heartbeat_of_a_worker_delivers_what_is_unconfirmed(coordinator: FakeCoordinator) -> None:
    hello = coordinator.turns.hello().model_copy(update={"heartbeat_seconds": 30.0})
    heartbeat = Heartbeat(url=coordinator.url, token=WORKER_TOKEN, worker="w", hello=hello, slots=lambda: 1)
    heartbeat.start()
    wait_until(lambda: coordinator.turns.beats, "the first heartbeat")
    holder = HolderDouble("turn-1", 1)
    heartbeat.drop(holder, confirm=True)
    heartbeat.stop()
    assert coordinator.turns.stopped == [holder.held]


def test_a_claim_without_renewals_lapses_and_its_work_is_cancelled(coordinator: FakeCoordinator) -> None:
    claim = claimed(coordinator)
    guard = GuardDouble()
    ended: list[str] = []

    async def work() -> str:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async def scenario() -> None:
        ended.append(await executing(claim, work(), guard, time.monotonic() + 0.05).ended())

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert ended == ["lapsed"]
    assert guard.seconds[0] == pytest.approx(0.05, abs=0.05)


def test_a_renewal_from_the_heartbeats_thread_keeps_the_claim_until_its_work_ends(
    coordinator: FakeCoordinator,
) -> None:
    claim = claimed(coordinator)
    guard = GuardDouble()

    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        first = loop.time() + 0.2
        lapsed = asyncio.Event()

        async def work() -> str:
            await lapsed.wait()
            return "ended"

        execution = executing(claim, work(), guard, first)
        threading.Thread(target=execution.renewed, args=(loop.time() + 60,)).start()
        # The work ends only after the first bound has passed, so an unmoved timer would have cancelled it.
        loop.call_at(first + 0.1, lapsed.set)
        return await execution.ended()

    assert asyncio.run(scenario()) == "ended"
    assert len(guard.seconds) == 2


def test_a_claim_whose_operation_is_overdue_is_listed_no_longer_while_the_others_are(
    coordinator: FakeCoordinator, heartbeat: Heartbeat
) -> None:
    holders = [HolderDouble(claimed(coordinator).turn_id, 1) for _ in range(2)]
    for holder in holders:
        heartbeat.hold(holder)
    wait_until(lambda: all(holder.valid_until for holder in holders), "both to be renewed")

    holders[0].late = True
    wait_until(lambda: holders[0].held not in coordinator.turns.beats[-1].claims, "a heartbeat without it")

    assert coordinator.turns.beats[-1].claims == (holders[1].held,)


def test_an_operation_beyond_its_bound_stops_the_work_and_says_which_it_was(coordinator: FakeCoordinator) -> None:
    claim = claimed(coordinator)
    deadlines = Deadlines(answer_seconds=0.01, pause_seconds=60, margin_seconds=0)
    told: list[str] = []

    async def work() -> str:
        with deadlines.answer():
            await asyncio.Event().wait()
        raise AssertionError("never set")

    async def scenario() -> str:
        execution = executing(claim, work(), GuardDouble(), time.monotonic() + 60, deadlines, told.append)
        await wait_until_async(lambda: asyncio.to_thread(execution.overdue), "the bound to pass")
        assert await asyncio.to_thread(execution.overdue)
        return await execution.ended()

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == "overdue"
    assert told == ["a model request"]


def test_a_claim_that_lapsed_while_its_process_stood_still_is_not_called_overdue(coordinator: FakeCoordinator) -> None:
    claim = claimed(coordinator)
    deadlines = Deadlines(answer_seconds=60, pause_seconds=-1, margin_seconds=0)
    assert deadlines.overdue() is not None

    async def work() -> str:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async def scenario() -> str:
        execution = executing(claim, work(), GuardDouble(), time.monotonic() - 1, deadlines)
        assert not execution.overdue()
        return await execution.ended()

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == "lapsed"


def test_taking_the_last_free_slot_counts_as_a_saturation() -> None:
    slots = Slots(2)
    with slots.taken():
        assert (slots.free, slots.saturations) == (1, 0)
        with slots.taken():
            assert (slots.free, slots.saturations) == (0, 1)
    assert (slots.free, slots.saturations) == (2, 1)
