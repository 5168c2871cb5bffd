"""Every event of a Session log. Unknown types and versions are refused, loudly (DESIGN section 4)."""

import json
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationError

from team.model.content import ContentBlock
from team.model.errors import LogDamaged
from team.model.ids import MessageId, SessionId, TeamId, TurnId
from team.model.snapshots import MemberSnapshot, SequenceNumber, Source, TaskSnapshot
from team.model.values import JsonObject, Value, hygiene_fault

Delivery = Literal["steer", "turn"]
EndReason = Literal["completed", "aborted", "error", "max-tokens", "max-steps", "refusal"]
WaitKind = Literal["wait-agent", "subagent", "workflow", "backoff"]
Outcome = Literal["ok", "error", "unknown"]
FinishReason = Literal["stop", "tool-calls", "max-tokens", "refusal"]

HOLDING: Final = frozenset({"aborted", "error", "max-steps"})
"""Reasons of a turn's end after which pending input is held."""


class EventData(Value):
    """The data of one event; ``event_type`` is its name in the log."""

    event_type: ClassVar[str]


class MemberChanged(EventData):
    event_type = "team/member"
    version: Literal[1] = 1
    team_id: TeamId
    member: MemberSnapshot
    actor: str | None = None


class TaskChanged(EventData):
    event_type = "team/task"
    version: Literal[1] = 1
    team_id: TeamId
    task: TaskSnapshot
    actor: str | None = None


class HistoricalMessageQueued(EventData):
    """Read and validated, never written: the mailbox of older logs."""

    event_type = "team/message/queued"
    version: Literal[1] = 1
    team_id: TeamId
    message_id: MessageId
    sender_id: SessionId
    sender_name: str
    target_id: SessionId
    delivery: str
    content: tuple[ContentBlock, ...]


class HistoricalMessageDelivered(EventData):
    """Read and validated, never written: the mailbox of older logs."""

    event_type = "team/message/delivered"
    version: Literal[1] = 1
    team_id: TeamId
    message_id: MessageId
    target_id: SessionId


class SubagentDescribed(EventData):
    """What a child is. ``capture`` is the JSON schema of the result that it must report through a call."""

    event_type = "subagent/descriptor"
    version: Literal[1] = 1
    mode: Literal["one-shot", "continuable"]
    provider: Literal["fresh", "fork", "external"]
    label: str
    model: str | None = None
    tool_filter: tuple[str, ...] | None = None
    capture: JsonObject | None = None


class InboxInserted(EventData):
    event_type = "agent/inbox/inserted"
    message_id: MessageId
    delivery: Delivery
    content: Annotated[tuple[ContentBlock, ...], Field(min_length=1)]
    source: Source


class InboxClaimed(EventData):
    """A step took a message into its request. An external member, which has no turns, took it without either."""

    event_type = "agent/inbox/claimed"
    message_id: MessageId
    turn_id: TurnId | None = None
    step: SequenceNumber | None = None


class InboxDiscarded(EventData):
    event_type = "agent/inbox/discarded"
    message_id: MessageId
    reason: str


class TurnStarted(EventData):
    event_type = "turn/start"
    turn_id: TurnId


class TurnEnded(EventData):
    event_type = "turn/end"
    turn_id: TurnId
    reason: EndReason
    code: str | None = None
    message: str | None = None


class OpenWait(Value):
    """What a parked turn waits for; ``deadline`` is ISO-8601 UTC."""

    kind: WaitKind
    call_id: str | None = None
    deadline: str | None = None


class TurnParked(EventData):
    event_type = "turn/parked"
    turn_id: TurnId
    waits: Annotated[tuple[OpenWait, ...], Field(min_length=1)]


class TurnResumed(EventData):
    event_type = "turn/resumed"
    turn_id: TurnId


class StepStarted(EventData):
    event_type = "step/start"
    turn_id: TurnId
    step: SequenceNumber


class StepEnded(EventData):
    event_type = "step/end"
    turn_id: TurnId
    step: SequenceNumber


class UserMessage(EventData):
    """Input that a step claimed, or identity that the coordinator injected."""

    event_type = "user/message"
    message_id: MessageId
    content: tuple[ContentBlock, ...]
    source: Source


class Usage(Value):
    input_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)


class AssistantMessage(EventData):
    """One complete model answer. ``provider_detail`` is the model layer's own serialised form, kept as text."""

    event_type = "assistant/message"
    turn_id: TurnId
    step: SequenceNumber
    model: str
    content: tuple[ContentBlock, ...]
    usage: Usage = Usage()
    finish_reason: FinishReason
    provider_detail: str | None = None
    interrupted: bool | None = None


class ToolCalled(EventData):
    """``arguments`` is the model's JSON text; ``index`` counts the calls of one assistant message from 0."""

    event_type = "tool/call"
    turn_id: TurnId
    step: SequenceNumber
    index: int = Field(ge=0)
    call_id: str
    name: str
    arguments: str


class ToolReturned(EventData):
    """The one result of a call. ``unknown`` says that the call may or may not have happened.

    ``duration_ms`` is how long a local tool ran, where that is known.
    """

    event_type = "tool/result"
    turn_id: TurnId
    step: SequenceNumber
    index: int = Field(ge=0)
    call_id: str
    outcome: Outcome
    content: str
    duration_ms: int | None = Field(default=None, ge=0)


class RequestHeader(EventData):
    """System prompt and tool schemas of the requests from here on. Model-visible means logged."""

    event_type = "request/header"
    model: str
    system: str
    tools: tuple[JsonObject, ...]
    digest: str


