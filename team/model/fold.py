"""The fold: what one event does to a Session's state. Every append and every replay passes through it.

``apply`` reads only the slices that its event touches, through a lookup, and returns the slices that changed; so an
append costs the same in a log of ten events and of a million. It imports no SQL, Celery or FastAPI.
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import TypeVar

from team.model.errors import LogDamaged
from team.model.events import (
    CONVERSATION,
    HOLDING,
    AssistantMessage,
    Event,
    EventData,
    FileIntended,
    FileObserved,
    HistoricalMessageDelivered,
    HistoricalMessageQueued,
    InboxClaimed,
    InboxDiscarded,
    InboxInserted,
    MemberChanged,
    RequestHeader,
    SessionCompacted,
    SessionCwd,
    SessionModel,
    StepEnded,
    StepStarted,
    SubagentDescribed,
    TaskChanged,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnParked,
    TurnResumed,
    TurnStarted,
    Usage,
    UserMessage,
    WorkflowAnswered,
    WorkflowAsked,
    WorkflowEnded,
    WorkflowProgressed,
    WorkflowStarted,
)
from team.model.ids import child_session_id, task_number
from team.model.slices import HEAD, CallSlice, FileSlice, HeadSlice, InboxSlice, Key, Slice, TurnSlice
from team.model.snapshots import WAKING, MemberSnapshot, SessionHeader, TaskSnapshot
from team.model.workflow_state import advanced

Lookup = Callable[[Key], Slice | None]
Changes = dict[Key, Slice]
_S = TypeVar("_S", bound=Slice)


class _Reader:
    """Typed access to the slices before the event."""

    def __init__(self, header: SessionHeader, lookup: Lookup, seq: int) -> None:
        self.header, self.seq, self._lookup = header, seq, lookup
        self.seeded = seq <= header.seed_through

    def find(self, key: Key, kind: type[_S]) -> _S | None:
        value = self._lookup(key)
        if value is not None and not isinstance(value, kind):
            raise self.damage(f"{key} holds another kind of state")
        return value

    def get(self, key: Key, kind: type[_S]) -> _S:
        value = self.find(key, kind)
        if value is None:
            raise self.damage(f"it names the unknown {' '.join(key)}")
        return value

    def head(self) -> HeadSlice:
        return self.find(HEAD, HeadSlice) or HeadSlice(cwd=self.header.cwd)

    def open_turn(self, turn_id: str) -> TurnSlice:
        turn = self.get(("turn", turn_id), TurnSlice)
        self.expect(turn.phase != "ended", "its turn has ended")
        return turn

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            raise self.damage(fault)

    def damage(self, fault: str) -> LogDamaged:
        return LogDamaged(f"Session {self.header.id}, event {self.seq}: {fault}")


def apply(header: SessionHeader, lookup: Lookup, seq: int, data: EventData) -> Changes:
    """The changed slices after event ``seq``; the head is always among them.

    Raises LogDamaged when the event does not follow from the state: a gap, a second open turn, a result without
    its call, a revision that skips, a seed event that a fork cannot carry.
    """
    reader = _Reader(header, lookup, seq)
    head = reader.head()
    reader.expect(seq == head.seq + 1, f"the event before it is number {head.seq}")
    if reader.seeded:
        carried = data.event_type in CONVERSATION or (seq == 1 and isinstance(data, SubagentDescribed))
        reader.expect(carried, f"a fork cannot carry {data.event_type}")
    changes = _apply(data, reader)
    advanced = changes.get(HEAD, head)
    assert isinstance(advanced, HeadSlice)
    changes[HEAD] = advanced.model_copy(update={"seq": seq})
    return changes


def replay(header: SessionHeader, events: Iterable[Event]) -> dict[Key, Slice]:
    """The whole state of a Session from its log. Raises LogDamaged that names the first bad event."""
    state: dict[Key, Slice] = {HEAD: HeadSlice(cwd=header.cwd)}
    for event in events:
        try:
            state.update(apply(header, state.get, event.seq, event.decoded()))
        except LogDamaged as error:
            named = str(header.id) in error.message
            raise error if named else LogDamaged(f"Session {header.id}: {error.message}") from error
    return state


@singledispatch
def _apply(data: EventData, reader: _Reader) -> Changes:
    raise reader.damage(f"the fold has no rule for {data.event_type}")


def _counted(reader: _Reader, usage: Usage | None = None, **counts: int) -> HeadSlice:
    """The head with more in its totals."""
    head = reader.head()
    if usage is not None:
        counts |= usage.model_dump()
    added = {name: getattr(head.totals, name) + count for name, count in counts.items()}
    return head.model_copy(update={"totals": head.totals.model_copy(update=added)})


@_apply.register
def _member(data: MemberChanged, reader: _Reader) -> Changes:
    if data.team_id != reader.header.id:
        return {}
    key: Key = ("member", data.member.name)
    before = reader.find(key, MemberSnapshot)
    after = data.member
    if before is None:
        reader.expect(after.phase == "provisioning" or after.provider == "external", "a member starts provisioning")
    else:
        reader.expect(
            (before.id, before.provider, before.context) == (after.id, after.provider, after.context),
            f"the member {after.name} changes its identity",
        )
        reader.expect(before.phase in (after.phase, "provisioning"), f"{after.name} leaves the phase {before.phase}")
    return {key: after}


@_apply.register
def _task(data: TaskChanged, reader: _Reader) -> Changes:
    if data.team_id != reader.header.id:
        return {}
    key: Key = ("task", data.task.id)
    before = reader.find(key, TaskSnapshot)
    reader.expect(data.task.revision == (before.revision if before else 0) + 1, f"{data.task.id} skips a revision")
    reader.expect(before is None or before.status != "deleted", f"{data.task.id} was deleted")
    changes: Changes = {key: data.task}
    if before is None:
        head = reader.head()
        number = task_number(data.task.id) or 0
        reader.expect(number > head.last_task_number, f"{data.task.id} reuses a number")
        changes[HEAD] = head.model_copy(update={"last_task_number": number})
    return changes


@_apply.register
def _historical(data: HistoricalMessageQueued | HistoricalMessageDelivered, reader: _Reader) -> Changes:
    return {}


@_apply.register
def _described(data: SubagentDescribed, reader: _Reader) -> Changes:
    head = reader.head()
    reader.expect(head.descriptor is None, "a Session has one descriptor")
    return {HEAD: head.model_copy(update={"descriptor": data})}


@_apply.register
def _inserted(data: InboxInserted, reader: _Reader) -> Changes:
    key: Key = ("inbox", data.message_id)
    reader.expect(reader.find(key, InboxSlice) is None, f"the message {data.message_id} is here already")
    head, source = reader.head(), data.source
    counter = "pending_steer" if data.delivery == "steer" else "pending_turn"
    item = InboxSlice(
        message_id=data.message_id,
        seq=reader.seq,
        delivery=data.delivery,
        state="pending",
        source_kind=source.kind,
        sender_id=getattr(source, "sender_id", None),
        sender_turn=getattr(source, "sender_turn", None),
    )
    held = head.held and source.kind not in WAKING
    return {key: item, HEAD: head.model_copy(update={counter: getattr(head, counter) + 1, "held": held})}


def _take(reader: _Reader, message_id: str, state: str) -> Changes:
    key: Key = ("inbox", message_id)
    item, head = reader.get(key, InboxSlice), reader.head()
    reader.expect(item.state == "pending", f"the message {message_id} was taken before")
    counter = "pending_steer" if item.delivery == "steer" else "pending_turn"
    return {
        key: item.model_copy(update={"state": state}),
        HEAD: head.model_copy(update={counter: getattr(head, counter) - 1}),
    }


@_apply.register
def _claimed(data: InboxClaimed, reader: _Reader) -> Changes:
    if data.turn_id is None:
        reader.expect(reader.head().is_external, "it claims input outside a turn and is no external member")
        reader.expect(data.step is None, "it names a step and no turn")
        return _take(reader, data.message_id, "claimed")
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.step_open and turn.step == data.step and not turn.answered, "its step is not taking input")
    return _take(reader, data.message_id, "claimed")


@_apply.register
def _discarded(data: InboxDiscarded, reader: _Reader) -> Changes:
    return _take(reader, data.message_id, "discarded")


@_apply.register
def _turn_started(data: TurnStarted, reader: _Reader) -> Changes:
    head, key = reader.head(), ("turn", data.turn_id)
    reader.expect(not head.is_external, "an external member has no turns")
    reader.expect(head.open_turn is None, f"the turn {head.open_turn} is open")
    reader.expect(reader.find(key, TurnSlice) is None, f"the turn {data.turn_id} was here before")
    turn = TurnSlice(turn_id=data.turn_id, ordinal=head.turns + 1, start_seq=reader.seq, phase="open")
    return {key: turn, HEAD: head.model_copy(update={"open_turn": data.turn_id, "turns": head.turns + 1})}


@_apply.register
def _turn_ended(data: TurnEnded, reader: _Reader) -> Changes:
    turn, head = reader.open_turn(data.turn_id), reader.head()
    reader.expect(turn.open_calls == 0, f"{turn.open_calls} calls have no result")
    ended = turn.model_copy(
        update={
            "phase": "ended",
            "step_open": False,
            "end_seq": reader.seq,
            "reason": data.reason,
            "code": data.code,
            "message": data.message,
        }
    )
    after = head.model_copy(update={"open_turn": None, "held": head.held or data.reason in HOLDING})
    return {("turn", data.turn_id): ended, HEAD: after}


@_apply.register
def _parked(data: TurnParked, reader: _Reader) -> Changes:
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.phase == "open", "its turn is parked already")
    return {("turn", data.turn_id): turn.model_copy(update={"phase": "parked"})}


@_apply.register
def _resumed(data: TurnResumed, reader: _Reader) -> Changes:
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.phase == "parked", "its turn is not parked")
    return {("turn", data.turn_id): turn.model_copy(update={"phase": "open"})}


@_apply.register
def _step_started(data: StepStarted, reader: _Reader) -> Changes:
    turn = reader.open_turn(data.turn_id)
    reader.expect(not turn.step_open and data.step == turn.step + 1, f"the turn is at step {turn.step}")
    started = {"step": data.step, "step_open": True, "answered": False, "calls": 0}
    return {("turn", data.turn_id): turn.model_copy(update=started), HEAD: _counted(reader, steps=1)}


@_apply.register
def _step_ended(data: StepEnded, reader: _Reader) -> Changes:
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.step_open and data.step == turn.step, f"the turn is at step {turn.step}")
    reader.expect(turn.answered and turn.open_calls == 0, "its step is not finished")
    return {("turn", data.turn_id): turn.model_copy(update={"step_open": False})}


@_apply.register
def _user_message(data: UserMessage, reader: _Reader) -> Changes:
    if data.source.kind != "runtime-context" or data.source.session_id != reader.header.id:
        return {}
    return {HEAD: reader.head().model_copy(update={"identified": True})}


@_apply.register
def _assistant(data: AssistantMessage, reader: _Reader) -> Changes:
    if reader.seeded:
        return {}
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.step_open and turn.step == data.step and not turn.answered, "its step has an answer already")
    spoken = any(getattr(block, "type", None) == "text" for block in data.content)
    text_seq = reader.seq if spoken else turn.text_seq
    answered = {"answered": True, "text_seq": text_seq, "finish": data.finish_reason}
    return {("turn", data.turn_id): turn.model_copy(update=answered), HEAD: _counted(reader, data.usage)}


@_apply.register
def _called(data: ToolCalled, reader: _Reader) -> Changes:
    key: Key = ("call", data.call_id)
    reader.expect(reader.find(key, CallSlice) is None, f"the call id {data.call_id} was used before")
    call = CallSlice(
        call_id=data.call_id,
        turn_id=data.turn_id,
        step=data.step,
        index=data.index,
        name=data.name,
        seq=reader.seq,
    )
    if reader.seeded:
        return {key: call}
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.answered and turn.step == data.step, "no answer of its step asked for it")
    reader.expect(data.index == turn.calls, "it is out of order")
    counted = {"calls": turn.calls + 1, "open_calls": turn.open_calls + 1}
    return {key: call, ("turn", data.turn_id): turn.model_copy(update=counted)}


@_apply.register
def _returned(data: ToolReturned, reader: _Reader) -> Changes:
    key: Key = ("call", data.call_id)
    call = reader.get(key, CallSlice)
    reader.expect(call.result_seq is None, f"the call {data.call_id} has a result already")
    reader.expect(
        (call.turn_id, call.step, call.index) == (data.turn_id, data.step, data.index),
        f"the result names another place than its call {data.call_id}",
    )
    changes: Changes = {key: call.model_copy(update={"outcome": data.outcome, "result_seq": reader.seq})}
    if not reader.seeded:
        turn = reader.open_turn(data.turn_id)
        changes["turn", data.turn_id] = turn.model_copy(update={"open_calls": turn.open_calls - 1})
        changes[HEAD] = _counted(reader, calls=1, tool_ms=data.duration_ms or 0)
    return changes


@_apply.register
def _request_header(data: RequestHeader, reader: _Reader) -> Changes:
    return {HEAD: reader.head().model_copy(update={"header_digest": data.digest})}


@_apply.register
def _model(data: SessionModel, reader: _Reader) -> Changes:
    return {HEAD: reader.head().model_copy(update={"model": data.model})}


@_apply.register
def _cwd(data: SessionCwd, reader: _Reader) -> Changes:
    return {HEAD: reader.head().model_copy(update={"cwd": data.cwd})}


@_apply.register
def _compacted(data: SessionCompacted, reader: _Reader) -> Changes:
    head = reader.head()
    if reader.seeded or head.open_turn is None:
        return {HEAD: head.model_copy(update={"compacted_seq": reader.seq})}
    turn = reader.open_turn(head.open_turn)
    reader.expect(turn.step_open and not turn.answered, "a compaction stands before the answer of an open step")
    reader.expect(turn.compacted_step != turn.step, f"step {turn.step} was compacted before")
    return {
        HEAD: _counted(reader, data.usage, compactions=1).model_copy(update={"compacted_seq": reader.seq}),
        ("turn", head.open_turn): turn.model_copy(update={"compacted_step": turn.step}),
    }


@_apply.register
def _observed(data: FileObserved, reader: _Reader) -> Changes:
    return {("file", data.path): FileSlice(path=data.path, version=data.version)}


@_apply.register
def _intended(data: FileIntended, reader: _Reader) -> Changes:
    turn = reader.open_turn(data.turn_id)
    reader.expect(turn.step == data.step and turn.open_calls > 0, "no open call intends it")
    return {}


@_apply.register
def _workflow(
    data: WorkflowStarted | WorkflowProgressed | WorkflowAsked | WorkflowAnswered | WorkflowEnded, reader: _Reader
) -> Changes:
    key: Key = ("call", data.call_id)
    call = reader.get(key, CallSlice)
    reader.expect(call.result_seq is None, f"the call {data.call_id} has its result")
    if isinstance(data, WorkflowAsked):
        named = child_session_id(reader.header.id, f"{call.turn_id}:{call.step}:{call.index}", data.item)
        reader.expect(data.child_id == named, f"item {data.item} names another child than its call does")
    try:
        state = advanced(call.workflow, data, reader.seq)
    except ValueError as error:
        raise reader.damage(str(error)) from error
    return {key: call.model_copy(update={"workflow": state})}
