"""What a stream carries: a Team's durable view, the live status of its Sessions, turns over time."""

from team.model.ids import SessionId, TeamId, TurnId
from team.model.snapshots import Context, Phase, Provider
from team.model.values import Value
from team.model.views import Availability, TaskView, TurnEndView, TurnStateView


class RosterEntry(Value):
    """One roster member as the Team's log has it. What its Session does now is in its ``SessionStatus``.

    ``since`` (seconds since 1970) is told of a member that has no Session to tell it: being created, or failed.
    """

    target: str
    session_id: SessionId
    phase: Phase
    description: str | None = None
    provider: Provider | None = None
    context: Context | None = None
    error: str | None = None
    since: float | None = None


class TeamWire(Value):
    """The Team projection: roster with phases, non-deleted tasks, and the failure beside the last valid state."""

    team_id: TeamId
    closed: bool
    roster: tuple[RosterEntry, ...]
    tasks: tuple[TaskView, ...]
    failure: str | None = None


class SessionStatus(Value):
    """What one Session does now; times are seconds since 1970.

    ``since`` is when that began: the state of its open turn, else the end of its last turn, else its creation. ``lost``
    says that its claim's lease has run out, so its worker is not at work any more. ``fault`` replaces everything else
    when the Session cannot be read.
    """

    id: SessionId
    parent_id: SessionId | None = None
    label: str
    status: Availability
    since: float | None = None
    profile: str | None = None
    cwd: str | None = None
    model: str | None = None
    last_seq: int = 0
    turns: int = 0
    pending: int = 0
    held: bool = False
    turn: TurnStateView | None = None
    lost: bool = False
    last_end: TurnEndView | None = None
    workers: tuple[str, ...] = ()
    fault: str | None = None


class TeamState(Value):
    """One moment of a Team: its projection and its Sessions, the Lead first, then in order of creation."""

    team: TeamWire
    sessions: tuple[SessionStatus, ...]


class TeamSummary(Value):
    """One row of the list of Teams. ``title`` is the beginning of its first prompt."""

    team_id: TeamId
    created: float
    title: str | None = None
    profile: str | None = None
    status: Availability | None = None
    members: int = 0
    running: int = 0
    tasks: int = 0
    completed: int = 0
    closed: bool = False
    fault: str | None = None


class TurnSpan(Value):
    """A stretch of a turn in one state; ``until`` is absent while it lasts."""

    state: str
    since: float
    until: float | None = None
    worker: str | None = None


class TurnHistory(Value):
    """One turn over time."""

    session_id: SessionId
    turn_id: TurnId
    ordinal: int
    spans: tuple[TurnSpan, ...]
    reason: str | None = None
    code: str | None = None


class TimelineView(Value):
    """The newest turns of a Team by Session, oldest first; ``now`` is the database's clock."""

    now: float
    turns: tuple[TurnHistory, ...]
