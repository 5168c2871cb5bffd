"""Answers of the coordinator that only operators read, and judgements about the shared ones."""

from team.model.events import Event
from team.model.values import Value
from team.model.views import EventFaultView, TaskView, TeamMemberView, TeamView


class EventPage(Value):
    """Events of one Session after some number, and the records that cannot be read; ``last_seq`` is its newest."""

    events: tuple[Event, ...]
    faults: tuple[EventFaultView, ...] = ()
    last_seq: int = 0


class Executing(Value):
    turn_id: str
    member: str | None = None
    team_id: str | None = None


class WorkerView(Value):
    """One worker, as its newest heartbeat described it; ``last_seen`` is seconds since 1970."""

    name: str
    last_seen: float | str | None = None
    executing: tuple[Executing, ...] = ()
    slots: int = 0


class DoctorSession(Value):
    """Whether the projections of one Session equal the replay of its events."""

    id: str
    events: int
    ok: bool
    fault: str | None = None


class DoctorView(Value):
    ok: bool
    sessions: tuple[DoctorSession, ...] = ()


def is_busy(member: TeamMemberView) -> bool:
    """Has an open turn, input that will open one, or is being created."""
    return member.turn is not None or (member.pending > 0 and not member.held) or member.phase == "provisioning"


def is_settled(team: TeamView) -> bool:
    """No member has an open turn or input that would open one: the work is over."""
    return not any(is_busy(member) for member in team.members)


def is_open(task: TaskView) -> bool:
    return task.status in {"pending", "in_progress"}
