"""Export and import of Session trees as JSON lines.

Each Session is one line ``{"session": header, "events": count}`` and then its events in order, ``{"sessionId", "seq",
"time", "type", "data"}``; parents come before their children, and the first line of an export also counts its
``sessions``. Both counts may be absent; where they stand, a file that was cut off is not taken for a whole one.
"""

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Any, Final, cast

from pydantic import Field, ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from team.log import projections, sessions
from team.log.events import StoredEvent, insert_stored, read_stored
from team.model.errors import LogDamaged, SessionExists
from team.model.events import Event, first_fault
from team.model.fold import apply
from team.model.ids import SessionId
from team.model.slices import HEAD, HeadSlice, Key, Slice
from team.model.snapshots import MemberSnapshot, SessionHeader
from team.model.values import Value, decode_json

_BATCH: Final = 500
_SPOOL_BYTES: Final = 4_000_000
_ORDER_SECONDS: Final = 1e-5
"""Distance of two imported Sessions in the order of creation: a float holds it at today's times."""

_BREAKS: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}
"""Characters at which some readers end a line."""


class _HeaderLine(Value):
    session: SessionHeader
    events: int | None = Field(default=None, ge=0)
    sessions: int | None = Field(default=None, ge=1)


class _EventLine(Event):
    session_id: SessionId


@dataclass(frozen=True)
class Part:
    """One Session of an export, up to the event ``through``."""

    header: SessionHeader
    through: int


def cut(connection: Connection, session_id: str) -> list[Part]:
    """A Session and its descendants as one moment saw them, parents first. Raises SessionNotFound.

    Logs only grow, so the events of the parts may be read later and in other transactions.
    """
    root_id = sessions.find_session(connection, session_id).header.root_id
    parts: list[Part] = []
    inside = {session_id}
    for found in sessions.tree(connection, root_id):
        if found.header.id in inside or found.header.parent_id in inside:
            inside.add(found.header.id)
            parts.append(Part(found.header, found.head.seq))
    return parts


def header_line(part: Part, session_count: int | None) -> str:
    """The first line of a part, with its line end."""
    line = _HeaderLine(session=part.header, events=part.through, sessions=session_count)
    return line.to_json().translate(_BREAKS) + "\n"


def event_lines(connection: Connection, part: Part, after: int) -> tuple[list[str], int]:
    """The next lines of a part, with their line ends, and the event that they reach. Stored data is copied as it is.

    Raises LogDamaged when the log has lost the event that should come next.
    """
    owner = _text(part.header.id)
    lines: list[str] = []
    for seq, time, event_type, data in read_stored(connection, part.header.id, after, part.through, _BATCH):
        names = f'"time":{_text(time)},"type":{_text(event_type)}'
        lines.append(f'{{"sessionId":{owner},"seq":{seq},{names},"data":{data}}}'.translate(_BREAKS) + "\n")
        after = seq
    if not lines:
        raise LogDamaged(f"Session {part.header.id}: the events after {after} are missing.")
    return lines, after


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass
class Incoming:
    """One Session of a file: its header, the state that its events fold into, where the file names it."""

    header: SessionHeader
    line: int
    expected: int | None
    state: dict[Key, Slice] = field(default_factory=dict[Key, Slice])

    @property
    def head(self) -> HeadSlice:
        head = self.state[HEAD]
        assert isinstance(head, HeadSlice)
        return head

    @property
    def members(self) -> list[MemberSnapshot]:
        """The roster that this Session leads, in order of creation."""
        return [value for value in self.state.values() if isinstance(value, MemberSnapshot)]


