"""The wire between coordinator and worker: claims, writes, heartbeats (DESIGN section 5).

Every write carries the claim's epoch and a write number. A stale epoch is refused with TURN_FENCED; a repeated
number returns the response that was recorded for it, so a worker may retry any of these calls.
"""

from typing import Literal

from pydantic import Field

from team.model.content import ContentBlock
from team.model.events import FinishReason, Outcome, Usage
from team.model.history import HistoryEntry
from team.model.ids import SessionId, TeamId, TurnId
from team.model.slices import FileSlice
from team.model.values import Value


class ClaimRequest(Value):
    """Claim ``turn_id`` if it is queued, else any queued turn of ``queues``.

    Idempotent by ``request_id``. ``known`` maps Sessions to the newest seq whose history the worker still holds.
    """

    request_id: str
    worker: str
    turn_id: TurnId | None = None
    queues: tuple[str, ...]
    known: dict[str, int] = Field(default_factory=dict)


class PendingCall(Value):
    """A call of the open step that has no result yet. ``intent_after`` is the logged hash of a replace."""

    step: int
    index: int
    call_id: str
    name: str
    arguments: str
    intent_path: str | None = None
    intent_before: str | None = None
    intent_after: str | None = None
    waiting: bool = False


class Limits(Value):
    """What a worker must respect while it runs the turn.

    ``context_tokens`` is the context window of the claim's model; 0 is none that anybody knows.
    """

    max_steps: int
    lease_seconds: float
    output_bytes: int
    context_tokens: int = 0


class Claim(Value):
    """An exclusive, fenced, leased right to run one turn.

    ``token`` authenticates every write of this claim. ``history`` starts after ``history_after``. ``step`` is 0 when
    the worker must ask for a boundary first; otherwise the open step: ``answered`` says whether its model answer is
    committed, ``compacted`` whether a compaction has made room for it already, ``attempt`` counts its requests that
    failed and were put off, and ``pending`` lists its calls without a result.
    """

    turn_id: TurnId
    epoch: int
    token: str
    session_id: SessionId
    team_id: TeamId
    member: str
    model: str
    cwd: str
    workspace_id: str
    step: int = 0
    answered: bool = False
    compacted: bool = False
    attempt: int = 0
    pending: tuple[PendingCall, ...] = ()
    history_after: int = 0
    history: tuple[HistoryEntry, ...] = ()
    files: tuple[FileSlice, ...] = ()
    local_tools: tuple[str, ...] = ()
    limits: Limits

    @property
    def execution(self) -> str:
        """Names what this claim leaves on its machine: processes, leases of the guard, spilled output.

        Not the turn's id: a late clean-up of one claim must not touch the next claim of the same turn.
        """
        return f"{self.turn_id}.{self.epoch}"


class Write(Value):
    epoch: int
    number: int = Field(ge=1)


class BoundaryRequest(Write):
    """End the open step, if there is one, and go on. Sent when every local call has its result."""

    history_after: int


class BoundaryResult(Value):
    """What happens next. ``step``: request the model with the entries added. ``parked`` and ``ended``: the claim is
    over, drop it.
    """

    action: Literal["step", "parked", "ended"]
    step: int = 0
    history: tuple[HistoryEntry, ...] = ()
    reason: str | None = None


class AnswerRequest(Write):
    """The complete model answer of ``step``. Call ids may be rewritten where they were used before.

    An answer without calls ends the turn at the next boundary, for the reason that ``finish_reason`` names.
    """

    step: int
    model: str
    content: tuple[ContentBlock, ...]
    usage: Usage = Usage()
    finish_reason: FinishReason
    provider_detail: str | None = None


class AnswerResult(Value):
    """``seq`` of the assistant message and its calls, in order, with their final ids."""

    seq: int
    content: tuple[ContentBlock, ...]
    calls: tuple[PendingCall, ...]


class CompactRequest(Write):
    """The summary that stands for the history before the answer of ``step``; once per step."""

    step: int
    summary: str = Field(min_length=1)
    model: str
    usage: Usage = Usage()
    history_after: int


class CompactResult(Value):
    """``history``: the entries that the conversation goes on with, the summary first."""

    seq: int
    history: tuple[HistoryEntry, ...] = ()


class IntentRequest(Write):
    """A replace of ``path`` is about to happen; committed before the file changes."""

    step: int
    index: int
    path: str
    before: str | None = None
    after: str


class ResultRequest(Write):
    """The result of a local call, with what it saw of files and where it left the Session's directory."""

    step: int
    index: int
    outcome: Outcome
    content: str
    observed: tuple[FileSlice, ...] = ()
    cwd: str | None = None
    duration_ms: int | None = Field(default=None, ge=0)


class ToolRequest(Write):
    """Run a coordinator-side call exactly once; its arguments come from the log."""

    step: int
    index: int


class ToolResult(Value):
    """``waiting``: the call has an open wait and gets its result later; do not wait for it."""

    state: Literal["done", "waiting"]
    entry: HistoryEntry | None = None


class BackoffRequest(Write):
    """Park the turn until ``delay_ms`` have passed on the database's clock: the provider asked for a pause."""

    step: int
    delay_ms: int = Field(ge=0, le=3_600_000)
    reason: str


class FailRequest(Write):
    """End the turn as ``error`` with a stable code (auth, context-length, provider, ...)."""

    code: str
    message: str


class ReleaseRequest(Write):
    """Hand the turn back at a boundary: queued again, nothing lost, nothing repeated."""

    reason: str


class Acknowledged(Value):
    seq: int


class Held(Value):
    turn_id: TurnId
    epoch: int


class HeartbeatRequest(Value):
    """The exact claims that the worker is executing; each is renewed for one lease."""

    worker: str
    claims: tuple[Held, ...]
    stopped: tuple[Held, ...] = ()
    slots: int = Field(ge=0)
    queues: tuple[str, ...] = ("turns",)


class HeartbeatResult(Value):
    """``cancelled`` claims are over: stop their processes and confirm them in ``stopped`` of the next heartbeat."""

    renewed: tuple[Held, ...]
    cancelled: tuple[Held, ...]


class WorkerHello(Value):
    """What a starting worker checks: the lease, the heartbeat's period, the workspace it must see."""

    workspace_id: str
    workspace_root: str
    lease_seconds: float
    heartbeat_seconds: float


class ErrorBody(Value):
    code: str
    message: str


class ErrorResponse(Value):
    error: ErrorBody
