"""Member views: one projection of status and diagnostics for tools, HTTP and the panel."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from team.log import invites, projections, runs, sessions, waits
from team.log.runs import Run
from team.log.sessions import LockedSession
from team.log.waits import Wait
from team.model.ids import SessionId, TeamId
from team.model.slices import HeadSlice, TurnSlice
from team.model.snapshots import MemberSnapshot, TaskSnapshot
from team.model.views import (
    Availability,
    MemberView,
    TeamMemberView,
    TurnEndView,
    TurnStateView,
    WaitStateView,
    availability,
)
from team.rules.roster import Member, lead_of, member_view


@dataclass(frozen=True)
class MemberState:
    """Everything that views need to know of one member, read in a few statements for the whole Team."""

    member: Member
    session: LockedSession | None
    run: Run | None
    waits: tuple[Wait, ...]
    last_turn: TurnSlice | None
    open_tasks: tuple[str, ...]
    fault: str | None
    is_invited: bool

    @property
    def status(self) -> Availability:
        phase = "active" if self.member.snapshot is None else self.member.snapshot.phase
        return availability(phase, self.run is not None)

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """What a reader should know beyond the status, in words."""
        snapshot, lines = self.member.snapshot, list[str]()
        if snapshot is not None and snapshot.error:
            lines.append(f"creation failed: {snapshot.error}")
        if self.fault is not None:
            lines.append("its Session cannot be read; `team doctor` tells an operator why")
        lines += session_diagnostics(self.session.head if self.session else None, self.run, self.last_turn)
        if snapshot is not None and snapshot.provider == "external":
            lines.append(self._outside())
        elif self.open_tasks and self.status == "inactive":
            lines.append(f"inactive, but owns {', '.join(self.open_tasks)}")
        return tuple(lines)

    def _outside(self) -> str:
        """What is different about an external member, for those who would wait for its turn."""
        if not self.is_invited:
            return "an outside agent whose invitation was revoked: it cannot act"
        unread = self.session.head.pending if self.session else 0
        return f"an outside agent: it reads its messages when it chooses ({unread} unread) and has no turns"


def session_diagnostics(head: HeadSlice | None, run: Run | None, last_turn: TurnSlice | None) -> list[str]:
    """What a reader should know of any Session: how its last turn ended, and which input is held."""
    lines = list[str]()
    if last_turn is not None and last_turn.phase == "ended" and last_turn.reason != "completed" and run is None:
        detail = f" ({last_turn.code})" if last_turn.code else ""
        why = f": {last_turn.message}" if last_turn.message else ""
        lines.append(f"last turn ended {last_turn.reason}{detail}{why}")
    if head is not None and head.held and head.pending:
        lines.append(f"{head.pending} messages are held until the next message")
    return lines


def member_states(
    connection: Connection,
    team_id: TeamId,
    roster: Sequence[MemberSnapshot],
    board: Sequence[TaskSnapshot] | None = None,
) -> list[MemberState]:
    """The Lead first, then creation order. ``board`` spares reading it again."""
    members = [lead_of(team_id), *(Member(snapshot.name, snapshot.id, snapshot) for snapshot in roster)]
    readable, faults = sessions.readable_of(connection, [member.session_id for member in members])
    found = {session.header.id: session for session in readable}
    open_runs = {run.session_id: run for run in runs.team_runs(connection, team_id)}
    open_waits = waits.team_waits(connection, team_id)
    invited = invites.invited_members(connection, team_id)
    owned: dict[SessionId, list[str]] = {}
    for task in projections.live_tasks(connection, SessionId(team_id)) if board is None else board:
        if task.owner_id is not None and task.status in ("pending", "in_progress"):
            owned.setdefault(task.owner_id, []).append(f"{task.id} ({task.status})")
    return [
        MemberState(
            member=member,
            session=found.get(member.session_id),
            run=open_runs.get(member.session_id),
            waits=tuple(wait for wait in open_waits if wait.session_id == member.session_id),
            last_turn=next(iter(projections.turns(connection, member.session_id)), None),
            open_tasks=tuple(owned.get(member.session_id, ())),
            fault=faults.get(member.session_id),
            is_invited=member.session_id in invited,
        )
        for member in members
    ]


def roster_views(connection: Connection, team_id: TeamId, roster: Sequence[MemberSnapshot]) -> list[MemberView]:
    """What ``list_agents`` shows."""
    return [
        member_view(state.member, state.status, state.session.head if state.session else None, state.diagnostics)
        for state in member_states(connection, team_id, roster)
    ]


def team_member_view(connection: Connection, state: MemberState) -> TeamMemberView:
    """One member on the wire."""
    base = member_view(state.member, state.status, state.session.head if state.session else None, state.diagnostics)
    snapshot = state.member.snapshot
    head = state.session.head if state.session else None
    return TeamMemberView(
        **{name: getattr(base, name) for name in MemberView.model_fields},
        phase="active" if snapshot is None else snapshot.phase,
        session_id=state.member.session_id,
        error=None if snapshot is None else snapshot.error,
        last_seq=head.seq if head else 0,
        pending=head.pending if head else 0,
        held=head.held if head else False,
        turn=turn_state(state.run, state.waits),
        last_end=turn_end(state.last_turn),
        workers=tuple(runs.session_workers(connection, state.member.session_id)),
    )


def turn_state(run: Run | None, open_waits: Sequence[Wait]) -> TurnStateView | None:
    if run is None:
        return None
    return TurnStateView(
        id=run.turn_id,
        state=run.state,  # pyright: ignore[reportArgumentType] -- the column holds a state; pydantic refuses others
        since=run.state_since,
        reason=run.reason,
        queue=run.queue,
        worker=run.worker,
        epoch=run.epoch,
        waits=tuple(WaitStateView(kind=wait.kind, call_id=wait.call_id, deadline=wait.deadline) for wait in open_waits),
    )


def turn_end(turn: TurnSlice | None) -> TurnEndView | None:
    if turn is None or turn.phase != "ended" or turn.reason is None:
        return None
    return TurnEndView(turn_id=turn.turn_id, reason=turn.reason, code=turn.code, message=turn.message)
