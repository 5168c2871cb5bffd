"""SubagentService: what an agent does with its own subagents (DESIGN section 7).

Each is addressed by its ``agent_id``, and only by its direct parent. Like Team operations each runs as one transaction
under the Team's lock, and for a call of a turn its effect and the call's ``tool/result`` commit together.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection

from team.log import projections, runs, sessions, waits
from team.log.sessions import LockedSession, UnreadableSession
from team.log.transaction import Transaction
from team.model.errors import (
    InvalidArgument,
    InvalidTarget,
    LogDamaged,
    SubagentNotFound,
)
from team.model.events import first_fault
from team.model.ids import SessionId, child_session_id
from team.model.slices import CallSlice
from team.model.snapshots import SessionHeader
from team.model.views import (
    InterruptView,
    SendView,
    SubagentListView,
    SubagentRowView,
    SubagentStateView,
    SubagentView,
    availability,
)
from team.rules import children, inbox, roster, turns, waiting
from team.rules.children import Order
from team.service.callers import Caller, Recorded, open_call, record_result
from team.service.rosters import session_diagnostics, turn_end, turn_state
from team.service.store import Store
from team.service.teams import compact

_V = TypeVar("_V", bound=BaseModel)
Body = Callable[[Transaction, SessionHeader, CallSlice | None], _V | Recorded | None]


class SubagentService:
    """The five operations. Each raises TurnFenced for a stale claim."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_team(self, session_id: SessionId) -> bool:
        """Whether a Session addresses Team members, not subagents. Raises SessionNotFound, ProfileUnknown."""
        with self._store.reading() as connection:
            header = sessions.find_session(connection, session_id).header
        return self._store.profile(header.profile).is_team

    def delegate(self, caller: Caller, order: Order) -> SubagentView | Recorded | None:
        """Create a subagent with its accepted prompt; None means that the call waits for it now.

        A one-shot order waits for the end of the subagent's only turn; a continuable one returns at once. Idempotent by
        the call: a retry joins the subagent that it has created. Raises SubagentDepth, InvalidArgument,
        MessageTooLarge, Disposed.
        """
        child_id = child_session_id(caller.session_id, caller.key)

        def delegate(tx: Transaction, parent: SessionHeader, call: CallSlice | None) -> SubagentView | Recorded | None:
            if call is not None and waiting.is_registered(tx, call):
                return None
            if not tx.is_locked(child_id):
                roster.require_open(tx, parent.team_id)
                self._require_place(tx, parent, caller, order)
                children.create(tx, parent.id, child_id, self._with_model(tx, parent, order))
            if order.mode == "continuable":
                status = availability("active", tx.head(child_id).open_turn is not None)
                return SubagentView(agent_id=child_id, status=status)
            assert call is not None
            ended = children.last_ending(tx, child_id)
            if ended is not None:
                entry = record_result(tx, caller, *children.result_of(ended))
                assert entry is not None
                return Recorded(entry)
            children.register_wait(tx, "subagent", parent.id, call)
            children.expect(tx, child_id, call)
            return None

        return self._operate(
            caller, SubagentView, delegate, lambda connection, _parent: self._there(connection, child_id)
        )

    def _require_place(self, tx: Transaction, parent: SessionHeader, caller: Caller, order: Order) -> None:
        if order.mode == "one-shot" and caller.call is None:
            raise InvalidArgument("Only a turn can wait for a subagent; ask for one in the background.")
        if order.mode == "continuable" and inbox.is_one_shot(tx.head(parent.id)):
            raise InvalidArgument(
                "You have one turn only, so nobody would read what a background subagent reports; leave background out."
            )
        known = self._store.profile(children.PROFILE).tools
        for name in order.tools or ():
            if name not in known:
                raise InvalidArgument(f"There is no tool {name[:80]!a} for a subagent; there are {', '.join(known)}.")

    def _with_model(self, tx: Transaction, parent: SessionHeader, order: Order) -> Order:
        """A child speaks to its parent's model, also when that comes from the parent's profile."""
        profile = self._store.profile(parent.profile)
        if order.model is not None or tx.head(parent.id).model is not None or profile.model is None:
            return order
        return replace(order, model=profile.model)

    def send(self, caller: Caller, *, agent_id: str, message: str) -> SendView | Recorded:
        """Accept a message into a continuable subagent's inbox: Steer, whatever it does now.

        Raises SubagentNotFound, InvalidTarget, InvalidArgument, MessageTooLarge, InboxFull, Disposed, LogDamaged.
        """

        def send(tx: Transaction, parent: SessionHeader, _call: CallSlice | None) -> SendView:
            roster.require_open(tx, parent.team_id)
            if inbox.is_one_shot(tx.head(SessionId(agent_id))):
                raise InvalidTarget(
                    "This subagent has one turn for the call that waits for it, and takes no messages. Create one in "
                    "the background if you want to talk to it."
                )
            return SendView(message_id=children.send(tx, parent, SessionId(agent_id), message))

        return self._at_once(caller, SendView, send, self._target(agent_id))

    def list_children(self, caller: Caller) -> SubagentListView | Recorded:
        """The direct children in order of creation: continuable ones, one-shot ones while their turn is open.

        A child that cannot be read has a row with the reason, and hides no other.
        """

        def read(tx: Transaction, parent: SessionHeader, _call: CallSlice | None) -> SubagentListView:
            return SubagentListView(tuple(subagent_rows(tx.connection, parent)))

        return self._at_once(caller, SubagentListView, read, lambda _connection, _parent: [])

    def interrupt(self, caller: Caller, *, agent_id: str) -> InterruptView | Recorded:
        """End a subagent's open turn as aborted, and with it the subagents that this turn waits for.

        Its inbox stays; the next message to it starts a new turn. Raises SubagentNotFound, LogDamaged.
        """

        def interrupt(tx: Transaction, _parent: SessionHeader, _call: CallSlice | None) -> InterruptView:
            child_id = SessionId(agent_id)
            turn = tx.open_turn(child_id)
            if turn is not None:
                run = runs.lock_run(tx.connection, turn.turn_id)
                turns.abort(tx, child_id, turn, run, "interrupted by its parent", notify=False)
            return InterruptView(previous_status=availability("active", turn is not None))

        return self._at_once(caller, InterruptView, interrupt, self._target(agent_id))

    def _target(self, agent_id: str) -> Callable[[Connection, SessionHeader], list[SessionId]]:
        """What is locked to act on a subagent: itself and the children that its turn waits for."""

        def locks(connection: Connection, parent: SessionHeader) -> list[SessionId]:
            child = subagent_of(connection, parent, agent_id)
            return [child.header.id, *children.awaited(connection, child.header.id)]

        return locks

    def _there(self, connection: Connection, child_id: SessionId) -> list[SessionId]:
        return [child_id] if sessions.find_sessions(connection, [child_id]) else []

    def _at_once(
        self,
        caller: Caller,
        view: type[_V],
        body: Callable[[Transaction, SessionHeader, CallSlice | None], _V],
        locks: Callable[[Connection, SessionHeader], list[SessionId]],
    ) -> _V | Recorded:
        result = self._operate(caller, view, body, locks)
        assert result is not None
        return result

    def _operate(
        self,
        caller: Caller,
        view: type[_V],
        body: Body[_V],
        locks: Callable[[Connection, SessionHeader], list[SessionId]],
    ) -> _V | Recorded | None:
        """Run an operation with the Team, the caller and ``locks`` locked.

        For a turn's call its view becomes the call's result in the same transaction; None leaves the call waiting.
        """

        def operate(tx: Transaction) -> _V | Recorded | None:
            parent = sessions.find_session(tx.connection, caller.session_id).header
            tx.lock_team(parent.team_id)
            call: CallSlice | None = None
            tx.lock_sessions(parent.id, *locks(tx.connection, parent))
            if caller.call is not None:
                found = open_call(tx, caller.call)
                if isinstance(found, Recorded):
                    return found
                call = found
            result = body(tx, parent, call)
            if result is None or isinstance(result, Recorded):
                return result
            entry = record_result(tx, caller, "ok", compact(result))
            return result if entry is None else Recorded(entry)

        def settled(tx: Transaction) -> _V | Recorded:
            result = operate(tx)
            assert result is not None
            return result

        if caller.once is None:
            return self._store.writing(operate)
        return self._store.writing_once(caller.once, view, settled)


