"""RecoveryService: what loops do on behalf of nobody. Each decision is taken anew under the locks it needs."""

from collections.abc import Sequence

from team.log import clock, operations, runs, sessions, waits
from team.log.census import Census, take_census
from team.log.events import naming, stream_events
from team.log.transaction import Queued, Transaction
from team.log.waits import Wait
from team.model.errors import LogDamaged, SessionNotFound
from team.model.events import InboxInserted, SubagentDescribed, UserMessage
from team.model.ids import SessionId, TeamId
from team.model.snapshots import MemberSnapshot, SessionHeader
from team.model.views import WaitView
from team.rules import roster, turns, waiting
from team.rules.queue import begin, queued_of
from team.service.isolation import each
from team.service.store import Store

LONGEST_WAIT_SECONDS = waiting.MAX_TIMEOUT_MS / 1000
CLOCK_SLACK_SECONDS = 1.0
LOST_CREATOR = "its creation was cut off before the prompt was accepted"


class RecoveryService:
    """Wakes, deadlines, due dispatches, cut-off creations. Idempotent; safe with several coordinators."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wake(self, team_id: TeamId) -> int:
        """Resolve all wait_agent waits that an edge of the Team has passed, in one transaction; returns how many."""

        def resolve(tx: Transaction) -> int:
            counter = tx.lock_team(team_id)
            woken = waits.woken_waits(tx.connection, team_id, counter)
            tx.lock_sessions(*(wait.session_id for wait in woken))
            tx.effects.woken += [(team_id, wait.counter) for wait in woken]
            return waiting.resolve(tx, woken, WaitView(timed_out=False))

        with self._store.reading() as connection:
            if not waits.woken_waits(connection, team_id, sessions.edge_counter(connection, team_id)):
                return 0
        return self._store.writing(resolve)

    def wake_missed(self) -> int:
        """Resolve what pub/sub missed, in every Team."""
        with self._store.reading() as connection:
            missed = waits.missed_teams(connection)
        return each((team_id for team_id, _counter in missed), self.wake, "missed edge not resolved")

    def expire_waits(self) -> int:
        """Resolve waits whose deadline has passed on the database's clock."""
        with self._store.reading() as connection:
            due = waits.due_waits(connection, self._store.database.now(connection))
        return each(due, self._expire, "wait not expired")

    def _expire(self, wait: Wait) -> bool:
        def expire(tx: Transaction) -> bool:
            tx.lock_team(wait.team_id)
            tx.lock_sessions(wait.session_id)
            if wait not in waits.turn_waits(tx.connection, wait.turn_id) or not wait.is_due(tx.now):
                return False
            waiting.expire(tx, wait)
            return True

        return self._store.writing(expire)

    def bring_back_times(self) -> int:
        """Shorten what would last longer than it may, because the database's clock went back; returns how many.

        A lease ends within a lease, a dispatch comes within the longest back-off, a wait within the longest time-out.
        """
        settings = self._store.settings

        def latest(now: float) -> dict[str, float]:
            lease_until, dispatch_at = now + settings.lease_seconds, now + settings.dispatch_backoff_max_seconds
            spans = {"lease_until": lease_until, "dispatch_at": dispatch_at, "deadline": now + LONGEST_WAIT_SECONDS}
            # Other transactions read the clock a moment later than this one.
            return {name: moment + CLOCK_SLACK_SECONDS for name, moment in spans.items()}

        with self._store.reading() as connection:
            if not clock.lies_ahead(connection, **latest(self._store.database.now(connection))):
                return 0
        return self._store.writing(lambda tx: clock.bring_back(tx.connection, **latest(tx.now)))

    def due_dispatches(self, limit: int, queues: Sequence[str] | None = None) -> list[Queued]:
        """Queued turns of these queues, or of all, whose dispatch is due; each is put off with exponential back-off."""
        settings = self._store.settings

        def take(tx: Transaction) -> list[Queued]:
            due = runs.due_runs(tx.connection, tx.now, limit, queues=queues, take=True)
            delays = [
                min(
                    settings.dispatch_backoff_seconds * 2 ** min(run.dispatches, 16),
                    settings.dispatch_backoff_max_seconds,
                )
                for run in due
            ]
            runs.postpone_dispatch(tx.connection, [run.turn_id for run in due], [tx.now + delay for delay in delays])
            return [queued_of(run) for run in due]

        with self._store.reading() as connection:
            if not runs.due_runs(connection, self._store.database.now(connection), 1, queues=queues):
                return []
        return self._store.writing(take)

    def not_dispatched(self, turns: Sequence[Queued]) -> None:
        """The broker did not take these: they are due again soon, as if they had not been put off."""
        if not turns:
            return
        again = self._store.settings.dispatch_backoff_seconds

        def put_back(tx: Transaction) -> None:
            runs.return_dispatch(tx.connection, [turn.turn_id for turn in turns], tx.now + again)

        self._store.writing(put_back)

    def count_queued(self) -> dict[str, int]:
        """Queued turns by queue."""
        with self._store.reading() as connection:
            return runs.count_queued(connection)

    def census(self) -> Census:
        """What is open now. Raises StoreUnavailable."""
        with self._store.reading() as connection:
            return take_census(connection, self._store.database.now(connection))

    def settle_creations(self) -> int:
        """Settle creations whose creator is gone, from the child's own log; returns how many."""
        with self._store.reading() as connection:
            expired = operations.expired_operations(connection, self._store.database.now(connection))

        def settle(found: tuple[str, str, str]) -> bool:
            return self.settle_creation(TeamId(found[0]), found[1], expired_only=True)

        return each(expired, settle, "creation not settled")

    def settle_creation(self, team_id: TeamId, name: str, *, expired_only: bool = False) -> bool:
        """Reconcile one provisioning record with the child's independently stored Session (spec: Provisioning).

        With ``expired_only`` a creator that renewed its lease meanwhile is left alone. A child that proves its
        admission but has no turn for its accepted input gets one: no input sleeps. The turn of a child that does not
        prove it ends: nobody works outside the roster under a reserved id.
        """

        def settle(tx: Transaction) -> bool:
            tx.lock_team(team_id)
            reserved = [member.id for member in tx.members(team_id) if member.name == name]
            own = _children(tx, team_id, reserved)
            written = [session_id for child in own for session_id in turns.sessions_of_end(tx, child)]
            tx.lock_sessions(SessionId(team_id), *written)
            snapshot = tx.find(SessionId(team_id), ("member", name), MemberSnapshot)
            if snapshot is None or snapshot.phase != "provisioning":
                failed = snapshot is not None and snapshot.phase == "failed"
                end_operation = operations.fail_operation if failed else operations.close_operation
                end_operation(tx.connection, team_id, name)
                return False
            if expired_only and not operations.is_expired(tx.connection, team_id, name, tx.now):
                return False
            fault = admission_fault(tx, team_id, snapshot)
            roster.settle(tx, team_id, snapshot, error=fault)
            if fault is None:
                head = tx.head(snapshot.id)
                if head.pending and head.open_turn is None and not head.held and not head.is_external:
                    begin(tx, snapshot.id, "its creation was recovered")
            elif own:
                _drain(tx, snapshot.id, fault)
            return True

        return self._store.writing(settle)


