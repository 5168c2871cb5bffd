"""Answers of the coordinator that only operators read, and judgements about the shared ones."""

from collections.abc import Iterable

from team.model.events import Event
from team.model.values import Value
from team.model.views import EventFaultView, SessionView, SubagentStateView, TaskView, TeamMemberView, TeamView


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
    queues: tuple[str, ...] = ()


class DoctorSession(Value):
    """Whether the projections of one Session equal the replay of its events."""

    id: str
    events: int
    ok: bool
    fault: str | None = None


class DoctorView(Value):
    ok: bool
    sessions: tuple[DoctorSession, ...] = ()


def is_busy(agent: TeamMemberView | SubagentStateView) -> bool:
    """Has an open turn, input that will open one, or is being created."""
    creating = isinstance(agent, TeamMemberView) and agent.phase == "provisioning"
    # What an outside agent has not read opens no turn: nobody here can say when it will be read.
    sleeping = agent.held or (isinstance(agent, TeamMemberView) and agent.provider == "external")
    return agent.turn is not None or (agent.pending > 0 and not sleeping) or creating


def unserved_queues(
    agents: Iterable[SessionView | TeamMemberView | SubagentStateView], workers: Iterable[WorkerView]
) -> list[str]:
    """The queues on which a turn of these waits and that no worker serves, in order."""
    served = {queue for worker in workers for queue in worker.queues}
    waiting = {agent.turn.queue for agent in agents if agent.turn is not None and agent.turn.state == "queued"}
    return sorted(waiting - served)


def is_settled(team: TeamView) -> bool:
    """No member and no subagent has an open turn or input that would open one: the work is over."""
    return not any(is_busy(agent) for agent in (*team.members, *team.subagents))


def name_of(agent: TeamMemberView | SubagentStateView) -> str:
    """How an agent is called in lines for people."""
    return agent.target if isinstance(agent, TeamMemberView) else agent.label or "subagent"


def is_open(task: TaskView) -> bool:
    return task.status in {"pending", "in_progress"}
