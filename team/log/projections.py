"""Projection rows: one slice of a Session's state each. They can be rebuilt from events at any time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, and_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from team.log import sessions
from team.log.events import readable_events, stream_events
from team.log.tables import (
    PROJECTION_VERSION,
    CallRow,
    FileRow,
    InboxRow,
    MemberRow,
    MetaRow,
    SessionRow,
    TaskRow,
    TurnRow,
    table,
)
from team.model.errors import LogDamaged
from team.model.fold import apply, replay
from team.model.ids import SessionId, task_number
from team.model.slices import HEAD, CallSlice, FileSlice, HeadSlice, InboxSlice, Key, Slice, TurnSlice
from team.model.snapshots import MemberSnapshot, SessionHeader, TaskSnapshot

_session = table(SessionRow)
_member = table(MemberRow)
_task = table(TaskRow)
_inbox = table(InboxRow)
_turn = table(TurnRow)
_call = table(CallRow)
_meta = table(MetaRow)

VERSION_KEY: Final = "projection-version"
_CHUNK: Final = 500
"""Values of one IN list."""


@dataclass(frozen=True)
class _Kind:
    """How one kind of slice lies in its table: its key column and the columns beside ``data``."""

    table: Table
    slice: type[Any]
    key_column: str
    columns: Callable[[Any], dict[str, Any]]
    stored_key: Callable[[str], Any] = lambda name: name


def _member_columns(member: MemberSnapshot) -> dict[str, Any]:
    return {"name": member.name, "member_id": member.id, "phase": member.phase}


def _task_columns(task: TaskSnapshot) -> dict[str, Any]:
    return {"number": task_number(task.id), "status": task.status, "owner_id": task.owner_id}


def _inbox_columns(item: InboxSlice) -> dict[str, Any]:
    return {
        "message_id": item.message_id,
        "seq": item.seq,
        "state": item.state,
        "sender_turn": item.sender_turn,
    }


def _turn_columns(turn: TurnSlice) -> dict[str, Any]:
    return {"turn_id": turn.turn_id, "ordinal": turn.ordinal, "phase": turn.phase}


def _call_columns(call: CallSlice) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "turn_id": call.turn_id,
        "step": call.step,
        "index": call.index,
        "seq": call.seq,
        "result_seq": call.result_seq,
    }


_KINDS: Final[Mapping[str, _Kind]] = {
    "member": _Kind(_member, MemberSnapshot, "name", _member_columns),
    "task": _Kind(_task, TaskSnapshot, "number", _task_columns, lambda name: task_number(name) or 0),
    "inbox": _Kind(_inbox, InboxSlice, "message_id", _inbox_columns),
    "turn": _Kind(_turn, TurnSlice, "turn_id", _turn_columns),
    "call": _Kind(_call, CallSlice, "call_id", _call_columns),
    "file": _Kind(table(FileRow), FileSlice, "path", lambda file: {"path": file.path}),
}


def load(connection: Connection, session_id: SessionId, key: Key) -> Slice | None:
    """One slice, or None when the Session has none under this key."""
    kind = _KINDS[key[0]]
    query = select(kind.table.c.data).where(
        kind.table.c.session_id == session_id, kind.table.c[kind.key_column] == kind.stored_key(key[1])
    )
    data = connection.execute(query).scalar_one_or_none()
    return None if data is None else kind.slice.model_validate_json(data)


def store(connection: Connection, dirty: Mapping[tuple[SessionId, Key], Slice]) -> None:
    """Write changed slices: one statement per kind."""
    heads: list[tuple[SessionId, HeadSlice]] = []
    rows: dict[str, list[dict[str, Any]]] = {}
    for (session_id, key), value in dirty.items():
        if isinstance(value, HeadSlice):
            heads.append((session_id, value))
            continue
        row = {"session_id": session_id, **_KINDS[key[0]].columns(value), "data": value.to_json()}
        rows.setdefault(key[0], []).append(row)
    for session_id, head in heads:
        connection.execute(
            update(_session)
            .where(_session.c.id == session_id)
            .values(head=head.to_json(), seq=head.seq, tokens=head.totals.tokens)
        )
    for name, values in rows.items():
        if name == "member":
            values = _positioned(connection, values)  # noqa: PLW2901 -- the same rows, completed
        _upsert(connection, _KINDS[name].table, values)


def _positioned(connection: Connection, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Members keep their order of creation: a new row is placed behind the ones that exist."""
    first = connection.execute(
        select(func.count()).select_from(_member).where(_member.c.session_id == values[0]["session_id"])
    ).scalar_one()
    return [{**row, "position": first + offset} for offset, row in enumerate(values)]