class SessionModel(EventData):
    event_type = "session/model"
    model: str


class SessionCwd(EventData):
    event_type = "session/cwd"
    cwd: str


class KeptMessage(Value):
    """Input of the open turn that a compaction keeps word for word."""

    content: tuple[ContentBlock, ...]
    source: Source


class SessionCompacted(EventData):
    """The visible history before this event is replaced by ``summary``, then ``context``, then ``kept``.

    ``context`` restates what must not depend on a summary: who the Session is, its Team and its open tasks. ``usage``
    is what the request for the summary cost.
    """

    event_type = "session/compacted"
    summary: str
    context: str = ""
    kept: tuple[KeptMessage, ...] = ()
    model: str | None = None
    usage: Usage = Usage()


class FileObserved(EventData):
    """``version`` is the content hash that the Session last saw at ``path``; None records absence."""

    event_type = "fs/observed"
    path: str
    version: str | None = None


class FileIntended(EventData):
    """A replace about to happen: after a crash the file itself tells which side of it we are on."""

    event_type = "fs/intent"
    turn_id: TurnId
    step: SequenceNumber
    index: int = Field(ge=0)
    path: str
    before: str | None = None
    after: str


class WorkflowStarted(EventData):
    """A workflow call has begun. ``args`` is JSON text."""

    event_type = "tool-workflow/started"
    version: Literal[1] = 1
    call_id: str
    name: str
    description: str | None = None
    script: str
    args: str


class WorkflowProgressed(EventData):
    event_type = "tool-workflow/progress"
    version: Literal[1] = 1
    call_id: str
    kind: Literal["phase", "log"]
    text: str


class WorkflowAsked(EventData):
    """The script asks for an agent; ``item`` counts them from 0. The child begins now or when others have ended."""

    event_type = "tool-workflow/agent"
    version: Literal[1] = 1
    call_id: str
    item: int = Field(ge=0)
    child_id: SessionId
    label: str
    prompt: str
    output_schema: JsonObject | None = None
    tools: tuple[str, ...] | None = None
    phase: str | None = None


class WorkflowAnswered(EventData):
    """What the script gets for an agent: ``value`` as JSON text, null with an ``error``.

    The script gets the answers of one ``batch`` at once, and the batches in order.
    """

    event_type = "tool-workflow/answered"
    version: Literal[1] = 1
    call_id: str
    item: int = Field(ge=0)
    batch: SequenceNumber
    value: str
    error: str | None = None


class WorkflowEnded(EventData):
    """The script has ended; the call's result follows. A workflow whose turn ends first has the result alone."""

    event_type = "tool-workflow/ended"
    version: Literal[1] = 1
    call_id: str
    outcome: Literal["ok", "error"]


WorkflowEvent = WorkflowStarted | WorkflowProgressed | WorkflowAsked | WorkflowAnswered | WorkflowEnded

_TYPES: dict[str, type[EventData]] = {
    cls.event_type: cls
    for cls in (
        MemberChanged,
        TaskChanged,
        HistoricalMessageQueued,
        HistoricalMessageDelivered,
        SubagentDescribed,
        InboxInserted,
        InboxClaimed,
        InboxDiscarded,
        TurnStarted,
        TurnEnded,
        TurnParked,
        TurnResumed,
        StepStarted,
        StepEnded,
        UserMessage,
        AssistantMessage,
        ToolCalled,
        ToolReturned,
        RequestHeader,
        SessionModel,
        SessionCwd,
        SessionCompacted,
        FileObserved,
        FileIntended,
        WorkflowStarted,
        WorkflowProgressed,
        WorkflowAsked,
        WorkflowAnswered,
        WorkflowEnded,
    )
}

VISIBLE: Final = frozenset({"user/message", "assistant/message", "tool/result", "request/header", "session/compacted"})
"""Types that the history builder reads."""

CONVERSATION: Final = VISIBLE | {"tool/call", "team/member", "team/task"}
"""Types that a fork copies of completed turns."""


class Event(Value):
    """One line of a log: ``seq`` is contiguous from 1 and the only order."""

    seq: SequenceNumber
    time: str
    type: str
    data: JsonObject

    def decoded(self) -> EventData:
        """The typed data. Raises LogDamaged on an unknown type, version or shape."""
        return decode_event(self.seq, self.type, self.data)


def decode_event(seq: int, event_type: str, data: object) -> EventData:
    cls = _TYPES.get(event_type)
    if cls is None:
        raise LogDamaged(f"event {seq} has the unknown type {event_type!r}; a newer version may have written it")
    fault = hygiene_fault(data)
    if fault:
        raise LogDamaged(f"event {seq} ({event_type}): {fault}")
    try:
        # As JSON text: only there does strict validation take an array for a tuple, and still no true for a 1.
        return cls.model_validate_json(json.dumps(data, ensure_ascii=False))
    except ValidationError as error:
        raise LogDamaged(f"event {seq} ({event_type}) is not valid: {first_fault(error)}") from error


def decode_stored(event_type: str, text: str) -> EventData:
    """Decode what this version itself wrote and validated; raises LogDamaged like ``decode_event``."""
    cls = _TYPES.get(event_type)
    if cls is None:
        raise LogDamaged(f"an event has the unknown type {event_type!r}; a newer version may have written it")
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        raise LogDamaged(f"an event of type {event_type} is not valid: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """The first complaint of a validation, short and without the input."""
    detail = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in detail["loc"]) or "value"
    return f"{place}: {detail['msg']}"
