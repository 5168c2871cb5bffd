"""The database as an onlooker reads it, whoever serves it or not: who runs what, how far each log is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from team.log.database import Database
from team.model.errors import StoreUnavailable
from tests.support.waiting import wait_until

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """One open turn: its state, its epoch, who executes it, and the newest event of its Session."""

    turn: str
    session: str
    state: str
    epoch: int
    worker: str | None
    seq: int


class Onlooker:
    """Reads with connections of its own and changes nothing."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, pool_size=4)

    def close(self) -> None:
        self._database.close()

    def read(self, what: Callable[[Connection], T]) -> T | None:
        """What ``what`` finds, or None while the database is away."""
        try:
            with self._database.reading() as connection:
                return what(connection)
        except StoreUnavailable:
            return None

    def patiently(self, what: Callable[[Connection], T]) -> T:
        """Like ``read``, once the database is there."""
        found: list[T] = []

        def look() -> bool:
            self.read(lambda connection: found.append(what(connection)))
            return bool(found)

        wait_until(look, "the database to be readable", 60, every=0.1)
        return found[0]

    def open_turns(self) -> list[Running] | None:
        """Every open turn, or None while the database is away."""
        return self.read(_open_turns)

    def clock(self, connection: Connection) -> float:
        """Seconds since 1970 on the database's clock."""
        return self._database.now(connection)

    def claims(self) -> int | None:
        """How many claims there ever were, or None while the database is away."""
        return self.read(lambda connection: int(connection.execute(text("SELECT count(*) FROM claim")).scalar_one()))

    def texts_after(self, session: str, seq: int) -> Sequence[tuple[int, str]] | None:
        """(seq, data) of the assistant's messages of a Session after ``seq``."""
        query = text(
            "SELECT seq, data FROM event WHERE session_id = :s AND seq > :q AND type = 'assistant/message' ORDER BY seq"
        )

        def find(connection: Connection) -> list[tuple[int, str]]:
            rows: Sequence[Any] = connection.execute(query, {"s": session, "q": seq}).all()
            return [(int(row[0]), str(row[1])) for row in rows]

        return self.read(find)


def _open_turns(connection: Connection) -> list[Running]:
    query = text(
        "SELECT run.turn_id, run.session_id, run.state, run.epoch, run.worker, session.seq "
        "FROM run JOIN session ON session.id = run.session_id"
    )
    return [Running(*row) for row in connection.execute(query).all()]
