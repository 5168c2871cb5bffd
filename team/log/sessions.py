"""Session and Team rows: lookup, locks, creation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Row, Select, func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from team.log.tables import MemberRow, SessionRow, TeamRow, table
from team.model.errors import LogDamaged, SessionExists, SessionNotFound
from team.model.events import first_fault
from team.model.ids import SessionId, TeamId
from team.model.slices import HeadSlice
from team.model.snapshots import SessionHeader

_session = table(SessionRow)
_team = table(TeamRow)
_member = table(MemberRow)
_columns = (
    _session.c.header,
    _session.c.head,
    _session.c.guard_turn,
    _session.c.guard_epoch,
    _session.c.guard_until,
)


@dataclass(frozen=True)
class LockedSession:
    """A Session row: header, head slice, and the guard of an interrupted claim."""

    header: SessionHeader
    head: HeadSlice
    guard_turn: str | None
    guard_epoch: int | None
    guard_until: float | None


def _decode(
    row: "Row[str, str, str | None, int | None, float | None] | tuple[Any, ...]",
) -> LockedSession:
    try:
        header = SessionHeader.model_validate_json(row[0])
    except ValidationError as error:
        raise LogDamaged(f"a Session's header cannot be read: {first_fault(error)}") from error
    try:
        head = HeadSlice.model_validate_json(row[1])
    except ValidationError as error:
        raise LogDamaged(f"Session {header.id}: its state cannot be read: {first_fault(error)}") from error
    return LockedSession(header, head, row[2], row[3], row[4])


def find_session(connection: Connection, session_id: str) -> LockedSession:
    """Read a Session without a lock. Raises SessionNotFound."""
    row = connection.execute(select(*_columns).where(_session.c.id == session_id)).one_or_none()
    if row is None:
        raise SessionNotFound(f"There is no Session {session_id!r}; `team sessions` lists them.")
    return _decode(row)


def find_sessions(connection: Connection, session_ids: Iterable[str]) -> dict[str, LockedSession]:
    rows = connection.execute(select(*_columns).where(_session.c.id.in_(list(session_ids)))).all()
    found = [_decode(row) for row in rows]
    return {session.header.id: session for session in found}


@dataclass(frozen=True)
class UnreadableSession:
    """What the row of a Session tells when its header or state cannot be read; ``created`` is seconds since 1970."""

    id: str
    root_id: str
    parent_id: str | None
    created: float
    seq: int
    fault: str


_row_facts = (_session.c.id, _session.c.root_id, _session.c.parent_id, _session.c.created_order, _session.c.seq)
_in_order = (_session.c.created_order, _session.c.depth, _session.c.id)


def session_ids(connection: Connection) -> list[SessionId]:
    """The ids of all Sessions in order of creation."""
    return [SessionId(found) for found in connection.execute(select(_session.c.id).order_by(*_in_order)).scalars()]


def session_page(connection: Connection, after: str | None, limit: int) -> list[LockedSession | UnreadableSession]:
    """Sessions in order of creation behind the one named ``after``. Raises SessionNotFound when there is none such."""
    query = select(*_row_facts, *_columns).order_by(*_in_order).limit(limit)
    if after is not None:
        place = connection.execute(select(*_in_order).where(_session.c.id == after)).one_or_none()
        if place is None:
            raise SessionNotFound(
                f"There is no Session {after!r} to go on behind; pass the nextCursor of the page before."
            )
        query = query.where(tuple_(*_in_order) > tuple_(*place))
    return _each(connection.execute(query))


def children(
    connection: Connection, parent_id: str, only: str | None = None
) -> list[LockedSession | UnreadableSession]:
    """The direct children of a Session, or the one of this id, in order of creation."""
    query = select(*_row_facts, *_columns).where(_session.c.parent_id == parent_id).order_by(*_in_order)
    return _each(connection.execute(query if only is None else query.where(_session.c.id == only)))


def outside_roster(connection: Connection, root_id: str) -> list[LockedSession | UnreadableSession]:
    """The descendants of a root that are no members of its Team, in order of creation."""
    roster = select(_member.c.member_id).where(_member.c.session_id == root_id)
    query = (
        select(*_row_facts, *_columns)
        .where(_session.c.root_id == root_id, _session.c.depth > 0, _session.c.id.not_in(roster))
        .order_by(*_in_order)
    )
    return _each(connection.execute(query))


def _each(rows: "Iterable[Row[*tuple[Any, ...]]]") -> list[LockedSession | UnreadableSession]:
    found: list[LockedSession | UnreadableSession] = []
    for session_id, root_id, parent_id, created, seq, *row in rows:
        try:
            found.append(_decode(tuple(row)))
        except LogDamaged as error:
            found.append(UnreadableSession(session_id, root_id, parent_id, created, seq, error.message))
    return found


def last_seq(connection: Connection, session_id: str) -> int:
    """The number of a Session's newest event, also when its state cannot be read. Raises SessionNotFound."""
    seq = connection.execute(select(_session.c.seq).where(_session.c.id == session_id)).scalar_one_or_none()
    if seq is None:
        raise SessionNotFound(f"There is no Session {session_id!r}; `team sessions` lists them.")
    return seq


