"""The step loop against a coordinator that speaks real HTTP, with doubles of the model and the checkout."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from team.model.claims import BackoffRequest, ClaimRequest, PendingCall, ResultRequest, Write
from team.model.errors import ConfigurationInvalid
from team.model.history import ToolResultEntry
from team.model.ids import TurnId
from team.model.slices import FileSlice
from tests.support.fake_coordinator import WORKER_TOKEN, FakeCoordinator, Fault
from tests.support.fake_turns import WAITING, FakeTurn, last_text
from tests.support.step_doubles import NoDeltas, PlayedModel, PlayedTools, answer, call
from tests.support.waiting import wait_until_async
from workers.checkout import CallContext, LocalTools
from workers.client import ClaimWriter, Coordinator
from workers.deadlines import Deadlines
from workers.deltas import Deltas
from workers.drain import Drain
from workers.models import Answer, Conversation, ModelFailure
from workers.recent import Recent
from workers.steps import Attempts, Turn


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator(tmp_path, lease_seconds=5.0)
    fake.start()
    yield fake
    fake.stop()


class Harness:
    """One claim of one turn, and what a test wants to look at."""

    def __init__(self, coordinator: FakeCoordinator, model: PlayedModel, tools: PlayedTools) -> None:
        self.fake = coordinator
        self.model = model
        self.tools = tools
        self.deltas = NoDeltas()
        self.attempts: Attempts = Recent(16)
        self.conversation = Conversation()
        self.drain = Drain()

    async def run(self, turn: FakeTurn) -> str:
        """Claim ``turn`` and run it to the end of the claim."""
        client = Coordinator(self.fake.url, WORKER_TOKEN, connections=4)
        try:
            request = ClaimRequest(
                request_id=f"{turn.turn_id}-{turn.epoch}", worker="w", turn_id=TurnId(turn.turn_id), queues=("turns",)
            )
            claim = await client.claim(request, patience=2.0)
            assert claim is not None
            loop = Turn(
                claim,
                self.conversation,
                writer=ClaimWriter(client, claim),
                models=self.model,
                tools=cast("LocalTools", self.tools),
                deltas=cast("Deltas", self.deltas),
                drain=self.drain,
                attempts=self.attempts,
                deadlines=Deadlines(answer_seconds=60, pause_seconds=60),
            )
            return await loop.run()
        finally:
            await client.close()


def harness(
    coordinator: FakeCoordinator, answers: list[Any], **tools: Callable[[CallContext], Awaitable[str]]
) -> Harness:
    return Harness(coordinator, PlayedModel(answers), PlayedTools(tools))


async def done(_context: CallContext) -> str:
    return "done"


async def forever() -> Answer:
    await asyncio.Event().wait()
    raise AssertionError("never set")


def results(turn: FakeTurn) -> list[ToolResultEntry]:
    return [entry for entry in turn.session.history if isinstance(entry, ToolResultEntry)]


def numbers(coordinator: FakeCoordinator, turn: FakeTurn) -> list[int]:
    bodies = [item.body for item in coordinator.requests if item.turn_id == turn.turn_id]
    return [body.number for body in bodies if isinstance(body, Write)]


def test_a_turn_with_calls_of_both_sides_ends_with_one_result_each(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    coordinator.turns.tools["list_agents"] = lambda arguments: "[]"
    bench = harness(coordinator, [answer(call("read", 1), call("list_agents", 2)), answer(text="over")], read=done)

    assert asyncio.run(bench.run(turn)) == "ended"

    assert turn.reason == "completed"
    assert last_text(turn) == "over"
    assert sorted((entry.call_id, entry.outcome) for entry in results(turn)) == [("call-1", "ok"), ("call-2", "ok")]
    assert sorted(numbers(coordinator, turn)) == list(range(1, len(numbers(coordinator, turn)) + 1))
    assert bench.deltas.texts == ["some text", "some text"]


def test_the_conversation_grows_from_the_log_alone_and_never_doubles(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [answer(call("read", 1)), answer(call("read", 2)), answer(text="over")], read=done)

    asyncio.run(bench.run(turn))

    first, second, third = bench.model.seen
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert all(len(set(seen)) == len(seen) for seen in bench.model.seen)


def test_writers_follow_their_index_while_readers_overlap(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    running: set[str] = set()
    overlaps: list[set[str]] = []
    both_read = asyncio.Event()

    async def read(context: CallContext) -> str:
        running.add(context.call_id)
        if {"call-2", "call-4"} <= running:
            both_read.set()
        await both_read.wait()
        return "text"

    async def write(context: CallContext) -> str:
        running.add(context.call_id)
        overlaps.append(running & {"call-1", "call-3"})
        await asyncio.sleep(0)
        running.discard(context.call_id)
        return "written"

    bench = harness(
        coordinator,
        [answer(call("bash", 1), call("read", 2), call("write", 3), call("read", 4)), answer(text="over")],
        read=read,
        bash=write,
        write=write,
    )

    assert asyncio.run(bench.run(turn)) == "ended"
    assert overlaps == [{"call-1"}, {"call-3"}]
    assert [item for item in bench.tools.ran if item in {"call-1", "call-3"}] == ["call-1", "call-3"]


def test_coordinator_calls_run_in_the_order_of_the_answer(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    coordinator.turns.tools["send_message"] = lambda arguments: "{}"
    calls = [call("send_message", number, f'{{"n":{number}}}') for number in range(1, 6)]
    bench = harness(coordinator, [answer(*calls), answer(text="over")])

    asyncio.run(bench.run(turn))

    assert [arguments for _, arguments in coordinator.turns.tool_runs] == [block.arguments for block in calls]


def test_what_a_call_saw_reaches_the_next_one_and_the_log(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    seen: list[tuple[str, dict[str, FileSlice]]] = []

    async def look(context: CallContext) -> str:
        seen.append((context.cwd, dict(context.files)))
        return "text"

    bench = harness(coordinator, [answer(call("bash", 1), call("bash", 2)), answer(text="over")], bash=look)
    bench.tools.observed = (FileSlice(path="a.txt", version="v1"),)
    bench.tools.cwd = str(coordinator.turns.root / "sub")

    asyncio.run(bench.run(turn))

    assert seen[0] == (str(coordinator.turns.root), {})
    assert seen[1] == (bench.tools.cwd, {"a.txt": FileSlice(path="a.txt", version="v1")})
    assert turn.session.files["a.txt"].version == "v1"
    assert turn.session.cwd == bench.tools.cwd
    moves = [item.body.cwd for item in coordinator.requests if isinstance(item.body, ResultRequest)]
    assert moves == [bench.tools.cwd, None]


def test_an_intent_is_committed_before_the_tool_goes_on(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def write(context: CallContext) -> str:
        await context.intent("a.txt", None, "after-hash")
        assert turn.calls[0].pending.intent_after == "after-hash"
        return "written"

    bench = harness(coordinator, [answer(call("write", 1)), answer(text="over")], write=write)

    assert asyncio.run(bench.run(turn)) == "ended"
    verbs = coordinator.verbs(turn)
    assert verbs.index("intent") < verbs.index("result")


def test_a_waiting_call_parks_the_turn_and_the_next_claim_goes_on(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    coordinator.turns.tools["wait_agent"] = lambda arguments: WAITING
    bench = harness(coordinator, [answer(call("wait_agent", 1), call("read", 2)), answer(text="over")], read=done)

    assert asyncio.run(bench.run(turn)) == "parked"
    assert [entry.call_id for entry in results(turn)] == ["call-2"]

    coordinator.turns.resolve(turn, '{"timedOut":false}')
    bench.conversation = Conversation()
    assert asyncio.run(bench.run(turn)) == "ended"
    assert len(coordinator.turns.tool_runs) == 1


def test_a_turn_lost_between_answer_and_results_never_runs_a_local_call_again(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    coordinator.turns.tools["list_agents"] = lambda arguments: "[]"

    async def lost(_context: CallContext) -> str:
        coordinator.turns.fence(turn)
        return "too late"

    bench = harness(
        coordinator, [answer(call("bash", 1), call("list_agents", 2), call("bash", 3)), answer(text="over")], bash=lost
    )
    assert asyncio.run(bench.run(turn)) == "fenced"

    bench.conversation = Conversation()
    assert asyncio.run(bench.run(turn)) == "ended"
    assert bench.tools.ran == ["call-1"]
    assert [item.call_id for item in bench.tools.recovered] == ["call-1", "call-3"]
    outcomes = {entry.call_id: entry.outcome for entry in results(turn)}
    assert outcomes == {"call-1": "unknown", "call-2": "ok", "call-3": "unknown"}
    assert [name for name, _ in coordinator.turns.tool_runs] == ["list_agents"]


def test_an_unanswered_open_step_is_requested_again(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def lose_claim() -> Answer:
        coordinator.turns.fence(turn)
        return answer(text="late")

    bench = harness(coordinator, [lose_claim, answer(text="over")])
    assert asyncio.run(bench.run(turn)) == "fenced"
    assert turn.step == 1

    assert asyncio.run(bench.run(turn)) == "ended"
    assert turn.step == 1
    assert last_text(turn) == "over"


@pytest.mark.parametrize("verb", ["boundary", "answer", "intent", "result", "tool"])
@pytest.mark.parametrize(
    "fault", [Fault("", "drop", times=2), Fault("", "refuse", times=2), Fault("", "status", times=2, status=503)]
)
def test_a_write_that_meets_a_fault_is_repeated_and_happens_once(
    coordinator: FakeCoordinator, verb: str, fault: Fault
) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    coordinator.turns.tools["list_agents"] = lambda arguments: "[]"
    coordinator.fault(Fault(verb, fault.kind, times=fault.times, status=fault.status))

    async def write(context: CallContext) -> str:
        await context.intent("a.txt", None, "after")
        return "written"

    bench = harness(coordinator, [answer(call("write", 1), call("list_agents", 2)), answer(text="over")], write=write)

    assert asyncio.run(bench.run(turn)) == "ended"
    assert bench.tools.ran == ["call-1"]
    assert len(coordinator.turns.tool_runs) == 1
    assert sorted(entry.call_id for entry in results(turn)) == ["call-1", "call-2"]
    assert coordinator.faults[0].used == 2


def test_a_short_pause_of_the_provider_keeps_the_claim(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delay(failure: ModelFailure, attempt: int) -> float | None:
        return 0.01

    monkeypatch.setattr("workers.steps.retry_delay_seconds", delay)
    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [ModelFailure("transient", "cut"), answer(text="over")])

    assert asyncio.run(bench.run(turn)) == "ended"
    assert turn.backoffs == []
    assert last_text(turn) == "over"


def test_a_long_pause_parks_the_turn_and_attempts_go_on_counting(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def delay(failure: ModelFailure, attempt: int) -> float | None:
        attempts.append(attempt)
        return 0.2 + 2.0 if attempt < 2 else None

    monkeypatch.setattr("workers.steps.retry_delay_seconds", delay)
    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [ModelFailure("rate-limit", "slow down"), ModelFailure("rate-limit", "no more")])

    assert asyncio.run(bench.run(turn)) == "backoff"
    assert turn.status == "parked"
    assert turn.backoffs == [2200]
    body = next(item.body for item in coordinator.requests if isinstance(item.body, BackoffRequest))
    assert body.step == 1

    turn.status = "queued"
    assert asyncio.run(bench.run(turn)) == "failed"
    assert attempts == [1, 2]
    assert (turn.reason, turn.code, turn.message) == ("error", "rate-limit", "no more")


def test_a_failure_that_no_retry_mends_ends_the_turn_with_its_code(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [ModelFailure("auth", "the key was refused: check it")])

    assert asyncio.run(bench.run(turn)) == "failed"
    assert (turn.code, turn.message) == ("auth", "the key was refused: check it")


def test_a_model_that_is_not_configured_ends_the_turn_with_its_sentence(coordinator: FakeCoordinator) -> None:
    class Unconfigured(PlayedModel):
        def get(self, name: str) -> PlayedModel:
            raise ConfigurationInvalid(f"{name} needs a key")

    turn = coordinator.turns.begin("go", model="test:model")
    bench = Harness(coordinator, Unconfigured([]), PlayedTools({}))

    assert asyncio.run(bench.run(turn)) == "failed"
    assert (turn.code, turn.message) == ("configuration", "test:model needs a key")


def test_an_unexpected_error_ends_the_turn_visibly_and_quotes_nothing(
    coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_context: CallContext) -> str:
        raise KeyError("a secret of the conversation")

    async def forever_tool(_context: CallContext) -> str:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [answer(call("bash", 1), call("read", 2))], bash=broken, read=forever_tool)

    assert asyncio.run(bench.run(turn)) == "failed"
    assert turn.code == "internal"
    assert turn.message is not None
    assert "KeyError" in turn.message
    assert "secret" not in turn.message
    assert bench.tools.ended == [f"{turn.turn_id}.1"]


def test_a_fenced_write_ends_the_claim_without_another_write(coordinator: FakeCoordinator) -> None:
    async def fence(_context: CallContext) -> str:
        coordinator.turns.fence(turn)
        return "too late"

    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [answer(call("read", 1))], read=fence)

    assert asyncio.run(bench.run(turn)) == "fenced"
    assert coordinator.verbs(turn)[-1] == "result"
    assert results(turn) == []


def test_a_coordinator_that_stays_away_ends_the_claim_without_a_write(coordinator: FakeCoordinator) -> None:
    coordinator.turns.lease_seconds = 0.2
    turn = coordinator.turns.begin("go", model="test:model")

    async def stop() -> Answer:
        await asyncio.to_thread(coordinator.stop)
        return answer(text="nobody hears")

    bench = harness(coordinator, [stop])
    assert asyncio.run(bench.run(turn)) == "unreachable"
    assert turn.status in {"running", "queued"}


def test_cancelling_closes_the_model_request(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")
    bench = harness(coordinator, [forever])

    async def scenario() -> None:
        task = asyncio.create_task(bench.run(turn))
        await wait_until_async(lambda: _true(bool(bench.model.seen)), "the model request")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert bench.model.cancelled == 1
    assert coordinator.verbs(turn)[-1] == "boundary"


async def _true(value: bool) -> bool:
    return value


def test_a_hand_over_lets_the_step_finish_and_releases_at_its_boundary(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def begin_drain(_context: CallContext) -> str:
        bench.drain.begin(30.0)
        return "done"

    bench = harness(coordinator, [answer(call("bash", 1)), answer(text="over")], bash=begin_drain)
    assert asyncio.run(bench.run(turn)) == "released"
    assert turn.status == "queued"
    assert [entry.outcome for entry in results(turn)] == ["ok"]

    bench.drain = Drain()
    assert asyncio.run(bench.run(turn)) == "ended"
    assert bench.tools.ran == ["call-1"]


def test_a_hand_over_lets_a_last_answer_end_the_turn(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def last() -> Answer:
        bench.drain.begin(30.0)
        return answer(text="over")

    bench = harness(coordinator, [last])
    assert asyncio.run(bench.run(turn)) == "ended"


def test_at_the_drain_limit_a_model_request_is_cancelled_and_the_turn_released(coordinator: FakeCoordinator) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def slow() -> Answer:
        bench.drain.begin(0.05)
        return await forever()

    bench = harness(coordinator, [slow, answer(text="over")])
    assert asyncio.run(bench.run(turn)) == "released"
    assert bench.model.cancelled == 1

    bench.drain = Drain()
    assert asyncio.run(bench.run(turn)) == "ended"
    assert turn.step == 1


def test_at_the_drain_limit_a_running_call_is_unknown_and_a_later_one_says_it_never_began(
    coordinator: FakeCoordinator,
) -> None:
    turn = coordinator.turns.begin("go", model="test:model")

    async def stuck(context: CallContext) -> str:
        await context.intent("a.txt", "before", "after")
        bench.drain.begin(0.05)
        await asyncio.Event().wait()
        raise AssertionError("never set")

    bench = harness(coordinator, [answer(call("edit", 1), call("bash", 2)), answer(text="over")], edit=stuck, bash=done)
    assert asyncio.run(bench.run(turn)) == "released"

    assert bench.tools.ran == ["call-1"]
    judged = bench.tools.recovered[0]
    assert isinstance(judged, PendingCall)
    assert (judged.intent_path, judged.intent_before, judged.intent_after) == ("a.txt", "before", "after")
    first, second = results(turn)
    assert (first.call_id, first.outcome) == ("call-1", "unknown")
    assert (second.call_id, second.outcome) == ("call-2", "error")
    assert "not started" in second.content
    assert turn.releases == 1
