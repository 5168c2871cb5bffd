"""SessionService: what people and programs outside do with Sessions and Teams."""

import time
from collections import Counter

from sqlalchemy import Connection

from team.log import delegations, projections, runs, sessions, waits
from team.log.events import count_events, read_page
from team.log.sessions import LockedSession, UnreadableSession
from team.log.transaction import Transaction
from team.model.errors import DisposalTimeout, RequestInvalid, SessionNotFound, TeamError
from team.model.events import Delivery, Event, SessionModel
from team.model.ids import SessionId, TeamId, new_session_id
from team.model.snapshots import SessionHeader
from team.model.values import Value
from team.model.views import (
    EventFaultView,
    InterruptView,
    SendView,
    SessionView,
    TeamView,
    availability,
    names_of,
    task_view,
)
from team.rules import forks, inbox, roster, turns
from team.rules.times import iso_time
from team.service.callers import Once, Recorded
from team.service.panel import DAMAGED, failure_of, roster_and_board
from team.service.rosters import member_states, team_member_view, turn_end, turn_state
from team.service.store import Store
from team.service.subagents import subagent_states
from team.service.workflows import workflow_states
from team.service.workspace import directory_within

POLL_SECONDS = 0.05


class CreatedView(Value):
    id: SessionId


class ClosedView(Value):
    """Whom closing stopped, by name; ``unreadable`` has by Session id why one could not be stopped."""

    closed: bool = True
    interrupted: tuple[str, ...] = ()
    unreadable: dict[str, str] = {}


class WorkerRunView(Value):
    turn_id: str
    team_id: str
    member: str


class WorkerView(Value):
    """A worker by its last heartbeat; times are seconds since 1970."""

    name: str
    last_seen: float
    slots: int
    queues: tuple[str, ...]
    executing: tuple[WorkerRunView, ...]


class SessionCheck(Value):
    id: SessionId
    events: int
    ok: bool
    fault: str | None = None


class DoctorView(Value):
    """Whether the replay of every log equals its projections."""

    ok: bool
    sessions: tuple[SessionCheck, ...]


