"""Derived values: what tools, HTTP and the panel show. Every tool result is one of these, rendered compactly."""

from typing import Any, Literal

from pydantic import RootModel

from team.model.content import ContentBlock
from team.model.ids import LEAD_NAME, MessageId, SessionId, TaskId, TeamId, TurnId
from team.model.snapshots import Context, MemberSnapshot, Phase, Provider, TaskSnapshot, TaskStatus
from team.model.values import Value

Availability = Literal["running", "inactive", "provisioning", "failed"]


class MemberView(Value):
    """One member as a model sees it: addressed by ``target``, no Session id, no residency, no worker."""

    target: str
    role: Literal["lead", "teammate"]
    status: Availability
    description: str | None = None
    provider: Provider | None = None
    context: Context | None = None
    model: str | None = None
    diagnostics: tuple[str, ...] = ()


class SpawnView(Value):
    """The result of ``spawn_teammate``."""

    member: MemberView


class RosterView(RootModel[tuple[MemberView, ...]]):
    """The result of ``list_agents``: the Lead first, then creation order."""

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_none=True)


class SendView(Value):
    """The result of ``send_message``: accepted into the target's inbox."""

    message_id: MessageId
    status: Literal["accepted"] = "accepted"


class MessageView(Value):
    """One message as an external member reads it: the blocks that a model would see, the frame first."""

    message_id: MessageId
    kind: str
    content: tuple[ContentBlock, ...]


class MessagesView(Value):
    """The result of ``read_messages``: the oldest first, and how many are still unread."""

    messages: tuple[MessageView, ...]
    unread: int


class InviteView(Value):
    """An invitation of an external member. The token is shown here and nowhere else."""

    team_id: TeamId
    target: str
    token: str


class RevokedView(Value):
    """Whether there was an invitation to revoke."""

    revoked: bool


class NoProgress(Value):
    """Why waiting cannot help."""

    reason: Literal["no-active-peer", "all-peers-waiting"]
    message: str


class WaitView(Value):
    """The result of ``wait_agent``. It says only that something changed: read the roster and the board again."""

    timed_out: bool
    no_progress: NoProgress | None = None


class InterruptView(Value):
    """The result of ``interrupt_agent``."""

    previous_status: Availability


class SubagentView(Value):
    """The result of ``subagent`` and ``subagent_fork`` in the background: a notice tells when a turn of it ends."""

    agent_id: SessionId
    status: Availability


class SubagentResultView(Value):
    """The result of ``subagent`` and ``subagent_fork`` in the foreground, when the child completed its work."""

    label: str
    text: str


class SubagentRowView(Value):
    """One child of the caller. A row with ``error`` cannot be read and says why; nothing else is known of it."""

    agent_id: SessionId
    label: str | None = None
    status: Availability | None = None
    mode: Literal["one-shot", "continuable"] | None = None
    context: Provider | None = None
    model: str | None = None
    diagnostics: tuple[str, ...] = ()
    error: str | None = None


class SubagentListView(RootModel[tuple[SubagentRowView, ...]]):
    """The result of ``list_agents`` for an agent with subagents: its direct children in order of creation."""

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_none=True)


class ScopeWarning(Value):
    """Another live task whose write scopes overlap; advice, never a lock."""

    task_id: TaskId
    scope: str
    other_scope: str


class TaskView(Value):
    """One task with what follows from the whole board."""

    id: TaskId
    revision: int
    subject: str
    description: str
    status: TaskStatus
    owner_name: str | None = None
    blocked_by: tuple[TaskId, ...] = ()
    open_blockers: tuple[TaskId, ...] = ()
    write_scopes: tuple[str, ...] = ()
    ready: bool
    write_scope_warnings: tuple[ScopeWarning, ...] = ()


class TaskListView(Value):
    """The result of ``team_task_list``; ``next_cursor`` is absent on the last page."""

    tasks: tuple[TaskView, ...]
    next_cursor: str | None = None


def availability(phase: Phase, has_open_turn: bool) -> Availability:
    """The one projection of status that tools, HTTP, panel and interruption share.

    Source: spec/availability-and-targets. A turn has begun, for a model, when it was accepted: queued, executing and
    parked turns are all ``running``.
    """
    if phase == "active":
        return "running" if has_open_turn else "inactive"
    return phase


