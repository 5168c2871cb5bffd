"""The database: engine, clock, and transactions that retry what a model must never see."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from config import faults
from team.model.errors import StoreUnavailable

_R = TypeVar("_R")

RETRIES: Final = 12
OVERLOADED: Final = "The database cannot be reached or is overloaded; the call may be retried."
_RETRIED_SQLSTATES: Final = frozenset({"40001", "40P01", "55P03", "23505"})
"""serialization_failure, deadlock_detected, lock_not_available, unique_violation

The last: another transaction committed the same idempotency key first; the body finds it when it runs again.
"""


class Database:
    """One database of the log. Safe to share between threads.

    SQLite runs in WAL mode with ``synchronous=FULL``; writes use BEGIN IMMEDIATE and queue on a lock of this process
    before they queue on the file. PostgreSQL runs READ COMMITTED: each transaction takes row locks first and reads
    afterwards.
    """

    def __init__(self, url: str, pool_size: int = 16) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {} if self.is_sqlite else {"pool_pre_ping": True, "pool_timeout": 10}
        if self.is_sqlite:
            options["connect_args"] = {"timeout": 15.0, "check_same_thread": False}
        else:
            options["connect_args"] = {"connect_timeout": 5, "keepalives_idle": 10, "application_name": "team"}
        self.engine: Engine = create_engine(
            url, pool_size=pool_size, max_overflow=pool_size, hide_parameters=True, **options
        )
        self._epoch = time.time() - time.monotonic()
        self._writer = threading.Lock()
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database; None for one in memory and for PostgreSQL."""
        name = self.url.database
        return Path(name) if self.is_sqlite and name and name != ":memory:" else None

    def close(self) -> None:
        self.engine.dispose()

    def now(self, connection: Connection) -> float:
        """Seconds since 1970 on the database's clock.

        SQLite's runs with this process from the moment at which the database was opened: a step of the machine's clock
        neither ends a lease nor prolongs one.
        """
        if self.is_sqlite:
            return self._epoch + time.monotonic()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """A read-only view of one moment. Raises StoreUnavailable when the database cannot be reached."""
        try:
            with self.engine.connect() as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise unavailable(error) from error
        except PoolTimeout as error:
            raise StoreUnavailable(OVERLOADED) from error

    def writing(self, body: Callable[[Connection], _R]) -> _R:
        """Run ``body`` in one write transaction and commit it.

        A serialization failure, a deadlock or a busy database is retried with the whole body, so ``body`` must keep
        its effects inside the transaction. Raises StoreUnavailable when the database stays away.
        """
        for attempt in range(1, RETRIES + 1):
            committing = False
            try:
                with self._writer if self.is_sqlite else nullcontext(), self.engine.connect() as connection:
                    writer = connection.execution_options(immediate=True)
                    transaction = writer.begin()
                    with transaction:
                        result = body(writer)
                        committing = True
                        faults.reached("before-commit")
                        transaction.commit()
                        faults.reached("after-commit")
                    return result
            except DBAPIError as error:
                # A connection lost during COMMIT may have committed: only the caller's own key can tell.
                lost = error.connection_invalidated and not committing
                if attempt == RETRIES or not (lost or _is_conflict(error)):
                    raise unavailable(error) from error
                time.sleep(_pause(attempt))
            except PoolTimeout as error:
                raise StoreUnavailable(OVERLOADED) from error
        raise AssertionError("unreachable")


def unavailable(error: DBAPIError) -> Exception:
    """A lost or overloaded database as a retryable error; anything else is a defect and stays what it is."""
    defect = isinstance(error.orig, sqlite3.OperationalError) and error.orig.sqlite_errorcode == sqlite3.SQLITE_ERROR
    if (isinstance(error, OperationalError) and not defect) or error.connection_invalidated:
        return StoreUnavailable(OVERLOADED)
    return error


def _is_conflict(error: DBAPIError) -> bool:
    cause = error.orig
    if isinstance(cause, sqlite3.OperationalError):
        return _is_busy(cause)
    return getattr(cause, "sqlstate", None) in _RETRIED_SQLSTATES


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _pause(attempt: int) -> float:
    return min(0.5, 0.005 * 2**attempt) * random.random()  # noqa: S311 -- jitter


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    for pragma in ("busy_timeout=15000", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
    for attempt in range(1, RETRIES + 1):
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            # The first switch of a new file refuses a second one at once, whatever the busy timeout.
            if attempt == RETRIES or not _is_busy(error):
                raise
            time.sleep(_pause(attempt))
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