def subagent_of(connection: Connection, parent: SessionHeader, agent_id: str) -> LockedSession:
    """The subagent of this id. Raises SubagentNotFound when the Session has none, LogDamaged when it cannot be read."""
    found = next(iter(sessions.children(connection, parent.id, agent_id)), None)
    if found is None or projections.member_by_session(connection, parent.root_id, agent_id) is not None:
        raise SubagentNotFound(f"You have no subagent {agent_id[:80]!a}; list_agents shows the agent_id of each.")
    if isinstance(found, UnreadableSession):
        raise LogDamaged(f"The subagent {agent_id} cannot be used: {found.fault}. Create another one.")
    return found


def subagent_rows(connection: Connection, parent: SessionHeader) -> list[SubagentRowView]:
    """What ``list_agents`` shows of a Session's subagents."""
    members = {str(member.id) for member in projections.members(connection, parent.root_id)}
    rows: list[SubagentRowView] = []
    for child in sessions.children(connection, parent.id):
        child_id = SessionId(child.id) if isinstance(child, UnreadableSession) else child.header.id
        if child_id in members:
            continue
        try:
            row = _row(connection, child)
        except LogDamaged as error:
            row = SubagentRowView(agent_id=child_id, error=error.message)
        except ValidationError as error:
            row = SubagentRowView(agent_id=child_id, error=f"its last turn cannot be read: {first_fault(error)}")
        rows += [] if row is None else [row]
    return rows


