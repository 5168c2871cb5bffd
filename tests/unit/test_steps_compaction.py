"""When the step loop makes room first: near the limit, or refused as too long; once per step, and never for ever."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from config.models import DEFAULT_WINDOW, context_window
from team.model.claims import CompactRequest
from team.model.events import Usage
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.fake_turns import FakeTurn
from tests.support.step_doubles import answer, call
from tests.unit.test_steps import Harness, done, harness
from workers.models import Answer, ModelFailure


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator(tmp_path, lease_seconds=5.0)
    fake.start()
    yield fake
    fake.stop()


TOO_LONG = ModelFailure("context-length", "too long")


def sized(tokens: int, asked: Answer) -> Answer:
    """The answer, of a conversation that its provider counted."""
    return replace(asked, usage=Usage(input_tokens=tokens))


def summaries(coordinator: FakeCoordinator, turn: FakeTurn) -> list[CompactRequest]:
    bodies = [item.body for item in coordinator.requests if item.turn_id == turn.turn_id]
    return [body for body in bodies if isinstance(body, CompactRequest)]


def run(coordinator: FakeCoordinator, bench: Harness) -> FakeTurn:
    turn = coordinator.turns.begin("go", model="test:model")
    asyncio.run(asyncio.wait_for(bench.run(turn), 30))
    return turn


def test_near_the_limit_the_next_request_goes_on_from_a_summary(coordinator: FakeCoordinator) -> None:
    coordinator.turns.context_tokens = 1_000
    bench = harness(coordinator, [sized(900, answer(call("read", 1))), answer(text="over")], read=done)
    bench.model.summaries = [replace(answer(text="what was"), usage=Usage(input_tokens=950, output_tokens=5))]

    turn = run(coordinator, bench)

    assert turn.reason == "completed"
    (posted,) = summaries(coordinator, turn)
    assert (posted.step, posted.summary, posted.usage.input_tokens) == (2, "what was", 950)
    assert len(bench.model.summarised[0]) == 3, "the summary is asked for over the whole history"
    assert bench.model.seen[1] == [], "and the answer from the summary alone"


def test_below_the_limit_nothing_is_summarised(coordinator: FakeCoordinator) -> None:
    coordinator.turns.context_tokens = 1_000
    bench = harness(coordinator, [sized(700, answer(call("read", 1))), answer(text="over")], read=done)
    assert run(coordinator, bench).compacted == []


def test_what_was_added_since_the_last_count_is_estimated(coordinator: FakeCoordinator) -> None:
    coordinator.turns.context_tokens = 1_000

    async def much(_context: object) -> str:
        return "x" * 900

    bench = harness(coordinator, [sized(700, answer(call("read", 1))), answer(text="over")], read=much)
    bench.model.summaries = [answer(text="what was")]
    assert run(coordinator, bench).compacted == [2]


def test_a_summary_that_left_little_room_is_not_followed_by_another_at_each_step(coordinator: FakeCoordinator) -> None:
    coordinator.turns.context_tokens = 1_000
    steps = [sized(900, answer(call("read", number))) for number in range(1, 6)]
    bench = harness(coordinator, [*steps, answer(text="over")], read=done)
    bench.model.summaries = [answer(text="still much")]
    turn = run(coordinator, bench)
    assert (turn.reason, turn.compacted) == ("completed", [2])


def test_a_request_refused_as_too_long_is_made_again_after_a_compaction(coordinator: FakeCoordinator) -> None:
    bench = harness(coordinator, [answer(call("read", 1)), TOO_LONG, answer(text="over")], read=done)
    bench.model.summaries = [answer(text="what was")]
    turn = run(coordinator, bench)
    assert (turn.reason, turn.compacted) == ("completed", [2])


def test_a_history_too_long_to_be_summarised_is_shortened_until_it_is_not(coordinator: FakeCoordinator) -> None:
    steps = [answer(call("read", number)) for number in range(1, 5)]
    bench = harness(coordinator, [*steps, TOO_LONG, answer(text="over")], read=done)
    bench.model.summaries = [TOO_LONG, answer(text="the end of it")]
    turn = run(coordinator, bench)
    assert (turn.reason, turn.compacted) == ("completed", [5])
    whole, half = bench.model.summarised
    assert len(half) < len(whole)


def test_a_compaction_that_cannot_help_ends_the_turn_and_tries_nothing_twice(coordinator: FakeCoordinator) -> None:
    bench = harness(coordinator, [answer(call("read", 1)), TOO_LONG, TOO_LONG], read=done)
    bench.model.summaries = [answer(text="what was")]
    turn = run(coordinator, bench)
    assert (turn.reason, turn.code, turn.compacted) == ("error", "context-length", [2])


def test_a_summary_that_stays_too_long_ends_the_turn(coordinator: FakeCoordinator) -> None:
    bench = harness(coordinator, [answer(call("read", 1)), TOO_LONG], read=done)
    bench.model.summaries = [TOO_LONG] * 3
    turn = run(coordinator, bench)
    assert (turn.reason, turn.code, turn.compacted) == ("error", "context-length", [])
    assert bench.model.summaries == []


def test_input_that_is_too_long_by_itself_is_not_summarised(coordinator: FakeCoordinator) -> None:
    bench = harness(coordinator, [TOO_LONG])
    turn = run(coordinator, bench)
    assert (turn.code, bench.model.summarised) == ("context-length", [])


def test_a_claim_that_finds_its_step_compacted_asks_for_no_second_summary(coordinator: FakeCoordinator) -> None:
    bench = harness(coordinator, [answer(call("read", 1)), TOO_LONG, ModelFailure("auth", "no")], read=done)
    bench.model.summaries = [answer(text="what was")]
    turn = coordinator.turns.begin("go", model="test:model")

    async def scenario() -> None:
        await bench.run(turn)
        # As after a crash behind the summary: another worker claims the same step.
        turn.status, turn.reason, turn.code = "queued", None, None
        bench.model.answers = [TOO_LONG]
        await bench.run(turn)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (turn.code, turn.compacted) == ("context-length", [2])


@pytest.mark.parametrize(
    ("model", "chosen", "window"),
    [
        ("anthropic:claude-x", [], 200_000),
        ("openai-chat:other", [], DEFAULT_WINDOW),
        ("script:/a/b.yaml", [], 0),
        ("vllm:m", [{}, {"vllm:*": 5}], 5),
        ("vllm:m", [{"vllm:m": 7}, {"vllm:*": 5}], 7),
        ("vllm:long-name", [{"vllm:*": 5, "vllm:long*": 6}], 6),
        ("vllm:m", [{"vllm": 5}], DEFAULT_WINDOW),
    ],
)
def test_the_context_window_of_a_model_is_the_most_exact_that_is_known(
    model: str, chosen: list[dict[str, int]], window: int
) -> None:
    assert context_window(model, *chosen) == window