class Transfer:
    """A whole file that was read and folded: it can be inserted, more than once if a transaction is retried."""

    def __init__(self) -> None:
        self.sessions: list[Incoming] = []
        self._known: dict[str, Incoming] = {}
        self._counts: list[tuple[int, int, int]] = []
        self._spool = SpooledTemporaryFile(max_size=_SPOOL_BYTES, mode="w+", encoding="utf-8", newline="\n")  # noqa: SIM115 -- closed by ``reading``

    def close(self) -> None:
        self._spool.close()

    def take(self, number: int, line: str) -> None:
        """Read and fold one line. Raises LogDamaged, SessionExists."""
        decoded = decode_json(line)
        if not isinstance(decoded, dict):
            raise LogDamaged("it is not a JSON object")
        if "session" in decoded:
            self._begin(number, _HeaderLine.model_validate(decoded))
            return
        event = _EventLine.model_validate(decoded)
        if not self.sessions or event.session_id != self.sessions[-1].header.id:
            raise LogDamaged(f"its Session {event.session_id} does not stand above it")
        incoming = self.sessions[-1]
        data = event.decoded()
        incoming.state.update(apply(incoming.header, incoming.state.get, event.seq, data))
        stored: StoredEvent = (event.session_id, event.seq, event.time, event.type, data.to_json())
        self._spool.write(json.dumps(stored) + "\n")

    def _begin(self, number: int, line: _HeaderLine) -> None:
        self._end_session()
        header = line.session
        if header.id in self._known:
            raise SessionExists(f"the Session {header.id} is in the file twice")
        parent = None if header.parent_id is None else self._known.get(header.parent_id)
        if header.parent_id is None:
            sound = header.depth == 0 and header.root_id == header.id
        elif parent is None:
            raise LogDamaged(
                f"the parent {header.parent_id} of the Session {header.id} is not in the file before it; export its "
                f"root {header.root_id} instead"
            )
        else:
            sound = header.depth == parent.header.depth + 1 and header.root_id == parent.header.root_id
        if not sound:
            raise LogDamaged(f"the Session {header.id} contradicts itself about its root, parent or depth")
        incoming = Incoming(header, number, line.events, {HEAD: HeadSlice(cwd=header.cwd)})
        if line.sessions is not None:
            self._counts.append((number, len(self.sessions), line.sessions))
        self.sessions.append(incoming)
        self._known[header.id] = incoming

    def _end_session(self) -> None:
        if not self.sessions:
            return
        last = self.sessions[-1]
        if last.expected is not None and last.expected != last.head.seq:
            raise LogDamaged(
                f"the Session {last.header.id} ends behind event {last.head.seq} of {last.expected}: the file was cut"
            )
        if last.head.seq < last.header.seed_through:
            raise LogDamaged(
                f"the Session {last.header.id} ends behind event {last.head.seq} and inherited "
                f"{last.header.seed_through}: the file was cut"
            )

    def finish(self) -> None:
        """Check what only the whole file can show. Raises LogDamaged."""
        self._end_session()
        if not self.sessions:
            raise LogDamaged("the file holds no Session")
        for number, before, count in self._counts:
            if len(self.sessions) - before < count:
                raise LogDamaged(f"line {number} announces {count} Sessions and fewer follow: the file was cut")
        for incoming in self.sessions:
            for member in incoming.members:
                child = self._known.get(member.id)
                if member.phase == "active" and child is None:
                    raise LogDamaged(
                        f"the Session {member.id} of the member {member.name} is not in the file: export the whole "
                        f"Team {incoming.header.id} again"
                    )

    def events(self) -> Iterator[StoredEvent]:
        self._spool.seek(0)
        for line in cast("Iterable[str]", self._spool):
            row: list[Any] = json.loads(line)
            yield cast("StoredEvent", tuple(row))


@contextmanager
def reading(lines: Iterable[str]) -> Generator[Transfer]:
    """Read and check a whole file without touching a database; blank lines are skipped.

    Memory holds the folded state of its Sessions, not their events. Raises LogDamaged and SessionExists that name the
    line.
    """
    transfer = Transfer()
    try:
        number = 0
        for number, line in enumerate(lines, 1):  # noqa: B007 -- the end of the file is named by it too
            if line.strip():
                with _named(f"line {number}"):
                    transfer.take(number, line)
        with _named(f"line {number}"):
            transfer.finish()
        yield transfer
    finally:
        transfer.close()


@contextmanager
def _named(place: str) -> Generator[None]:
    """Put the place and the outcome into the error of what is done inside."""
    try:
        yield
    except ValidationError as error:
        raise LogDamaged(f"{place}: {first_fault(error)}; nothing was imported.") from error
    except (LogDamaged, SessionExists) as error:
        raise type(error)(f"{place}: {error.message.rstrip('.')}; nothing was imported.") from error
    except ValueError as error:
        raise LogDamaged(f"{place}: {error}; nothing was imported.") from error


def insert(connection: Connection, transfer: Transfer, now: float) -> None:
    """Insert the Sessions of a file with their events and projections; runtime rows are the caller's.

    Raises SessionExists, and LogDamaged for a turn that the store knows from another Session or a value that the
    database cannot hold.
    """
    for place, incoming in enumerate(transfer.sessions):
        with _named(f"line {incoming.line}"):
            sessions.insert_session(connection, incoming.header, now + place * _ORDER_SECONDS)
    stored = transfer.events()
    while batch := list(islice(stored, _BATCH)):
        with _storable(f"Session {batch[0][0]}, events from {batch[0][1]}"):
            insert_stored(connection, batch)
    for incoming in transfer.sessions:
        session_id = incoming.header.id
        with _named(f"line {incoming.line}"), _storable(f"Session {session_id}"):
            turn_ids = [key[1] for key in incoming.state if key[0] == "turn"]
            taken = projections.turns_taken(connection, turn_ids)
            if taken:
                raise LogDamaged(f"the turn {min(taken)} of Session {session_id} belongs to another Session")
            projections.store(connection, {(session_id, key): value for key, value in incoming.state.items()})


@contextmanager
def _storable(place: str) -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        # Class 54 is PostgreSQL's "program limit exceeded", such as an id too long for an index.
        refused = isinstance(error, IntegrityError | DataError)
        if not refused and not str(getattr(error.orig, "sqlstate", "")).startswith("54"):
            raise
        reason = (str(error.orig).splitlines() or ["it was refused"])[0]
        raise LogDamaged(f"{place}: the database cannot hold it ({reason})") from error
