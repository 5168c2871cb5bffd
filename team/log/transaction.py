"""The append transaction: take locks, read slices, decide, append events, update projections, commit.

Rules append through ``Transaction.append``; the fold validates each event against the slices it touches, and
``flush`` writes all events and changed rows at once. Effects wait in ``effects`` until the commit has happened.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection

from config.settings import Settings
from team.log import projections, sessions
from team.log.database import Database
from team.log.events import insert_events, read_event, read_intents
from team.log.runs import Run
from team.log.sessions import LockedSession
from team.model.errors import SessionNotFound
from team.model.events import EventData, FileIntended
from team.model.fold import apply
from team.model.ids import SessionId, TeamId, TurnId
from team.model.slices import HEAD, CallSlice, HeadSlice, InboxSlice, Key, Slice, TurnSlice
from team.model.snapshots import MemberSnapshot, SessionHeader, TaskSnapshot

_S = TypeVar("_S", bound=Slice)
_R = TypeVar("_R")


@dataclass(frozen=True)
class Queued:
    """A turn that became claimable, with what a dispatch shows of it."""

    turn_id: TurnId
    team_id: TeamId
    member: str
    queue: str


@dataclass(frozen=True)
class Claimed:
    """A queued turn that a worker got, and how long it had been claimable."""

    run: Run
    worker: str
    epoch: int
    queued_seconds: float


@dataclass(frozen=True)
class Ended:
    """A turn that ended, and why; its row as it was, None where there was none."""

    session_id: SessionId
    turn_id: TurnId
    run: Run | None
    reason: str
    code: str | None


@dataclass(frozen=True)
class Lost:
    """A claim whose worker was lost, and how often that was the turn's fate in this step."""

    run: Run
    losses: int


@dataclass
class Effects:
    """What to do after the commit: publish edges (Team and counter), send turns to workers, wake viewers.

    ``activity`` names each Session whose row was locked with its newest seq: it may look different now. Unlike an edge
    it wakes no waiter and raises no counter. ``workflows`` names turns whose workflow call has a child that ended.
    The rest is what happened, for whoever counts it: ``woken`` holds the edge counter at which each wait that an edge
    resolved was registered, ``write_seconds`` the time from asking for the locks to the commit.
    """

    edges: dict[TeamId, int] = field(default_factory=dict[TeamId, int])
    queued: list[Queued] = field(default_factory=list[Queued])
    workflows: set[TurnId] = field(default_factory=set[TurnId])
    activity: set[TeamId] = field(default_factory=set[TeamId])
    claimed: list[Claimed] = field(default_factory=list[Claimed])
    woken: list[tuple[TeamId, int]] = field(default_factory=list[tuple[TeamId, int]])
    ended: list[Ended] = field(default_factory=list[Ended])
    lost: list[Lost] = field(default_factory=list[Lost])
    created: int = 0
    events: int = 0
    write_seconds: float = 0.0


