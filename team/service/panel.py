"""PanelService: what people watch. Whole Teams in a handful of statements, however many members they have."""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError
from sqlalchemy import Connection

from team.log import projections, runs, sessions, waits
from team.log.events import event_times, member_times, readable_events, typed_events
from team.log.runs import Run
from team.log.sessions import LockedSession
from team.log.waits import Wait
from team.model.content import text_of
from team.model.errors import LogDamaged, SessionNotFound, TeamError
from team.model.events import Event, InboxInserted
from team.model.ids import LEAD_NAME, SessionId, TaskId, TeamId
from team.model.slices import TurnSlice
from team.model.snapshots import MemberSnapshot, SessionHeader, TaskSnapshot
from team.model.views import TaskView, availability, names_of, task_view
from team.model.wire import (
    RosterEntry,
    SessionStatus,
    TeamState,
    TeamSummary,
    TeamWire,
    TimelineView,
    TurnHistory,
    TurnSpan,
)
from team.rules.times import seconds_of
from team.service.rosters import turn_end, turn_state
from team.service.store import Store

LISTED_TEAMS = 200
TIMELINE_TURNS = 40
TITLE_CHARACTERS = 140
DAMAGED = "log-damaged"
TURN_TYPES = ("turn/parked", "turn/resumed")