def _upsert(connection: Connection, target: Table, rows: list[dict[str, Any]]) -> None:
    make = sqlite_insert if connection.dialect.name == "sqlite" else postgresql_insert
    statement = make(target)
    primary = [column.name for column in target.primary_key.columns]
    changed = {
        column.name: statement.excluded[column.name]
        for column in target.columns
        if column.name not in primary and column.name != "position"
    }
    connection.execute(statement.on_conflict_do_update(index_elements=primary, set_=changed), rows)


def members(connection: Connection, session_id: SessionId) -> Sequence[MemberSnapshot]:
    """The roster in order of creation."""
    query = select(_member.c.data).where(_member.c.session_id == session_id).order_by(_member.c.position)
    return [MemberSnapshot.model_validate_json(data) for data in connection.execute(query).scalars()]


def named_tasks(connection: Connection, session_id: SessionId, numbers: Sequence[int]) -> Sequence[TaskSnapshot]:
    """The tasks of these numbers, tombstones too."""
    found: list[TaskSnapshot] = []
    for start in range(0, len(numbers), _CHUNK):
        wanted = numbers[start : start + _CHUNK]
        query = select(_task.c.data).where(_task.c.session_id == session_id, _task.c.number.in_(wanted))
        found += [TaskSnapshot.model_validate_json(data) for data in connection.execute(query).scalars()]
    return found


def tombstones(
    connection: Connection, session_id: SessionId, after: int, limit: int, owners: Sequence[str | None] | None
) -> Sequence[TaskSnapshot]:
    """Deleted tasks behind the number ``after`` in order of creation; only of these owners when they are given."""
    query = (
        select(_task.c.data)
        .where(_task.c.session_id == session_id, _task.c.status == "deleted", _task.c.number > after)
        .order_by(_task.c.number)
        .limit(limit)
    )
    if owners is not None:
        query = query.where(or_(*(_task.c.owner_id.is_not_distinct_from(owner) for owner in owners)))
    return [TaskSnapshot.model_validate_json(data) for data in connection.execute(query).scalars()]


def live_tasks(connection: Connection, session_id: SessionId) -> Sequence[TaskSnapshot]:
    """The board without tombstones, in order of creation."""
    query = (
        select(_task.c.data)
        .where(_task.c.session_id == session_id, _task.c.status != "deleted")
        .order_by(_task.c.number)
    )
    return [TaskSnapshot.model_validate_json(data) for data in connection.execute(query).scalars()]


def pending(connection: Connection, session_id: SessionId) -> Sequence[InboxSlice]:
    """Unclaimed messages in log order."""
    query = (
        select(_inbox.c.data)
        .where(_inbox.c.session_id == session_id, _inbox.c.state == "pending")
        .order_by(_inbox.c.seq)
    )
    return [InboxSlice.model_validate_json(data) for data in connection.execute(query).scalars()]


def sent_during(connection: Connection, target_id: str, sender_turn: str) -> bool:
    """Whether the target's inbox ever got a message that this turn of a member sent."""
    query = select(func.count()).where(_inbox.c.session_id == target_id, _inbox.c.sender_turn == sender_turn)
    return connection.execute(query).scalar_one() > 0


def turns(connection: Connection, session_id: str, limit: int = 1) -> Sequence[TurnSlice]:
    """The newest turns, newest first."""
    query = select(_turn.c.data).where(_turn.c.session_id == session_id).order_by(_turn.c.ordinal.desc()).limit(limit)
    return [TurnSlice.model_validate_json(data) for data in connection.execute(query).scalars()]


def last_turns(connection: Connection, root_id: str) -> dict[str, TurnSlice]:
    """The newest turn of each Session of a tree that has had one."""
    newest = (
        select(_turn.c.session_id, func.max(_turn.c.ordinal).label("ordinal"))
        .join(_session, _session.c.id == _turn.c.session_id)
        .where(_session.c.root_id == root_id)
        .group_by(_turn.c.session_id)
        .subquery()
    )
    query = select(_turn.c.session_id, _turn.c.data).join(
        newest, and_(_turn.c.session_id == newest.c.session_id, _turn.c.ordinal == newest.c.ordinal)
    )
    return {row[0]: TurnSlice.model_validate_json(row[1]) for row in connection.execute(query)}


