"""Event rows: append and read."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, func, insert, select, tuple_

from team.log.tables import EventRow, table
from team.model.errors import LogDamaged
from team.model.events import (
    VISIBLE,
    AssistantMessage,
    Event,
    EventData,
    FileIntended,
    MemberChanged,
    StepStarted,
    UserMessage,
    decode_stored,
)
from team.model.history import HistoryEntry, entries
from team.model.ids import SessionId
from team.model.values import decode_json
from team.model.views import EventFaultView

_event = table(EventRow)


StoredEvent = tuple[SessionId, int, str, str, str]
"""(Session, seq, time, type, data as JSON text)"""


@contextmanager
def naming(session_id: str) -> Generator[None]:
    """Damage found inside names the Session."""
    try:
        yield
    except LogDamaged as error:
        if session_id in error.message:
            raise
        raise LogDamaged(f"Session {session_id}: {error.message}") from error


def _decoded(session_id: str, seq: int, event_type: str, text: str) -> EventData:
    try:
        return decode_stored(event_type, text)
    except LogDamaged as error:
        raise LogDamaged(f"Session {session_id}, event {seq}: {error.message}") from error


def insert_events(connection: Connection, appended: Sequence[tuple[SessionId, int, str, EventData]]) -> None:
    insert_stored(
        connection,
        [(session_id, seq, time, data.event_type, data.to_json()) for session_id, seq, time, data in appended],
    )


def insert_stored(connection: Connection, rows: Sequence[StoredEvent]) -> None:
    """Insert events whose data was validated and serialised before."""
    if rows:
        connection.execute(
            insert(_event),
            [
                {
                    "session_id": session_id,
                    "seq": seq,
                    "time": time,
                    "type": event_type,
                    "visible": event_type in VISIBLE,
                    "data": data,
                }
                for session_id, seq, time, event_type, data in rows
            ],
        )


def read_stored(
    connection: Connection, session_id: str, after: int, through: int, limit: int
) -> list[tuple[int, str, str, str]]:
    """(seq, time, type, data as JSON text) of events between ``after`` and ``through``, in order, undecoded."""
    query = (
        select(_event.c.seq, _event.c.time, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.seq > after, _event.c.seq <= through)
        .order_by(_event.c.seq)
        .limit(limit)
    )
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]


def read_last(connection: Connection, session_id: str, event_type: str) -> EventData | None:
    """The newest event of a type, or None."""
    query = (
        select(_event.c.data)
        .where(_event.c.session_id == session_id, _event.c.type == event_type)
        .order_by(_event.c.seq.desc())
        .limit(1)
    )
    data = connection.execute(query).scalar_one_or_none()
    if data is None:
        return None
    with naming(session_id):
        return decode_stored(event_type, data)


def read_event(connection: Connection, session_id: str, seq: int) -> EventData:
    """One decoded event. Raises LogDamaged when it is missing or unreadable."""
    query = select(_event.c.type, _event.c.data).where(_event.c.session_id == session_id, _event.c.seq == seq)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise LogDamaged(f"Session {session_id}: event {seq} is missing")
    return _decoded(session_id, seq, row[0], row[1])


def read_events(connection: Connection, session_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
    """Events after ``after`` in order, their data as plain JSON. Raises LogDamaged that names a bad one."""
    query = (
        select(_event.c.seq, _event.c.time, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.seq > after)
        .order_by(_event.c.seq)
        .limit(limit)
    )
    return [_event_of(session_id, *row) for row in connection.execute(query)]


def read_page(
    connection: Connection, session_id: str, after: int, limit: int
) -> tuple[list[Event], list[EventFaultView]]:
    """A page of records after ``after``: those that can be read, and of each other one what is wrong with it."""
    query = (
        select(_event.c.seq, _event.c.time, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.seq > after)
        .order_by(_event.c.seq)
        .limit(limit)
    )
    events, faults = list[Event](), list[EventFaultView]()
    for seq, time, event_type, text in connection.execute(query):
        try:
            event = _event_of(session_id, seq, time, event_type, text)
            with naming(session_id):
                event.decoded()
        except LogDamaged as error:
            faults.append(EventFaultView(seq=seq, type=event_type, fault=error.message))
        else:
            events.append(event)
    return events, faults


def _event_of(session_id: str, seq: int, time: str, event_type: str, text: str) -> Event:
    try:
        return Event.model_validate({"seq": seq, "time": time, "type": event_type, "data": decode_json(text)})
    except ValueError as error:
        raise LogDamaged(f"Session {session_id}, event {seq}: {error}") from error


def readable_events(
    connection: Connection, session_id: str, after: int, limit: int
) -> tuple[list[Event], LogDamaged | None]:
    """Events after ``after`` in order, up to ``limit`` or to the first that cannot be read, with its damage."""
    query = (
        select(_event.c.seq, _event.c.time, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.seq > after)
        .order_by(_event.c.seq)
        .limit(limit)
    )
    readable = list[Event]()
    for row in connection.execute(query):
        try:
            event = _event_of(session_id, *row)
            event.decoded()
        except LogDamaged as error:
            named = session_id in error.message
            return readable, error if named else LogDamaged(f"Session {session_id}: {error.message}")
        readable.append(event)
    return readable, None


def event_times(connection: Connection, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """When these events, each a Session and a seq, were appended: ISO-8601 UTC."""
    query = select(_event.c.session_id, _event.c.seq, _event.c.time).where(
        tuple_(_event.c.session_id, _event.c.seq).in_(list(places))
    )
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}


def member_times(connection: Connection, session_id: str) -> dict[tuple[str, str], str]:
    """When each member of a Lead's log came to each of its phases, by name and phase: ISO-8601 UTC."""
    query = (
        select(_event.c.time, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.type == MemberChanged.event_type)
        .order_by(_event.c.seq)
    )
    times: dict[tuple[str, str], str] = {}
    for time, text in connection.execute(query):
        try:
            data = decode_stored(MemberChanged.event_type, text)
        except LogDamaged:
            continue  # told as the Team's failure by whoever reads the state
        if isinstance(data, MemberChanged):
            times.setdefault((data.member.name, data.member.phase), time)
    return times