class Transaction:
    """One open append transaction. Not safe to share between threads."""

    def __init__(self, database: Database, connection: Connection, settings: Settings) -> None:
        self.database, self.connection, self.settings = database, connection, settings
        self.effects = Effects()
        self._now: float | None = None
        self._team_counters: dict[TeamId, int] = {}
        self._raised: set[TeamId] = set()
        self._counted: set[TeamId] = set()
        self._begun: dict[TeamId, int] = {}
        self._sessions: dict[SessionId, LockedSession] = {}
        self._slices: dict[tuple[SessionId, Key], Slice | None] = {}
        self._dirty: dict[tuple[SessionId, Key], Slice] = {}
        self._appended: list[tuple[SessionId, int, str, EventData]] = []

    @property
    def now(self) -> float:
        """Seconds since 1970 on the database's clock, one reading per transaction."""
        if self._now is None:
            self._now = self.database.now(self.connection)
        return self._now

    def lock_team(self, team_id: TeamId) -> int:
        """Lock the Team row, always before any Session row; returns its edge counter."""
        if team_id not in self._team_counters:
            if self._sessions:
                raise RuntimeError("the Team row is locked before Session rows")
            self._team_counters[team_id] = sessions.lock_team(self.connection, team_id)
        return self._team_counters[team_id]

    def lock_own_team(self, team_id: TeamId) -> None:
        """Take note of the Team row that this transaction itself inserted: nobody else can hold it."""
        self._team_counters[team_id] = 0

    def lock_sessions(self, *session_ids: SessionId) -> None:
        """Lock Session rows in one statement, ordered by (depth, id).

        Raises SessionNotFound, and RuntimeError when a second call would widen the set and so break the order.
        """
        wanted = set(session_ids) - set(self._sessions)
        if not wanted:
            return
        if self._sessions:
            raise RuntimeError("all Session rows are locked in one statement")
        for locked in sessions.lock_sessions(self.connection, wanted):
            self._remember(locked)
        missing = wanted - set(self._sessions)
        if missing:
            raise SessionNotFound(f"There is no Session {min(missing)!r}.")

    def try_lock_session(self, session_id: SessionId) -> bool:
        """Lock one Session unless another transaction holds it."""
        locked = sessions.lock_sessions(self.connection, {session_id}, skip_locked=True)
        for session in locked:
            self._remember(session)
        return bool(locked)

    def create_session(self, header: SessionHeader) -> None:
        """Insert a Session with an empty log. Raises SessionExists when its id is taken."""
        sessions.insert_session(self.connection, header, self.now)
        self.effects.created += 1
        self._remember(LockedSession(header, HeadSlice(cwd=header.cwd), None, None, None))

    def _remember(self, locked: LockedSession) -> None:
        self._sessions[locked.header.id] = locked
        self._slices[locked.header.id, HEAD] = locked.head

    @property
    def has_locks(self) -> bool:
        """Whether Session rows are locked already."""
        return bool(self._sessions)

    def is_locked(self, session_id: SessionId) -> bool:
        return session_id in self._sessions

    def session(self, session_id: SessionId) -> LockedSession:
        """A Session that this transaction has locked."""
        return self._sessions[session_id]

    def header(self, session_id: SessionId) -> SessionHeader:
        return self._sessions[session_id].header

    def head(self, session_id: SessionId) -> HeadSlice:
        """The current head, with what this transaction appended."""
        value = self._slices[session_id, HEAD]
        assert isinstance(value, HeadSlice)
        return value

    def peek_head(self, session_id: SessionId) -> HeadSlice:
        """A head that may belong to an unlocked Session: what its last commit left."""
        if session_id in self._sessions:
            return self.head(session_id)
        return sessions.find_session(self.connection, session_id).head

    def find(self, session_id: SessionId, key: Key, kind: type[_S]) -> _S | None:
        """One slice of a locked Session as it is now."""
        place = (session_id, key)
        if place not in self._slices:
            self._slices[place] = projections.load(self.connection, session_id, key)
        value = self._slices[place]
        assert value is None or isinstance(value, kind)
        return value

    def open_turn(self, session_id: SessionId) -> TurnSlice | None:
        turn_id = self.head(session_id).open_turn
        return None if turn_id is None else self.find(session_id, ("turn", turn_id), TurnSlice)

    def members(self, team_id: TeamId) -> list[MemberSnapshot]:
        """The roster in order of creation, with what this transaction appended."""
        return self._current(SessionId(team_id), "member", projections.members, lambda m: ("member", m.name))

    def tasks(self, team_id: TeamId) -> list[TaskSnapshot]:
        """The board without tombstones, in order of creation, with what this transaction appended."""
        found = self._current(SessionId(team_id), "task", projections.live_tasks, lambda t: ("task", t.id))
        return [task for task in found if task.status != "deleted"]

    def pending(self, session_id: SessionId) -> list[InboxSlice]:
        """The pending inbox in log order, with what this transaction appended."""
        items = self._current(session_id, "inbox", projections.pending, lambda i: ("inbox", i.message_id))
        return [item for item in items if item.state == "pending"]

    def member_of(self, header: SessionHeader) -> MemberSnapshot | None:
        """The roster entry of a Session; None for the Lead and for everyone outside the roster."""
        if header.depth != 1:
            return None
        place = (header.root_id, ("member-of", header.id))
        if self._slices.get(place) is None:
            for (owner, _key), value in self._dirty.items():
                if owner == header.root_id and isinstance(value, MemberSnapshot) and value.id == header.id:
                    return value
            self._slices[place] = projections.member_by_session(self.connection, header.root_id, header.id)
        value = self._slices[place]
        assert value is None or isinstance(value, MemberSnapshot)
        return value

    def calls(self, session_id: SessionId, turn: TurnSlice) -> list[CallSlice]:
        """The calls of the turn's newest step, in order."""

        def load_calls(connection: Connection, owner: SessionId) -> Sequence[CallSlice]:
            return projections.turn_calls(connection, owner, turn.turn_id, turn.step)

        found = self._current(session_id, "call", load_calls, lambda c: ("call", c.call_id))
        return [call for call in found if (call.turn_id, call.step) == (turn.turn_id, turn.step)]

    def event(self, session_id: SessionId, seq: int) -> EventData:
        """One event, appended now or before."""
        for owner, number, _time, data in reversed(self._appended):
            if owner == session_id and number == seq:
                return data
        return read_event(self.connection, session_id, seq)

    def intents(self, session_id: SessionId, turn: TurnSlice) -> dict[int, FileIntended]:
        """Logged intents of the turn's newest step by call index, the newest of each."""
        first = min((call.seq for call in self.calls(session_id, turn)), default=0)
        found = read_intents(self.connection, session_id, first)
        return {data.index: data for data in found if (data.turn_id, data.step) == (turn.turn_id, turn.step)}

    def _current(
        self,
        session_id: SessionId,
        kind: str,
        load: Callable[[Connection, SessionId], Sequence[_S]],
        key_of: Callable[[_S], Key],
    ) -> list[_S]:
        changed = {key: value for (owner, key), value in self._dirty.items() if owner == session_id and key[0] == kind}
        values: list[_S] = []
        for value in load(self.connection, session_id):
            key = key_of(value)
            newer = changed.pop(key, None)
            current = value if newer is None else newer
            self._slices.setdefault((session_id, key), current)
            values.append(current)  # pyright: ignore[reportArgumentType] -- one key holds one kind of slice
        values.extend(changed.values())  # pyright: ignore[reportArgumentType] -- the same
        return values

    def append(self, session_id: SessionId, data: EventData) -> int:
        """Append one event to a locked Session and fold it; returns its seq. Raises LogDamaged if it does not fit."""
        header, seq = self.header(session_id), self.head(session_id).seq + 1

        def lookup(key: Key) -> Slice | None:
            return self.find(session_id, key, Slice)  # pyright: ignore[reportArgumentType] -- any slice will do

        changes = apply(header, lookup, seq, data)
        for key, value in changes.items():
            self._slices[session_id, key] = value
            self._dirty[session_id, key] = value
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._appended.append((session_id, seq, moment, data))
        return seq

    def raise_edge(self, team_id: TeamId) -> None:
        """Mark that this transaction changes what waiters of the Team watch; the Team row must be locked."""
        self._raised.add(team_id)
        self.effects.edges[team_id] = self._team_counters[team_id] + 1

    def count_turn(self, team_id: TeamId) -> None:
        """Note that a turn of the Team's tree begins, for its budget; the Team row must be locked."""
        if team_id not in self._team_counters:
            raise RuntimeError("a turn begins with its Team locked")
        self._begun[team_id] = self._begun.get(team_id, 0) + 1

    def flush(self) -> None:
        """Write the events, projection rows and edge counters gathered so far; the rest follows at the commit."""
        insert_events(self.connection, self._appended)
        self.effects.events += len(self._appended)
        projections.store(self.connection, self._dirty)
        self._appended.clear()
        self._dirty.clear()
        for team_id in self._raised - self._counted:
            sessions.raise_counter(self.connection, team_id)
            self._counted.add(team_id)
        for team_id, turns in self._begun.items():
            sessions.count_turns(self.connection, team_id, turns)
        self._begun.clear()
        self.effects.activity.update(locked.header.team_id for locked in self._sessions.values())


def write(
    database: Database,
    settings: Settings,
    after_commit: Callable[[Effects], None],
    body: Callable[[Transaction], _R],
) -> _R:
    """Run ``body`` as one append transaction; its effects go to ``after_commit`` once it is committed.

    Whatever ``body`` raises rolls everything back. The body may run more than once.
    """

    def attempt(connection: Connection) -> tuple[_R, Effects]:
        transaction = Transaction(database, connection, settings)
        result = body(transaction)
        transaction.flush()
        return result, transaction.effects

    started = time.monotonic()
    result, effects = database.writing(attempt)
    effects.write_seconds = time.monotonic() - started
    after_commit(effects)
    return result