def last_valid(connection: Connection, header: SessionHeader) -> tuple[dict[Key, Slice], str | None]:
    """The state of a Session up to the first event that cannot be read or does not fit, and that event's damage."""
    state: dict[Key, Slice] = {HEAD: HeadSlice(cwd=header.cwd)}
    after = 0
    while True:
        page, damage = readable_events(connection, header.id, after, 1_000)
        try:
            for event in page:
                state.update(apply(header, state.get, event.seq, event.decoded()))
        except LogDamaged as error:
            return state, error.message
        if damage is not None or not page:
            return state, None if damage is None else damage.message
        after = page[-1].seq


def turns_taken(connection: Connection, turn_ids: Sequence[str]) -> set[str]:
    """Which of these turn ids the store has, in whatever Session."""
    taken: set[str] = set()
    for start in range(0, len(turn_ids), _CHUNK):
        query = select(_turn.c.turn_id).where(_turn.c.turn_id.in_(turn_ids[start : start + _CHUNK]))
        taken.update(connection.execute(query).scalars())
    return taken


def turn_calls(connection: Connection, session_id: str, turn_id: str, step: int) -> Sequence[CallSlice]:
    """The calls of one step in their order."""
    query = (
        select(_call.c.data)
        .where(_call.c.session_id == session_id, _call.c.turn_id == turn_id, _call.c.step == step)
        .order_by(_call.c.index)
    )
    return [CallSlice.model_validate_json(data) for data in connection.execute(query).scalars()]


def call_ids_taken(connection: Connection, session_id: str, call_ids: Sequence[str]) -> set[str]:
    query = select(_call.c.call_id).where(_call.c.session_id == session_id, _call.c.call_id.in_(call_ids))
    return set(connection.execute(query).scalars())


def files(connection: Connection, session_id: str) -> Sequence[FileSlice]:
    """File versions that the Session has seen."""
    kind = _KINDS["file"]
    query = select(kind.table.c.data).where(kind.table.c.session_id == session_id)
    return [FileSlice.model_validate_json(data) for data in connection.execute(query).scalars()]


def member_by_session(connection: Connection, team_id: str, session_id: str) -> MemberSnapshot | None:
    query = select(_member.c.data).where(_member.c.session_id == team_id, _member.c.member_id == session_id)
    data = connection.execute(query).scalar_one_or_none()
    return None if data is None else MemberSnapshot.model_validate_json(data)


def state(connection: Connection, session_id: SessionId) -> dict[Key, Slice]:
    """Everything the projections hold of one Session."""
    found: dict[Key, Slice] = {HEAD: sessions.find_session(connection, session_id).head}
    for name, kind in _KINDS.items():
        columns = (kind.table.c.data, kind.table.c[kind.key_column])
        for data, key in connection.execute(select(*columns).where(kind.table.c.session_id == session_id)):
            value = kind.slice.model_validate_json(data)
            found[name, value.id if name == "task" else str(key)] = value
    return found


def fault_of(connection: Connection, session_id: SessionId) -> str | None:
    """How the projections of a Session differ from the replay of its log; None when they are equal."""
    try:
        header = sessions.find_session(connection, session_id).header
        replayed = replay(header, stream_events(connection, session_id))
    except LogDamaged as error:
        return error.message
    stored = state(connection, session_id)
    for key in sorted({*replayed, *stored}):
        if replayed.get(key) != stored.get(key):
            return f"the projection of {' '.join(key)} differs from the replay of the log"
    return None


def rebuild(connection: Connection, header: SessionHeader) -> None:
    """Replace the projections of a Session by the replay of its log, without reading them. Raises LogDamaged."""
    replayed = replay(header, stream_events(connection, header.id))
    for kind in _KINDS.values():
        connection.execute(delete(kind.table).where(and_(kind.table.c.session_id == header.id)))
    store(connection, {(header.id, key): value for key, value in replayed.items()})


def rebuild_outdated(connection: Connection) -> list[str]:
    """Rebuild every Session when the store was written by another projection version; returns damaged Sessions."""
    if get_meta(connection, VERSION_KEY) == str(PROJECTION_VERSION):
        return []
    damaged: list[str] = []
    for header in sessions.lock_headers(connection):
        try:
            rebuild(connection, header)
        except LogDamaged as error:
            damaged.append(error.message)
    set_meta(connection, VERSION_KEY, str(PROJECTION_VERSION))
    return damaged


def get_meta(connection: Connection, key: str) -> str | None:
    return connection.execute(select(_meta.c.value).where(_meta.c.key == key)).scalar_one_or_none()


def set_meta(connection: Connection, key: str, value: str) -> None:
    _upsert(connection, _meta, [{"key": key, "value": value}])