def scopes_overlap(one: str, other: str) -> bool:
    """Whether two normalised path prefixes name a common file."""
    if "." in (one, other):
        return True
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def task_view(task: TaskSnapshot, board: dict[TaskId, TaskSnapshot], names: dict[SessionId, str]) -> TaskView:
    """Derive readiness and overlaps of one task from the whole board."""
    blockers = tuple(
        blocker for blocker in task.blocked_by if blocker not in board or board[blocker].status != "completed"
    )
    live = task.status in ("pending", "in_progress")
    warnings = tuple(
        ScopeWarning(task_id=other.id, scope=mine, other_scope=theirs)
        for other in board.values()
        if live and other.id != task.id and other.status in ("pending", "in_progress")
        for mine in task.write_scopes
        for theirs in other.write_scopes
        if scopes_overlap(mine, theirs)
    )
    return TaskView(
        id=task.id,
        revision=task.revision,
        subject=task.subject,
        description=task.description,
        status=task.status,
        owner_name=names.get(task.owner_id, "unknown") if task.owner_id else None,
        blocked_by=task.blocked_by,
        open_blockers=blockers if live else (),
        write_scopes=task.write_scopes,
        ready=task.status == "pending" and not blockers,
        write_scope_warnings=warnings,
    )


def names_of(team_id: TeamId, members: list[MemberSnapshot]) -> dict[SessionId, str]:
    """Member names by Session id, the Lead's included."""
    return {SessionId(team_id): LEAD_NAME, **{member.id: member.name for member in members}}


class WaitStateView(Value):
    kind: str
    call_id: str | None = None
    deadline: float | None = None


class TurnStateView(Value):
    """The finer state of an open turn, for operators; times are seconds since 1970."""

    id: TurnId
    state: Literal["queued", "running", "parked"]
    since: float
    reason: str
    queue: str = "turns"
    worker: str | None = None
    epoch: int
    waits: tuple[WaitStateView, ...] = ()


class TurnEndView(Value):
    turn_id: TurnId
    reason: str
    code: str | None = None
    message: str | None = None


class EventFaultView(Value):
    """One record of a log that cannot be read, beside those that can."""

    seq: int
    type: str
    fault: str


class SessionView(Value):
    """One Session, for operators. With a ``fault`` it cannot be read, and the rest is as far as known."""

    id: SessionId
    root_id: SessionId
    parent_id: SessionId | None = None
    label: str | None = None
    profile: str
    cwd: str
    model: str | None = None
    created_at: str
    status: Availability
    last_seq: int
    pending: int
    held: bool
    turn: TurnStateView | None = None
    last_end: TurnEndView | None = None
    workers: tuple[str, ...] = ()
    fault: str | None = None


class TeamMemberView(Value):
    """One member on the wire: durable roster facts beside the live state of its Session."""

    target: str
    role: Literal["lead", "teammate"]
    status: Availability
    phase: Phase
    session_id: SessionId
    description: str | None = None
    provider: Provider | None = None
    context: Context | None = None
    model: str | None = None
    error: str | None = None
    last_seq: int = 0
    pending: int = 0
    held: bool = False
    turn: TurnStateView | None = None
    last_end: TurnEndView | None = None
    workers: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()


class SubagentStateView(Value):
    """A subagent at any depth below a root, for operators; one that cannot be read has ``error``, and little else."""

    session_id: SessionId
    parent_id: SessionId | None = None
    label: str | None = None
    mode: Literal["one-shot", "continuable"] | None = None
    status: Availability | None = None
    model: str | None = None
    last_seq: int = 0
    pending: int = 0
    held: bool = False
    turn: TurnStateView | None = None
    last_end: TurnEndView | None = None
    workers: tuple[str, ...] = ()
    error: str | None = None


class WorkflowStateView(Value):
    """A workflow that an open call runs, for operators; ``waiting`` agents have not begun."""

    session_id: SessionId
    call_id: str
    name: str
    phase: str | None = None
    note: str | None = None
    agents: int
    running: int
    waiting: int
    failed: int


class TeamView(Value):
    """The wire view of a Team: roster with phases and live status, non-deleted tasks, the failure beside them.

    ``subagents`` are in no roster: children of members, and theirs. ``workflows`` run for whichever of all these.
    """

    team_id: TeamId
    members: tuple[TeamMemberView, ...]
    subagents: tuple[SubagentStateView, ...] = ()
    workflows: tuple[WorkflowStateView, ...] = ()
    tasks: tuple[TaskView, ...]
    closed: bool
    edge_counter: int
    failure: str | None = None


class WorkflowFailureView(Value):
    """One agent of a workflow that gave no answer."""

    label: str
    error: str


class WorkflowView(Value):
    """The result of a workflow call. Failures beyond the first few are only counted.

    ``cut``: the value was too long, and ``result`` is the beginning of its JSON text.
    """

    result: Any
    cut: bool | None = None
    agents: int
    failed: int
    failures: tuple[WorkflowFailureView, ...] | None = None
