"""What the log says of one workflow: a pure fold over its ``tool-workflow/*`` events."""

from typing import Literal

from team.model.events import (
    WorkflowAnswered,
    WorkflowAsked,
    WorkflowEnded,
    WorkflowEvent,
    WorkflowProgressed,
    WorkflowStarted,
)
from team.model.ids import SessionId
from team.model.values import Value


class WorkflowItem(Value):
    """One agent of a workflow; ``seq`` is the event that holds what it was asked, ``answer_seq`` its answer."""

    child_id: SessionId
    label: str
    seq: int
    answer_seq: int | None = None
    state: Literal["open", "ok", "failed"] = "open"


class WorkflowState(Value):
    """The state of one workflow call.

    ``batches`` counts the groups in which answers are given to the script, ``answers`` how many those hold.
    ``progress`` counts the progress records; ``phase`` and ``note`` are the newest of each kind.
    """

    name: str
    start_seq: int
    items: tuple[WorkflowItem, ...] = ()
    batches: int = 0
    progress: int = 0
    phase: str | None = None
    note: str | None = None
    ended: bool = False

    @property
    def open_items(self) -> list[int]:
        """The items without an answer, in order."""
        return [number for number, item in enumerate(self.items) if item.state == "open"]

    @property
    def failed(self) -> int:
        return sum(item.state == "failed" for item in self.items)


def advanced(state: WorkflowState | None, data: WorkflowEvent, seq: int) -> WorkflowState:
    """The state behind an event of the workflow. Raises ValueError that says why the event does not follow."""
    if isinstance(data, WorkflowStarted):
        _expect(state is None, "its workflow has begun before")
        return WorkflowState(name=data.name, start_seq=seq)
    if state is None:
        raise ValueError("no workflow of its call has begun")
    _expect(not state.ended, "its workflow has ended")
    match data:
        case WorkflowProgressed(kind="phase"):
            return _with(state, progress=state.progress + 1, phase=data.text)
        case WorkflowProgressed():
            return _with(state, progress=state.progress + 1, note=data.text)
        case WorkflowAsked():
            _expect(data.item == len(state.items), f"item {data.item} is out of order")
            return _with(state, items=(*state.items, WorkflowItem(child_id=data.child_id, label=data.label, seq=seq)))
        case WorkflowAnswered():
            return _answered(state, data, seq)
        case WorkflowEnded():
            return _with(state, ended=True)


def _answered(state: WorkflowState, data: WorkflowAnswered, seq: int) -> WorkflowState:
    _expect(data.item < len(state.items), f"item {data.item} was not asked")
    item = state.items[data.item]
    _expect(item.state == "open", f"item {data.item} has an answer already")
    _expect(data.batch in (state.batches, state.batches + 1) and data.batch > 0, f"batch {data.batch} is out of order")
    update = {"state": "ok" if data.error is None else "failed", "answer_seq": seq}
    items = (*state.items[: data.item], item.model_copy(update=update), *state.items[data.item + 1 :])
    return _with(state, items=items, batches=data.batch)


def _with(state: WorkflowState, **update: object) -> WorkflowState:
    return state.model_copy(update=update)


def _expect(holds: bool, fault: str) -> None:
    if not holds:
        raise ValueError(fault)
