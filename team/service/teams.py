"""TeamService: one method per Team operation (DESIGN section 6).

Each runs as one transaction under the Team's lock. For a call of a turn the domain change and the call's
``tool/result`` commit together; a repeated call returns the recorded result and changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from team.log import projections, runs, sessions
from team.log.transaction import Transaction
from team.model.content import text_block
from team.model.errors import (
    InvalidArgument,
    InvalidTarget,
    MessageTooLarge,
    ModelNotAllowed,
    TeamError,
    error_json,
)
from team.model.events import SubagentDescribed
from team.model.history import ToolResultEntry
from team.model.ids import LEAD_NAME, SessionId, TeamId, new_message_id
from team.model.slices import CallSlice
from team.model.snapshots import UNOWNED, Context, DelegationSource, MemberSnapshot
from team.model.views import (
    InterruptView,
    RosterView,
    SendView,
    SpawnView,
    TaskListView,
    TaskView,
    WaitView,
    task_view,
)
from team.rules import board, children, externals, forks, inbox, roster, turns, waiting
from team.rules.board import Update
from team.rules.roster import Member
from team.service.callers import Caller, Recorded, open_call, record_result
from team.service.rosters import roster_views
from team.service.store import Store

_V = TypeVar("_V", bound=BaseModel)
_R = TypeVar("_R")
Body = Callable[[Transaction, TeamId, Member], _R]


class TeamService:
    """The nine operations. Each raises NotMember for callers outside the roster and TurnFenced for a stale claim."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def spawn(
        self,
        caller: Caller,
        *,
        name: str,
        description: str,
        prompt: str,
        context: Context = "fresh",
        model: str | None = None,
    ) -> SpawnView | Recorded:
        """Create a teammate in two commits: the reserved name, then the child with its accepted prompt.

        Idempotent by the call: a retry joins its own operation. Raises LeadRequired, InvalidMemberName,
        MemberNameTaken, MemberLimit, InvalidArgument, ModelNotAllowed, MessageTooLarge, ProvisioningConflict, Disposed.
        """
        if not prompt.strip():
            raise InvalidArgument("A teammate needs a prompt: what it should do first.")
        if len(prompt.encode()) > self._store.settings.max_message_bytes:
            raise MessageTooLarge(
                f"The prompt has {len(prompt.encode())} bytes; the limit is {self._store.settings.max_message_bytes}. "
                "Write the details to a file of the checkout and name it in the prompt."
            )
        call_key = caller.key

        def reserve(tx: Transaction, team_id: TeamId, lead: Member) -> MemberSnapshot | SpawnView:
            # Under the Team's lock: a request that is repeated after its end finds the name taken, by itself.
            recorded = self._store.recorded(tx, caller.once, SpawnView)
            if recorded is None and model is not None:
                self._require_allowed(tx, lead, model)
            return recorded or roster.reserve(
                tx,
                lead,
                team_id,
                name=name,
                description=description,
                context=context,
                model=model,
                call_key=call_key,
                actor=caller.actor,
            )

        reserved = self._in_team(caller, reserve)
        if not isinstance(reserved, MemberSnapshot):
            return reserved
        try:
            return self._finish_spawn(caller, reserved, prompt)
        except TeamError as error:
            if error.status < 500 and error.code not in ("TURN_FENCED", "TEAM_PROVISIONING_CONFLICT"):  # noqa: PLR2004 -- HTTP
                self._fail_spawn(caller, reserved, error)
            raise

    def _require_allowed(self, tx: Transaction, lead: Member, model: str) -> None:
        allowed = self._store.profile(tx.header(lead.session_id).profile).allowed_models
        if model not in allowed:
            choice = f"choose one of {', '.join(allowed)}, or leave" if allowed else "this profile allows none: leave"
            raise ModelNotAllowed(f"The model {model[:80]!a} is not allowed here; {choice} the model out.")

    def _finish_spawn(self, caller: Caller, reserved: MemberSnapshot, prompt: str) -> SpawnView | Recorded:
        def create(tx: Transaction, team_id: TeamId, lead: Member) -> SpawnView:
            snapshot = roster.require_unsettled(tx, team_id, reserved.name)
            if snapshot.phase == "provisioning":
                roster.require_open(tx, team_id)
                self._create_child(tx, team_id, snapshot, prompt)
                snapshot = roster.settle(tx, team_id, snapshot, error=None, actor=caller.actor)
            member = Member(snapshot.name, snapshot.id, snapshot)
            view = roster.member_view(member, roster.status_of(tx, member), None)
            return SpawnView(member=view)

        return self._operate(caller, SpawnView, create)

    def _create_child(self, tx: Transaction, team_id: TeamId, snapshot: MemberSnapshot, prompt: str) -> None:
        lead_id = SessionId(team_id)
        lead = tx.header(lead_id)
        forks.create_session(
            tx,
            snapshot.id,
            lead,
            parent=lead,
            inherits=snapshot.context == "fork",
            model=snapshot.model,
            descriptor=SubagentDescribed(
                mode="continuable", provider=snapshot.provider, label=snapshot.name, model=snapshot.model
            ),
        )
        source = DelegationSource(sender_id=lead_id, sender_name=LEAD_NAME)
        inbox.accept(tx, snapshot.id, text_block(prompt), source, "steer", new_message_id())

    def _fail_spawn(self, caller: Caller, reserved: MemberSnapshot, error: TeamError) -> None:
        def fail(tx: Transaction, team_id: TeamId, _lead: Member) -> None:
            current = tx.find(SessionId(team_id), ("member", reserved.name), MemberSnapshot)
            if current is not None and current.phase == "provisioning":
                roster.settle(tx, team_id, current, error=f"{error.code}: {error.message}", actor=caller.actor)
            # With the phase, so that a retry of the call cannot find its own name taken.
            record_result(tx, caller, "error", error_json(error.code, error.message))

        self._in_team(caller, fail)

    def send(self, caller: Caller, *, target: str, message: str) -> SendView | Recorded:
        """Accept a message into another member's inbox: Steer for every target.

        Raises MemberNotFound, SelfMessage, InvalidTarget, InvalidArgument, MessageTooLarge, InboxFull, Disposed.
        """

        def send(tx: Transaction, team_id: TeamId, sender: Member) -> SendView:
            addressee = roster.resolve(tx, team_id, target)
            message_id = inbox.send(tx, team_id, sender, addressee, message, caller.turn_id, caller.actor)
            return SendView(message_id=message_id)

        return self._operate(caller, SendView, send, targets=(target,))

    def list_members(self, caller: Caller) -> RosterView | Recorded:
        """The roster: the Lead first, then creation order."""

        def read(tx: Transaction, team_id: TeamId, _caller: Member) -> RosterView:
            return RosterView(tuple(roster_views(tx.connection, team_id, tx.members(team_id))))

        return self._operate(caller, RosterView, read)

    def interrupt(self, caller: Caller, *, target: str) -> InterruptView | Recorded:
        """End the target's open turn as aborted; its inbox, ownership and tasks stay.

        Raises LeadRequired, MemberNotFound, InvalidTarget (the Lead itself).
        """

        def interrupt(tx: Transaction, team_id: TeamId, member: Member) -> InterruptView:
            roster.require_lead(member, "interrupt teammates")
            victim = roster.resolve(tx, team_id, target)
            if victim.is_lead:
                raise InvalidTarget("The Lead cannot interrupt itself; name a teammate.")
            previous = roster.status_of(tx, victim)
            turn = tx.open_turn(victim.session_id) if previous == "running" else None
            if turn is not None:
                run = runs.lock_run(tx.connection, turn.turn_id)
                turns.abort(tx, victim.session_id, turn, run, "interrupted by the Lead", notify=False)
            return InterruptView(previous_status=previous)

        return self._operate(caller, InterruptView, interrupt, targets=(target,), ending=True)

    def begin_wait(self, caller: Caller, *, timeout_ms: int | None) -> Recorded | None:
        """Register a turn's wait_agent call; None means that the call waits now. Raises InvalidTimeout."""
        timeout = waiting.check_timeout(timeout_ms)

        def register(tx: Transaction, team_id: TeamId, _caller: Member) -> Recorded | None:
            assert caller.call is not None
            call = open_call(tx, caller.call)
            assert isinstance(call, CallSlice)
            if waiting.is_registered(tx, call):
                return None
            view = waiting.register(tx, team_id, call, caller.session_id, timeout)
            entry = record_result(tx, caller, "ok", view.to_json()) if view else None
            return Recorded(entry) if entry else None

        return self._in_team(caller, register)

    def wait_state(self, caller: Caller, timeout_ms: int | None) -> tuple[TeamId, int, WaitView | None]:
        """For an operator's blocking wait: the Team, its edge counter now, and why waiting cannot help if so."""
        waiting.check_timeout(timeout_ms)

        def state(tx: Transaction, team_id: TeamId, member: Member) -> tuple[TeamId, int, WaitView | None]:
            if tx.head(member.session_id).pending_steer:
                return team_id, tx.lock_team(team_id), WaitView(timed_out=False)
            stuck = waiting.no_progress(tx, team_id, member.session_id)
            view = WaitView(timed_out=False, no_progress=stuck) if stuck else None
            return team_id, tx.lock_team(team_id), view

        found = self._in_team(caller, state)
        assert not isinstance(found, Recorded)
        return found

    def edge_counter(self, team_id: TeamId) -> int:
        with self._store.reading() as connection:
            return sessions.edge_counter(connection, team_id)

    def create_task(
        self,
        caller: Caller,
        *,
        subject: str,
        description: str,
        blocked_by: Sequence[str] = (),
        write_scopes: Sequence[str] = (),
    ) -> TaskView | Recorded:
        """Put a task on the board. Raises what ``board.create`` raises."""

        def create(tx: Transaction, team_id: TeamId, member: Member) -> TaskView:
            return board.create(
                tx,
                team_id,
                subject=subject,
                description=description,
                blocked_by=blocked_by,
                write_scopes=write_scopes,
                actor=caller.actor or member.target,
            )

        return self._operate(caller, TaskView, create)

    def list_tasks(
        self,
        caller: Caller,
        *,
        status: str | None = None,
        owner: str | None = None,
        ready: bool | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TaskListView | Recorded:
        """Tasks in order of creation, tombstones only when asked for; a page continues behind ``cursor``.

        The cursor is the id of the last task shown, so a deletion between pages skips nothing.
        Raises MemberNotFound for an owner outside the roster, InvalidArgument for a foreign cursor.
        """

        def read(tx: Transaction, team_id: TeamId, _caller: Member) -> TaskListView:
            names = board.names(tx, team_id)
            owner_id = None if owner in (None, UNOWNED) else roster.resolve(tx, team_id, owner or "").session_id
            after = board.cursor_number(cursor)
            if status == "deleted":
                owners = None if owner is None else (owner_id,)
                listed = projections.tombstones(tx.connection, SessionId(team_id), after, limit + 1, owners)
                tasks = {task.id: task for task in listed}
            else:
                tasks = board.board_of(tx, team_id)
            views = [
                task_view(task, tasks, names)
                for task in tasks.values()
                if board.number_of(task) > after
                and (status is None or task.status == status)
                and (owner is None or task.owner_id == owner_id)
            ]
            matching = [view for view in views if ready is None or view.ready == ready]
            page = matching[:limit]
            more = len(matching) > limit
            return TaskListView(tasks=tuple(page), next_cursor=page[-1].id if more else None)

        return self._operate(caller, TaskListView, read)

    def get_task(self, caller: Caller, *, task_id: str) -> TaskView | Recorded:
        """One task, a tombstone too. Raises TaskNotFound."""

        def read(tx: Transaction, team_id: TeamId, _caller: Member) -> TaskView:
            tasks = board.board_of(tx, team_id, task_id)
            return task_view(board.find(tasks, task_id), tasks, board.names(tx, team_id))

        return self._operate(caller, TaskView, read)

    def update_task(self, caller: Caller, request: Update, *, owner: str | None = None) -> TaskView | Recorded:
        """Compare-and-set one task. Raises MemberNotFound for ``owner`` and what ``board.decide`` raises."""

        def update(tx: Transaction, team_id: TeamId, member: Member) -> TaskView:
            named = None if owner is None else roster.resolve(tx, team_id, owner)
            wanted = request if named is None else replace(request, owner=named)
            return board.update(tx, team_id, member, wanted, caller.actor or member.target)

        return self._operate(caller, TaskView, update)

    def fail_call(self, caller: Caller, content: str) -> ToolResultEntry:
        """Record an error as the result of a call whose operation changed nothing."""

        def fail(tx: Transaction, _team: TeamId, _caller: Member) -> ToolResultEntry:
            entry = record_result(tx, caller, "error", content)
            assert entry is not None
            return entry

        result = self._in_team(caller, fail, member=False)
        return result.entry if isinstance(result, Recorded) else result

    def _operate(
        self, caller: Caller, view: type[_V], body: Body[_V], targets: Sequence[str] = (), *, ending: bool = False
    ) -> _V | Recorded:
        """Run an operation; for a turn's call its view becomes the call's result in the same transaction."""

        def with_result(tx: Transaction, team_id: TeamId, member: Member) -> _V | Recorded:
            result = body(tx, team_id, member)
            entry = record_result(tx, caller, "ok", compact(result))
            return result if entry is None else Recorded(entry)

        return self._store.writing_once(
            caller.once, view, lambda tx: self._locked(tx, caller, with_result, targets, ending=ending)
        )

    def _in_team(self, caller: Caller, body: "Body[_R]", *, member: bool = True) -> "_R | Recorded":
        return self._store.writing(lambda tx: self._locked(tx, caller, body, (), member=member))

    def _locked(
        self,
        tx: Transaction,
        caller: Caller,
        body: "Body[_R]",
        targets: Sequence[str],
        *,
        member: bool = True,
        ending: bool = False,
    ) -> "_R | Recorded":
        """Lock the Team, then the Lead, the caller and the targets; check the claim and the caller's membership.

        With ``ending`` the targets' turns may end: the children that these wait for are locked with them.
        """
        header = sessions.find_session(tx.connection, caller.session_id).header
        team_id = header.team_id
        tx.lock_team(team_id)
        addressed = {roster.resolve(tx, team_id, target).session_id for target in targets}
        existing = sessions.find_sessions(tx.connection, addressed)
        below = [child for found in existing if ending for child in children.awaited(tx.connection, SessionId(found))]
        tx.lock_sessions(SessionId(team_id), header.id, *(SessionId(found) for found in existing), *below)
        if caller.invite is not None:
            externals.require_invited(tx, team_id, caller.session_id, caller.invite)
        if caller.call is not None:
            call = open_call(tx, caller.call)
            if isinstance(call, Recorded):
                return call
        acting = roster.caller(tx, header) if member else roster.lead_of(team_id)
        return body(tx, team_id, acting)


def compact(view: BaseModel) -> str:
    """A result as a model sees it: compact JSON without absent fields."""
    return view.model_dump_json(by_alias=True, exclude_none=True)