def tree(connection: Connection, root_id: str) -> list[LockedSession]:
    """A root and its descendants, parents first."""
    query = (
        select(*_columns)
        .where(_session.c.root_id == root_id)
        .order_by(_session.c.depth, _session.c.created_order, _session.c.id)
    )
    return [_decode(row) for row in connection.execute(query)]


def readable_tree(connection: Connection, root_id: str) -> tuple[list[tuple[LockedSession, float]], dict[str, str]]:
    """A root and its descendants with the time of their creation, parents first; and by id what cannot be read."""
    query = (
        select(_session.c.id, _session.c.created_order, *_columns)
        .where(_session.c.root_id == root_id)
        .order_by(_session.c.depth, _session.c.created_order, _session.c.id)
    )
    found, faults = list[tuple[LockedSession, float]](), dict[str, str]()
    for session_id, created, *row in connection.execute(query):
        try:
            found.append((_decode(tuple(row)), created))
        except LogDamaged as error:
            faults[session_id] = error.message
    return found, faults


def readable_of(connection: Connection, session_ids: Sequence[str]) -> tuple[list[LockedSession], dict[str, str]]:
    """Those of the named Sessions that can be read; and by id what cannot."""
    query = select(*_row_facts, *_columns).where(_session.c.id.in_(list(session_ids)))
    found, faults = list[LockedSession](), dict[str, str]()
    for session in _each(connection.execute(query)):
        if isinstance(session, UnreadableSession):
            faults[session.id] = session.fault
        else:
            found.append(session)
    return found, faults


def newest_roots(connection: Connection, limit: int) -> list[tuple[str, float]]:
    """Ids of roots and the time of their creation, newest first."""
    query = (
        select(_session.c.id, _session.c.created_order)
        .where(_session.c.depth == 0)
        .order_by(_session.c.created_order.desc(), _session.c.id)
        .limit(limit)
    )
    return [(row[0], row[1]) for row in connection.execute(query)]


def lock_sessions(
    connection: Connection, session_ids: Iterable[str], *, skip_locked: bool = False
) -> Sequence[LockedSession]:
    query = (
        select(*_columns)
        .where(_session.c.id.in_(list(session_ids)))
        .order_by(_session.c.depth, _session.c.id)
        .with_for_update(skip_locked=skip_locked)
    )
    return [_decode(row) for row in connection.execute(query)]


def lock_headers(connection: Connection) -> list[SessionHeader]:
    """Lock all Sessions and read what never changes of them: their heads may have the shape of an older version."""
    query = select(_session.c.header).order_by(_session.c.depth, _session.c.id).with_for_update()
    return [SessionHeader.model_validate_json(text) for text in connection.execute(query).scalars()]


