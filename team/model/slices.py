"""The parts of a Session's state. Each is one projection row; an event touches only a few of them."""

from typing import Literal

from team.model.events import Delivery, EndReason, FinishReason, Outcome, SubagentDescribed
from team.model.ids import MessageId, SessionId, TurnId
from team.model.snapshots import MemberSnapshot, TaskSnapshot
from team.model.values import Value
from team.model.workflow_state import WorkflowState

Key = tuple[str, ...]
"""("head",) · ("member", name) · ("task", id) · ("inbox", message id) · ("turn", id) · ("call", id) · ("file", path)"""

HEAD: Key = ("head",)


class Totals(Value):
    """What a Session has used in all its turns, without what it inherited. ``tool_ms`` counts local tools only."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    calls: int = 0
    tool_ms: int = 0
    compactions: int = 0

    @property
    def tokens(self) -> int:
        """What budgets count: tokens read and written, cached ones too."""
        return self.input_tokens + self.output_tokens


class HeadSlice(Value):
    """What a Session is doing now.

    ``held`` closes the inbox to recovery and notices after a turn ended badly; the next human prompt or message
    opens it (DESIGN section 5).
    """

    seq: int = 0
    held: bool = False
    pending_steer: int = 0
    pending_turn: int = 0
    open_turn: TurnId | None = None
    turns: int = 0
    model: str | None = None
    cwd: str
    header_digest: str | None = None
    identified: bool = False
    compacted_seq: int = 0
    last_task_number: int = 0
    descriptor: SubagentDescribed | None = None
    totals: Totals = Totals()

    @property
    def pending(self) -> int:
        return self.pending_steer + self.pending_turn

    @property
    def is_external(self) -> bool:
        """Whether an outside agent stands behind this Session: it has no turns, and reads its inbox when it likes."""
        return self.descriptor is not None and self.descriptor.provider == "external"


class InboxSlice(Value):
    """One accepted message; ``seq`` is the event that holds its content."""

    message_id: MessageId
    seq: int
    delivery: Delivery
    state: Literal["pending", "claimed", "discarded"]
    source_kind: str
    sender_id: SessionId | None = None
    sender_turn: TurnId | None = None


class TurnSlice(Value):
    """One turn. ``step`` is the newest step's number, 0 before the first; ``answered`` says that it has its
    assistant message; ``open_calls`` counts calls without a result. ``compacted_step`` is the newest step whose request
    was preceded by a compaction.
    """

    turn_id: TurnId
    ordinal: int
    start_seq: int
    phase: Literal["open", "parked", "ended"]
    step: int = 0
    step_open: bool = False
    answered: bool = False
    finish: FinishReason | None = None
    calls: int = 0
    open_calls: int = 0
    compacted_step: int = 0
    text_seq: int | None = None
    end_seq: int | None = None
    reason: EndReason | None = None
    code: str | None = None
    message: str | None = None


class CallSlice(Value):
    """One tool call, paired with at most one result. ``workflow`` is the state of what a workflow call runs."""

    call_id: str
    turn_id: TurnId
    step: int
    index: int
    name: str
    seq: int
    outcome: Outcome | None = None
    result_seq: int | None = None
    workflow: WorkflowState | None = None


class FileSlice(Value):
    """What the Session last saw of a file; None is its absence."""

    path: str
    version: str | None = None


Slice = HeadSlice | MemberSnapshot | TaskSnapshot | InboxSlice | TurnSlice | CallSlice | FileSlice