def _row(connection: Connection, child: LockedSession | UnreadableSession) -> SubagentRowView | None:
    if isinstance(child, UnreadableSession):
        return SubagentRowView(agent_id=SessionId(child.id), error=child.fault)
    run, descriptor = runs.session_run(connection, child.header.id), child.head.descriptor
    if run is None and inbox.is_one_shot(child.head):
        return None
    last = next(iter(projections.turns(connection, child.header.id)), None)
    return SubagentRowView(
        agent_id=child.header.id,
        label=descriptor.label if descriptor else None,
        status=availability("active", run is not None),
        mode=descriptor.mode if descriptor else None,
        context=descriptor.provider if descriptor else None,
        model=child.head.model,
        diagnostics=tuple(session_diagnostics(child.head, run, last)),
    )


def subagent_states(connection: Connection, root_id: SessionId) -> list[SubagentStateView]:
    """All subagents of a tree, at whatever depth, for operators: a few statements for the whole tree."""
    found = sessions.outside_roster(connection, root_id)
    if not found:
        return []
    open_runs = {run.session_id: run for run in runs.team_runs(connection, root_id)}
    open_waits = waits.team_waits(connection, root_id)
    last, workers = projections.last_turns(connection, root_id), runs.tree_workers(connection, root_id)
    states: list[SubagentStateView] = []
    for child in found:
        if isinstance(child, UnreadableSession):
            parent = None if child.parent_id is None else SessionId(child.parent_id)
            states.append(
                SubagentStateView(
                    session_id=SessionId(child.id), parent_id=parent, last_seq=child.seq, error=child.fault
                )
            )
            continue
        header, head, run = child.header, child.head, open_runs.get(child.header.id)
        states.append(
            SubagentStateView(
                session_id=header.id,
                parent_id=header.parent_id,
                label=head.descriptor.label if head.descriptor else None,
                mode=head.descriptor.mode if head.descriptor else None,
                status=availability("active", run is not None),
                model=head.model,
                last_seq=head.seq,
                pending=head.pending,
                held=head.held,
                turn=turn_state(run, [wait for wait in open_waits if wait.session_id == header.id]),
                last_end=turn_end(last.get(header.id)),
                workers=tuple(workers.get(header.id, ())),
            )
        )
    return states