def typed_events(
    connection: Connection, session_id: str, types: Iterable[str], after: int
) -> list[tuple[int, str, str]]:
    """(seq, time, type) of events of these types after ``after``, in order."""
    query = (
        select(_event.c.seq, _event.c.time, _event.c.type)
        .where(_event.c.session_id == session_id, _event.c.seq > after, _event.c.type.in_(list(types)))
        .order_by(_event.c.seq)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]


def stream_events(connection: Connection, session_id: str) -> Iterator[Event]:
    """All events of a Session without holding them in memory at once."""
    after = 0
    while page := read_events(connection, session_id, after, 1_000):
        yield from page
        after = page[-1].seq


def read_history(connection: Connection, session_id: str, after: int, compacted_seq: int) -> list[HistoryEntry]:
    """What a model sees of the log after ``after``.

    A cold reader starts at the newest answer before the last compaction: requests do not show it any more, but the
    place of a script does go on from it.
    """
    start = after or _before_compaction(connection, session_id, compacted_seq)
    query = (
        select(_event.c.seq, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.visible, _event.c.seq > start)
        .order_by(_event.c.seq)
    )
    decoded = [(row[0], _decoded(session_id, *row)) for row in connection.execute(query)]
    visible = entries(decoded)
    if start and not after and not any(entry.kind == "header" for entry in visible):
        visible = [*entries(_last_header(connection, session_id, start)), *visible]
    return visible


def _before_compaction(connection: Connection, session_id: str, compacted_seq: int) -> int:
    if not compacted_seq:
        return 0
    query = (
        select(_event.c.seq)
        .where(
            _event.c.session_id == session_id,
            _event.c.visible,
            _event.c.type == AssistantMessage.event_type,
            _event.c.seq < compacted_seq,
        )
        .order_by(_event.c.seq.desc())
        .limit(1)
    )
    return (connection.execute(query).scalar_one_or_none() or compacted_seq) - 1


def turn_input(connection: Connection, session_id: str, start_seq: int) -> list[tuple[int, UserMessage]]:
    """The user messages since the turn that began at ``start_seq``, in order, each with the step that claimed it."""
    query = (
        select(_event.c.seq, _event.c.type, _event.c.data)
        .where(
            _event.c.session_id == session_id,
            _event.c.seq > start_seq,
            _event.c.type.in_((UserMessage.event_type, StepStarted.event_type)),
        )
        .order_by(_event.c.seq)
    )
    found, step = list[tuple[int, UserMessage]](), 0
    for row in connection.execute(query):
        data = _decoded(session_id, *row)
        if isinstance(data, StepStarted):
            step = data.step
        elif isinstance(data, UserMessage):
            found.append((step, data))
    return found


def _last_header(connection: Connection, session_id: str, before: int) -> Iterable[tuple[int, EventData]]:
    query = (
        select(_event.c.seq, _event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.type == "request/header", _event.c.seq <= before)
        .order_by(_event.c.seq.desc())
        .limit(1)
    )
    return [(row[0], _decoded(session_id, *row)) for row in connection.execute(query)]


def read_intents(connection: Connection, session_id: str, after: int) -> list[FileIntended]:
    """Intents of replaces logged after ``after``, in order."""
    query = (
        select(_event.c.seq, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.type == FileIntended.event_type, _event.c.seq > after)
        .order_by(_event.c.seq)
    )
    found = [_decoded(session_id, row[0], FileIntended.event_type, row[1]) for row in connection.execute(query)]
    return [data for data in found if isinstance(data, FileIntended)]


def count_events(connection: Connection, session_id: str) -> int:
    query = select(func.count()).select_from(_event).where(_event.c.session_id == session_id)
    return connection.execute(query).scalar_one()