class SessionService:
    """Create, prompt, read, interrupt, close. Raises SessionNotFound for an unknown id."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self, *, cwd: str, profile: str, model: str | None, prompt: str | None, actor: str | None, once: Once | None
    ) -> CreatedView:
        """Create a root Session, with its first prompt if one is given.

        Raises ProfileUnknown, OutsideWorkspace, RequestInvalid (no model, no such directory).
        """
        loaded = self._store.profile(profile)
        directory = directory_within(self._store.settings.workspace_root, cwd)
        if not (model or loaded.model or self._store.settings.model):
            raise RequestInvalid("No model is named: pass one, set TEAM_MODEL, or name one in the profile.")

        def create(tx: Transaction) -> CreatedView:
            session_id = new_session_id()
            header = SessionHeader(
                id=session_id,
                created_at=iso_time(tx.now),
                profile=profile,
                cwd=directory,
                depth=0,
                root_id=session_id,
            )
            tx.create_session(header)
            tx.lock_own_team(header.team_id)
            if model is not None:
                tx.append(session_id, SessionModel(model=model))
            if prompt is not None:
                inbox.prompt(tx, session_id, prompt, "turn", actor)
            return CreatedView(id=session_id)

        result = self._store.writing_once(once, CreatedView, create)
        assert not isinstance(result, Recorded)
        return result

    def prompt(
        self, session_id: str, *, text: str, delivery: Delivery, actor: str | None, once: Once | None
    ) -> SendView:
        """Accept a human prompt: a turn of its own by default, or Steer. Reopens a closed Team.

        Raises InvalidTarget for a member whose creation failed, and what ``inbox.prompt`` raises.
        """

        def accept(tx: Transaction) -> SendView:
            header = self._lock_in_team(tx, session_id)
            member = tx.member_of(header)
            if member is not None:
                roster.require_reachable(roster.Member(member.name, member.id, member))
            sessions.set_closed(tx.connection, header.team_id, closed=False)
            sessions.begin_run(tx.connection, header.team_id, tx.now)
            return SendView(message_id=inbox.prompt(tx, header.id, text, delivery, actor))

        result = self._store.writing_once(once, SendView, accept)
        assert not isinstance(result, Recorded)
        return result

    def interrupt(self, session_id: str, *, actor: str | None, once: Once | None = None) -> InterruptView:
        """End a Session's open turn as aborted; its inbox, ownership and tasks stay."""

        def interrupt(tx: Transaction) -> InterruptView:
            header = self._lock_in_team(tx, session_id)
            member = tx.member_of(header)
            turn = tx.open_turn(header.id)
            previous = availability("active" if member is None else member.phase, turn is not None)
            if turn is not None:
                run = runs.lock_run(tx.connection, turn.turn_id)
                turns.abort(tx, header.id, turn, run, f"interrupted by {actor or 'an operator'}")
            return InterruptView(previous_status=previous)

        result = self._store.writing_once(once, InterruptView, interrupt)
        assert not isinstance(result, Recorded)
        return result

    def fork(self, session_id: str, *, model: str | None, once: Once | None) -> CreatedView:
        """A new root with the conversation of a Session's completed turns; its Team starts empty."""

        def fork(tx: Transaction) -> CreatedView:
            source = sessions.find_session(tx.connection, session_id).header
            tx.lock_sessions(source.id)
            forked = new_session_id()
            forks.create_session(tx, forked, source, parent=None, inherits=True, model=model)
            return CreatedView(id=forked)

        result = self._store.writing_once(once, CreatedView, fork)
        assert not isinstance(result, Recorded)
        return result

    def select_model(self, session_id: str, model: str, *, once: Once | None = None) -> SessionView:
        """Choose the model of a Session's next requests; durable, and kept on resume."""
        if not model.strip():
            raise RequestInvalid("Name a model, such as openai-chat:NAME.")

        def select(tx: Transaction) -> SessionView:
            header = self._lock_in_team(tx, session_id)
            tx.append(header.id, SessionModel(model=model))
            tx.flush()
            return self._view(tx.connection, sessions.find_session(tx.connection, header.id))

        result = self._store.writing_once(once, SessionView, select)
        assert not isinstance(result, Recorded)
        return result

    def _lock_in_team(self, tx: Transaction, session_id: str) -> SessionHeader:
        header = sessions.find_session(tx.connection, session_id).header
        tx.lock_team(header.team_id)
        tx.lock_sessions(*turns.sessions_of_end(tx, header))
        return header

    def close(self, team_id: str, *, once: Once | None = None) -> ClosedView:
        """Close admission to a Team and stop every live turn of its tree.

        Waits until the workers confirm, at most the disposal time. A repeated key stops nothing again and waits for
        what the first request stopped. A Session that cannot be read is left and named.
        Raises DisposalTimeout that names who did not stop.
        """
        closed = self._stop_all(TeamId(team_id), once)
        deadline = time.monotonic() + self._store.settings.disposal_seconds
        while still := self._guarded(team_id):
            if time.monotonic() >= deadline:
                raise DisposalTimeout(
                    f"Still stopping after {self._store.settings.disposal_seconds:g} s: {', '.join(still)}. Their "
                    "claims are fenced; the workers that run them do not answer."
                )
            time.sleep(POLL_SECONDS)
        return closed

    def _stop_all(self, team_id: TeamId, once: Once | None) -> ClosedView:
        def stop(tx: Transaction) -> ClosedView:
            tx.lock_team(team_id)
            sessions.set_closed(tx.connection, team_id, closed=True)
            readable, faults = sessions.readable_tree(tx.connection, team_id)
            tx.lock_sessions(*(found.header.id for found, _ in readable))
            stopped = list[str]()
            for snapshot in tx.members(team_id):
                if snapshot.phase == "provisioning" and team_id not in faults:
                    roster.settle(tx, team_id, snapshot, error="the Team was closed during its creation")
            # Children first: those that a call waits for would end with their parent's turn, unnamed.
            for found, _ in reversed(readable):
                turn = tx.open_turn(found.header.id)
                if turn is not None:
                    if found.header.parent_id in faults:
                        delegations.drop_delegation(tx.connection, found.header.id)
                    run = runs.lock_run(tx.connection, turn.turn_id)
                    turns.abort(tx, found.header.id, turn, run, "the Team was closed", notify=False)
                    stopped.insert(0, roster.name_of(tx, found.header))
            return ClosedView(interrupted=tuple(stopped), unreadable=faults)

        result = self._store.writing_once(once, ClosedView, stop)
        assert not isinstance(result, Recorded)
        return result

    def _guarded(self, team_id: str) -> list[str]:
        with self._store.reading() as connection:
            now = self._store.database.now(connection)
            return [
                f"{found.header.id} ({found.guard_turn})"
                for found, _ in sessions.readable_tree(connection, team_id)[0]
                if found.guard_until is not None and found.guard_until > now
            ]

    def view(self, session_id: str) -> SessionView:
        with self._store.reading() as connection:
            return self._view(connection, sessions.find_session(connection, session_id))

    def page(self, after: str | None, limit: int) -> tuple[list[SessionView], str | None]:
        """Sessions in order of creation behind the one named ``after``, and the cursor of the next page, if any.

        One that cannot be read keeps its row with the fault. Raises SessionNotFound for an unknown ``after``.
        """
        with self._store.reading() as connection:
            rows = sessions.session_page(connection, after, limit + 1)
            views = [
                self._view(connection, row) if isinstance(row, LockedSession) else self._faulty(connection, row)
                for row in rows[:limit]
            ]
            return views, views[-1].id if len(rows) > limit else None

    def _faulty(self, connection: Connection, row: UnreadableSession) -> SessionView:
        run = runs.session_run(connection, row.id)
        return SessionView(
            id=SessionId(row.id),
            root_id=SessionId(row.root_id),
            parent_id=None if row.parent_id is None else SessionId(row.parent_id),
            profile="unknown",
            cwd="unknown",
            created_at=iso_time(row.created),
            status=availability("active", run is not None),
            last_seq=row.seq,
            pending=0,
            held=False,
            turn=turn_state(run, waits.turn_waits(connection, run.turn_id) if run else ()),
            workers=tuple(runs.session_workers(connection, row.id)),
            fault=row.fault,
        )

    def _view(self, connection: Connection, found: LockedSession) -> SessionView:
        header, head = found.header, found.head
        run = runs.session_run(connection, header.id)
        member = projections.member_by_session(connection, header.root_id, header.id) if header.depth == 1 else None
        phase = "active" if member is None else member.phase
        last = next(iter(projections.turns(connection, header.id)), None)
        return SessionView(
            id=header.id,
            root_id=header.root_id,
            parent_id=header.parent_id,
            label=head.descriptor.label if head.descriptor else None,
            profile=header.profile,
            cwd=head.cwd,
            model=head.model,
            created_at=header.created_at,
            status=availability(phase, run is not None),
            last_seq=head.seq,
            pending=head.pending,
            held=head.held,
            turn=turn_state(run, waits.turn_waits(connection, run.turn_id) if run else ()),
            last_end=turn_end(last),
            workers=tuple(runs.session_workers(connection, header.id)),
            fault=last.message if last is not None and last.code == DAMAGED else None,
        )

    def events(self, session_id: str, after: int, limit: int) -> tuple[list[Event], list[EventFaultView], int]:
        """A page of the log after ``after``: the events, the records that cannot be read, and the newest seq."""
        with self._store.reading() as connection:
            last_seq = sessions.last_seq(connection, session_id)
            return *read_page(connection, session_id, after, limit), last_seq

    def team(self, team_id: str) -> TeamView:
        """The wire view of a Team. Raises SessionNotFound for a Session that leads none."""
        with self._store.reading() as connection:
            found = sessions.find_session(connection, team_id)
            if found.header.depth != 0:
                raise SessionNotFound(f"{team_id} leads no Team; its Team is {found.header.root_id}.")
            team = found.header.team_id
            snapshots, stored, damage = roster_and_board(connection, found.header)
            board = {task.id: task for task in stored}
            names = names_of(team, snapshots)
            return TeamView(
                team_id=team,
                members=tuple(
                    team_member_view(connection, state) for state in member_states(connection, team, snapshots, stored)
                ),
                subagents=tuple(subagent_states(connection, found.header.id)),
                workflows=tuple(workflow_states(connection, team)),
                tasks=tuple(task_view(task, board, names) for task in stored),
                closed=sessions.is_closed(connection, team),
                edge_counter=sessions.edge_counter(connection, team),
                failure=failure_of(damage, next(iter(projections.turns(connection, team)), None)),
            )

    def member_session(self, team_id: str, target: str) -> SessionId:
        """The Session behind a target. Raises MemberNotFound, SessionNotFound."""
        with self._store.reading() as connection:
            tx = Transaction(self._store.database, connection, self._store.settings)
            header = sessions.find_session(connection, team_id).header
            return roster.resolve(tx, header.team_id, target).session_id

    def workers(self) -> list[WorkerView]:
        """Workers that sent a heartbeat lately, and what they execute."""
        with self._store.reading() as connection:
            since = self._store.database.now(connection) - 3 * self._store.settings.lease_seconds
            running = runs.running_runs(connection)
            return [
                WorkerView(
                    name=name,
                    last_seen=seen,
                    slots=slots,
                    queues=queues,
                    executing=tuple(
                        WorkerRunView(turn_id=run.turn_id, team_id=run.team_id, member=run.member)
                        for run in running
                        if run.worker == name
                    ),
                )
                for name, seen, slots, queues in runs.list_workers(connection, since)
            ]

    def served_queues(self) -> dict[str, int]:
        """How many workers that were heard of lately serve each queue. Raises StoreUnavailable."""
        with self._store.reading() as connection:
            since = self._store.database.now(connection) - 3 * self._store.settings.lease_seconds
            return dict(Counter(queue for row in runs.list_workers(connection, since) for queue in row[3]))

    def doctor(self) -> DoctorView:
        """Replay every log and compare it with its projections."""
        checks = list[SessionCheck]()
        with self._store.reading() as connection:
            session_ids = sessions.session_ids(connection)
        for session_id in session_ids:
            with self._store.reading() as connection:
                events = count_events(connection, session_id)
                try:
                    fault = projections.fault_of(connection, session_id)
                except TeamError as error:
                    fault = error.message
            checks.append(SessionCheck(id=session_id, events=events, ok=fault is None, fault=fault))
        return DoctorView(ok=all(check.ok for check in checks), sessions=tuple(checks))