class PanelService:
    """Reads for panel and live views. Raises SessionNotFound for an unknown id, StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._titles: dict[str, str] = {}
        self._phases: dict[str, dict[tuple[str, str], str]] = {}

    def root_of(self, session_id: str) -> TeamId:
        """The Team whose tree a Session belongs to."""
        with self._store.reading() as connection:
            return sessions.find_session(connection, session_id).header.team_id

    def state(self, team_id: str) -> TeamState:
        """A Team now. Damage of one Session is in its row, damage of the Lead's log is the Team's failure."""
        with self._store.reading() as connection:
            found, faults = sessions.readable_tree(connection, team_id)
            lead = next((session for session, _ in found if session.header.id == team_id), None)
            if lead is None:
                if team_id in faults:
                    raise LogDamaged(faults[team_id])
                raise SessionNotFound(f"{team_id} leads no Team; `team sessions` lists them.")
            roster, board, damage = roster_and_board(connection, lead.header)
            last = projections.last_turns(connection, team_id)
            statuses = self._statuses(connection, found, faults, roster, last)
            return TeamState(
                team=TeamWire(
                    team_id=TeamId(team_id),
                    closed=sessions.is_closed(connection, team_id),
                    roster=_roster(TeamId(team_id), roster, self._phase_times(connection, team_id, roster)),
                    tasks=_tasks(TeamId(team_id), roster, board),
                    failure=failure_of(damage, last.get(team_id)),
                ),
                sessions=tuple(statuses),
            )

    def _statuses(
        self,
        connection: Connection,
        found: Sequence[tuple[LockedSession, float]],
        faults: Mapping[str, str],
        roster: Sequence[MemberSnapshot],
        last: Mapping[str, TurnSlice],
    ) -> list[SessionStatus]:
        team_id = TeamId(found[0][0].header.root_id)
        now = self._store.database.now(connection)
        open_runs = {run.session_id: run for run in runs.team_runs(connection, team_id)}
        open_waits = waits.team_waits(connection, team_id)
        workers = runs.tree_workers(connection, team_id)
        ends = [(session_id, turn.end_seq) for session_id, turn in last.items() if turn.end_seq is not None]
        times = event_times(connection, ends)
        members = {member.id: member for member in roster}
        names = names_of(team_id, list(roster))
        statuses = list[SessionStatus]()
        for session, created in found:
            session_id, turn = session.header.id, last.get(session.header.id)
            run = open_runs.get(session_id)
            member = members.get(session_id)
            ended = times.get((session_id, turn.end_seq)) if turn is not None and turn.end_seq is not None else None
            statuses.append(
                SessionStatus(
                    id=session_id,
                    parent_id=session.header.parent_id,
                    label=names.get(session_id) or _label(session),
                    status=availability("active" if member is None else member.phase, run is not None),
                    since=run.state_since if run is not None else (seconds_of(ended) if ended else created),
                    profile=session.header.profile,
                    cwd=session.head.cwd,
                    model=session.head.model or (None if member is None else member.model),
                    last_seq=session.head.seq,
                    turns=session.head.turns,
                    pending=session.head.pending,
                    held=session.head.held,
                    turn=turn_state(run, _waits_of(open_waits, session_id)),
                    lost=_is_lost(run, now),
                    last_end=turn_end(turn),
                    workers=tuple(workers.get(session_id, ())),
                )
            )
        statuses += [
            SessionStatus(
                id=SessionId(session_id),
                label=names.get(SessionId(session_id), session_id),
                status="inactive",
                fault=fault,
            )
            for session_id, fault in faults.items()
        ]
        return statuses

    def _phase_times(
        self, connection: Connection, team_id: str, roster: Sequence[MemberSnapshot]
    ) -> Mapping[tuple[str, str], str]:
        """Since when members are not active; the log is read only for a phase that was not looked up before."""
        known = self._phases.setdefault(team_id, {})
        wanted = {(member.name, member.phase) for member in roster if member.phase != "active"}
        if wanted - set(known):
            known.update(member_times(connection, team_id))
        return {place: known[place] for place in wanted if place in known}

    def teams(self) -> list[TeamSummary]:
        """The newest Teams, newest first; one that cannot be read keeps its row with the fault."""
        summaries = list[TeamSummary]()
        with self._store.reading() as connection:
            for team_id, created in sessions.newest_roots(connection, LISTED_TEAMS):
                try:
                    summaries.append(self._summary(connection, team_id, created))
                except (TeamError, ValidationError) as error:
                    fault = error.message if isinstance(error, TeamError) else "its state cannot be read"
                    summaries.append(TeamSummary(team_id=TeamId(team_id), created=created, fault=fault))
        return summaries

    def _summary(self, connection: Connection, team_id: str, created: float) -> TeamSummary:
        found = sessions.find_session(connection, team_id)
        board = projections.live_tasks(connection, found.header.id)
        running = {run.session_id for run in runs.team_runs(connection, team_id)}
        return TeamSummary(
            team_id=found.header.team_id,
            created=created,
            title=self._title(connection, team_id, found.head.seq),
            profile=found.header.profile,
            status=availability("active", bool(running)),
            members=len(projections.members(connection, found.header.id)),
            running=len(running),
            tasks=len(board),
            completed=sum(task.status == "completed" for task in board),
            closed=sessions.is_closed(connection, team_id),
        )

    def _title(self, connection: Connection, team_id: str, last_seq: int) -> str | None:
        if team_id not in self._titles:
            page, _damage = readable_events(connection, team_id, 0, min(last_seq, 20))
            prompts = [event.decoded() for event in page if event.type == InboxInserted.event_type]
            prompt = next((data for data in prompts if isinstance(data, InboxInserted)), None)
            if prompt is None:
                return None
            # What was said first never changes.
            self._titles[team_id] = " ".join(text_of(prompt.content).split())[:TITLE_CHARACTERS]
        return self._titles[team_id]

    def events(self, session_id: str, after: int, limit: int) -> tuple[list[Event], LogDamaged | None]:
        """Events after a seq up to ``limit`` or to the first that cannot be read, and its damage."""
        with self._store.reading() as connection:
            return readable_events(connection, session_id, after, limit)

    def last_seq(self, session_id: str) -> int:
        with self._store.reading() as connection:
            return sessions.find_session(connection, session_id).head.seq

    def timeline(self, team_id: str) -> TimelineView:
        """The newest turns of each Session of a Team over time."""
        histories = list[TurnHistory]()
        with self._store.reading() as connection:
            now = self._store.database.now(connection)
            claims = dict[str, list[tuple[str, float]]]()
            for _session, turn_id, worker, at in runs.claims_of(connection, team_id):
                claims.setdefault(turn_id, []).append((worker, at))
            found, _faults = sessions.readable_tree(connection, team_id)
            for session, _created in found:
                session_id = session.header.id
                newest = list(projections.turns(connection, session_id, TIMELINE_TURNS))[::-1]
                if newest:
                    histories += _histories(connection, session_id, newest, claims)
        return TimelineView(now=now, turns=tuple(histories))


def failure_of(damage: str | None, last: TurnSlice | None) -> str | None:
    """The Team's failure: damage that was met now, or that ended the Lead's last turn."""
    if damage is None and last is not None and last.code == DAMAGED:
        return last.message
    return damage


def roster_and_board(
    connection: Connection, lead: SessionHeader
) -> tuple[list[MemberSnapshot], list[TaskSnapshot], str | None]:
    """Roster, board without tombstones, and why they are not the newest, when they cannot be read.

    Projections that cannot be read are replaced by the fold of the log, as far as that can be read.
    """
    try:
        members, tasks = projections.members(connection, lead.id), projections.live_tasks(connection, lead.id)
    except ValidationError as error:
        state, damage = projections.last_valid(connection, lead)
        fault = damage or f"Session {lead.id}: its stored view cannot be read ({error.error_count()} faults)."
        kept_members = [value for value in state.values() if isinstance(value, MemberSnapshot)]
        tasks = [value for value in state.values() if isinstance(value, TaskSnapshot)]
        kept_tasks = [task for task in tasks if task.status != "deleted"]
        return kept_members, kept_tasks, fault
    return list(members), list(tasks), None


def _roster(
    team_id: TeamId, roster: Sequence[MemberSnapshot], times: Mapping[tuple[str, str], str]
) -> tuple[RosterEntry, ...]:
    lead = RosterEntry(target=LEAD_NAME, session_id=SessionId(team_id), phase="active")
    teammates = (
        RosterEntry(
            target=member.name,
            session_id=member.id,
            phase=member.phase,
            description=member.description,
            provider=member.provider,
            context=member.context,
            error=member.error,
            since=seconds_of(times.get((member.name, member.phase), "")),
        )
        for member in roster
    )
    return (lead, *teammates)


def _tasks(team_id: TeamId, roster: Sequence[MemberSnapshot], board: Sequence[TaskSnapshot]) -> tuple[TaskView, ...]:
    tasks: dict[TaskId, TaskSnapshot] = {task.id: task for task in board}
    names = names_of(team_id, list(roster))
    return tuple(task_view(task, tasks, names) for task in board)


def _label(session: LockedSession) -> str:
    descriptor = session.head.descriptor
    return descriptor.label if descriptor is not None else LEAD_NAME


def _waits_of(open_waits: Sequence[Wait], session_id: str) -> list[Wait]:
    return [wait for wait in open_waits if wait.session_id == session_id]


def _is_lost(run: Run | None, now: float) -> bool:
    return run is not None and run.state == "running" and run.lease_until is not None and run.lease_until < now


def _histories(
    connection: Connection,
    session_id: SessionId,
    turns: Sequence[TurnSlice],
    claims: Mapping[str, Sequence[tuple[str, float]]],
) -> list[TurnHistory]:
    marks = typed_events(connection, session_id, TURN_TYPES, turns[0].start_seq)
    places = [(session_id, seq) for turn in turns for seq in (turn.start_seq, turn.end_seq) if seq is not None]
    times = {seq: seconds_of(time) or 0.0 for (_id, seq), time in event_times(connection, places).items()}
    histories = list[TurnHistory]()
    for turn in turns:
        started = times.get(turn.start_seq)
        if started is None:
            continue
        ended = times.get(turn.end_seq) if turn.end_seq is not None else None
        changes: list[tuple[float, str, str | None]] = [(started, "queued", None)]
        changes += [(at, "running", worker) for worker, at in claims.get(turn.turn_id, ())]
        for seq, time, kind in marks:
            if turn.start_seq < seq and (turn.end_seq is None or seq < turn.end_seq):
                changes.append((seconds_of(time) or started, "parked" if kind == "turn/parked" else "queued", None))
        histories.append(
            TurnHistory(
                session_id=session_id,
                turn_id=turn.turn_id,
                ordinal=turn.ordinal,
                spans=_spans(changes, ended),
                reason=turn.reason,
                code=turn.code,
            )
        )
    return histories


def _spans(changes: list[tuple[float, str, str | None]], ended: float | None) -> tuple[TurnSpan, ...]:
    changes.sort(key=lambda change: change[0])
    untils: list[float | None] = [*(since for since, _state, _worker in changes[1:]), ended]
    return tuple(
        TurnSpan(state=state, since=since, until=until, worker=worker)
        for (since, state, worker), until in zip(changes, untils, strict=True)
    )
