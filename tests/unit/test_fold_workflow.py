"""The fold of a workflow's records."""

import pytest

from team.model.errors import LogDamaged
from team.model.events import (
    AssistantMessage,
    EventData,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnStarted,
    WorkflowAnswered,
    WorkflowAsked,
    WorkflowEnded,
    WorkflowProgressed,
    WorkflowStarted,
)
from team.model.fold import apply
from team.model.ids import SessionId, TurnId, child_session_id
from team.model.slices import CallSlice, Key, Slice
from team.model.snapshots import SessionHeader
from team.model.workflow_state import WorkflowState

ROOT = SessionId("root")
TURN = TurnId("turn-1")
HEADER = SessionHeader(id=ROOT, created_at="t", profile="base", cwd="/w", depth=0, root_id=ROOT)

CALLED: tuple[EventData, ...] = (
    TurnStarted(turn_id=TURN),
    StepStarted(turn_id=TURN, step=1),
    AssistantMessage(turn_id=TURN, step=1, model="m", content=(), finish_reason="tool-calls"),
    ToolCalled(turn_id=TURN, step=1, index=0, call_id="c", name="workflow", arguments="{}"),
)
STARTED = WorkflowStarted(call_id="c", name="n", script="s", args="null")
RETURNED = ToolReturned(turn_id=TURN, step=1, index=0, call_id="c", outcome="ok", content="{}")
ENDED = WorkflowEnded(call_id="c", outcome="ok")


def asked(item: int, key: str = "turn-1:1:0") -> WorkflowAsked:
    child = child_session_id(ROOT, key, item)
    return WorkflowAsked(call_id="c", item=item, child_id=child, label=f"l{item}", prompt="p")


def answered(item: int, batch: int, error: str | None = None) -> WorkflowAnswered:
    return WorkflowAnswered(call_id="c", item=item, batch=batch, value="null", error=error)


def progressed(kind: str, words: str) -> WorkflowProgressed:
    return WorkflowProgressed.model_validate({"call_id": "c", "kind": kind, "text": words})


def folded(*events: EventData) -> WorkflowState:
    """The workflow behind these events of its call."""
    state: dict[Key, Slice] = {}
    for seq, data in enumerate((*CALLED, *events), 1):
        state.update(apply(HEADER, state.get, seq, data))
    call = state["call", "c"]
    assert isinstance(call, CallSlice)
    assert call.workflow is not None
    return call.workflow


def test_the_state_tells_items_batches_and_the_newest_progress() -> None:
    state = folded(
        STARTED,
        progressed("phase", "one"),
        asked(0),
        asked(1),
        progressed("log", "a"),
        answered(1, 1, "it was interrupted"),
        progressed("log", "b"),
        asked(2),
    )
    assert (state.name, state.start_seq, state.batches, state.progress) == ("n", 5, 1, 3)
    assert (state.phase, state.note, state.ended) == ("one", "b", False)
    assert [(item.label, item.state, item.seq, item.answer_seq) for item in state.items] == [
        ("l0", "open", 7, None),
        ("l1", "failed", 8, 10),
        ("l2", "open", 12, None),
    ]
    assert (state.open_items, state.failed) == ([0, 2], 1)


def test_answers_of_one_batch_stand_together_and_the_next_batch_follows() -> None:
    state = folded(STARTED, asked(0), asked(1), asked(2), answered(2, 1), answered(0, 1), answered(1, 2))
    assert (state.batches, state.open_items, state.failed) == (2, [], 0)


def test_an_interrupted_workflow_has_the_result_of_its_call_alone() -> None:
    assert folded(STARTED, asked(0), RETURNED).ended is False


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ((asked(0),), "no workflow of its call has begun"),
        ((STARTED, STARTED), "has begun before"),
        ((STARTED, asked(1)), "item 1 is out of order"),
        ((STARTED, asked(0, key="turn-1:1:1")), "names another child"),
        ((STARTED, answered(0, 1)), "item 0 was not asked"),
        ((STARTED, asked(0), answered(0, 1), answered(0, 1)), "has an answer already"),
        ((STARTED, asked(0), answered(0, 2)), "batch 2 is out of order"),
        ((STARTED, asked(0), asked(1), asked(2), answered(0, 1), answered(1, 2), answered(2, 1)), "batch 1 is out of"),
        ((STARTED, ENDED, asked(0)), "its workflow has ended"),
        ((STARTED, ENDED, RETURNED, progressed("log", "x")), "has its result"),
        ((RETURNED, STARTED), "has its result"),
        ((STARTED.model_copy(update={"call_id": "other"}),), "unknown call other"),
    ],
)
def test_records_that_do_not_follow_are_damage(events: tuple[EventData, ...], fault: str) -> None:
    with pytest.raises(LogDamaged, match=fault):
        folded(*events)


@pytest.mark.parametrize("data", [STARTED, ENDED, progressed("log", "x"), answered(0, 1), asked(0)])
def test_a_fork_cannot_carry_them(data: EventData) -> None:
    seeded = HEADER.model_copy(update={"seed_through": 3})
    with pytest.raises(LogDamaged, match="a fork cannot carry tool-workflow"):
        apply(seeded, dict[Key, Slice]().get, 1, data)