def insert_session(connection: Connection, header: SessionHeader, now: float) -> None:
    """Insert the row of a new Session, and its Team row when it is a root. Raises SessionExists."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(_session).values(
                    id=header.id,
                    root_id=header.root_id,
                    parent_id=header.parent_id,
                    depth=header.depth,
                    created_order=now,
                    header=header.to_json(),
                    head=HeadSlice(cwd=header.cwd).to_json(),
                    seq=0,
                    tokens=0,
                )
            )
            if header.depth == 0:
                connection.execute(
                    insert(_team).values(
                        team_id=header.id, edge_counter=0, closed=False, run_since=now, run_tokens=0, run_turns=0
                    )
                )
    except IntegrityError as error:
        raise SessionExists(f"A Session {header.id!r} exists already.") from error


def lock_team(connection: Connection, team_id: TeamId) -> int:
    query = select(_team.c.edge_counter).where(_team.c.team_id == team_id).with_for_update()
    counter = connection.execute(query).scalar_one_or_none()
    if counter is None:
        raise SessionNotFound(f"There is no Team {team_id!r}; `team sessions` lists them.")
    return counter


def edge_counter(connection: Connection, team_id: str) -> int:
    query = select(_team.c.edge_counter).where(_team.c.team_id == team_id)
    return connection.execute(query).scalar_one_or_none() or 0


def is_closed(connection: Connection, team_id: str) -> bool:
    """Whether admission to the Team is closed."""
    query = select(_team.c.closed).where(_team.c.team_id == team_id)
    return bool(connection.execute(query).scalar_one_or_none())


def set_closed(connection: Connection, team_id: str, closed: bool) -> None:
    connection.execute(update(_team).where(_team.c.team_id == team_id).values(closed=closed))


@dataclass(frozen=True)
class Spent:
    """What the Sessions of a Team's tree used since its newest human prompt, and for how long."""

    tokens: int
    turns: int
    seconds: float


def spent(connection: Connection, root_id: str, now: float, *, count_tokens: bool) -> Spent:
    """What a Team has used since its newest human prompt. No log is read.

    Args:
        connection: An open transaction.
        root_id: The Team.
        now: The database's clock.
        count_tokens: Whether to sum the tokens, which costs a look at the row of each Session of the tree; else 0.
    """
    query = select(_team.c.run_tokens, _team.c.run_turns, _team.c.run_since).where(_team.c.team_id == root_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise SessionNotFound(f"There is no Team {root_id!r}; `team sessions` lists them.")
    tokens = connection.execute(_tokens(root_id)).scalar_one() - row[0] if count_tokens else 0
    return Spent(int(tokens), int(row[1]), max(0.0, now - float(row[2])))


def begin_run(connection: Connection, root_id: str, now: float) -> None:
    """Let budgets count from now: a person has prompted the Team. Its row is locked."""
    tokens = _tokens(root_id).scalar_subquery()
    values = {"run_since": now, "run_tokens": tokens, "run_turns": 0}
    connection.execute(update(_team).where(_team.c.team_id == root_id).values(values))


def _tokens(root_id: str) -> Select[tuple[Any]]:
    """The tokens of all Sessions of a tree."""
    return select(func.coalesce(func.sum(_session.c.tokens), 0)).where(_session.c.root_id == root_id)


def count_turns(connection: Connection, team_id: str, turns: int) -> None:
    """Add turns that a Team has begun. Its row is locked."""
    connection.execute(update(_team).where(_team.c.team_id == team_id).values(run_turns=_team.c.run_turns + turns))


def raise_counter(connection: Connection, team_id: str) -> None:
    connection.execute(update(_team).where(_team.c.team_id == team_id).values(edge_counter=_team.c.edge_counter + 1))


def set_guard(
    connection: Connection, session_id: str, turn_id: str | None, epoch: int | None, until: float | None
) -> None:
    """Keep a Session from being claimed until the worker of ``turn_id`` confirms or ``until`` passes."""
    connection.execute(
        update(_session)
        .where(_session.c.id == session_id)
        .values(guard_turn=turn_id, guard_epoch=epoch, guard_until=until)
    )


def clear_guard(connection: Connection, turn_id: str, epoch: int) -> SessionId | None:
    """Lift the guard that this claim left; returns its Session when there was one."""
    lifted = (
        update(_session)
        .where(_session.c.guard_turn == turn_id, _session.c.guard_epoch == epoch)
        .values(guard_turn=None, guard_epoch=None, guard_until=None)
        .returning(_session.c.id)
    )
    return connection.execute(lifted).scalar_one_or_none()