def _children(tx: Transaction, team_id: TeamId, reserved: list[SessionId]) -> list[SessionHeader]:
    """Those of the reserved Sessions that exist, can be read and have the Lead for a parent."""
    try:
        found = sessions.find_sessions(tx.connection, reserved)
    except LogDamaged:
        return []  # ``admission_fault`` meets the same damage and makes it the reason
    return [child.header for child in found.values() if child.header.parent_id == team_id]


def _drain(tx: Transaction, child_id: SessionId, fault: str) -> None:
    turn = tx.open_turn(child_id)
    if turn is not None:
        run = runs.lock_run(tx.connection, turn.turn_id)
        turns.abort(tx, child_id, turn, run, f"its creation was settled as failed: {fault}", notify=False)


def admission_fault(tx: Transaction, team_id: TeamId, snapshot: MemberSnapshot) -> str | None:
    """Why the child's log does not prove a successful admission; None when it does.

    Proof: it exists, its parent is the Lead, its descriptor is continuable with the provider of the record, and its
    first prompt is recorded, pending in the inbox or claimed into the history.
    """
    try:
        child = sessions.find_session(tx.connection, snapshot.id)
    except SessionNotFound:
        return LOST_CREATOR
    except LogDamaged as error:
        return f"its log is damaged: {error.message}"
    if child.header.parent_id != team_id:
        return "its Session belongs to another parent"
    try:
        described, admitted = None, False
        with naming(snapshot.id):
            for event in stream_events(tx.connection, snapshot.id):
                if event.seq <= child.header.seed_through and event.seq > 1:
                    continue
                data = event.decoded()
                if isinstance(data, SubagentDescribed):
                    described = data
                elif isinstance(data, InboxInserted | UserMessage) and data.source.kind in ("delegation", "human"):
                    admitted = True
                    break
    except LogDamaged as error:
        return f"its log is damaged: {error.message}"
    if described is None or described.mode != "continuable" or described.provider != snapshot.provider:
        return "its descriptor does not match the record"
    return None if admitted else LOST_CREATOR
