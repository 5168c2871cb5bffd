"""The schema of a store: brought to the newest revision before a coordinator serves it."""

from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from team.log import projections
from team.log.database import Database
from team.log.filesystems import require_local
from team.log.tables import PROJECTION_VERSION, Row
from team.model.errors import ConfigurationInvalid

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_VERSIONS: Final = "alembic_version"
_LOCK: Final = 0x7465616D  # "team": the advisory lock of migrations, one per PostgreSQL database


def known_revisions() -> list[str]:
    """All revisions that this code has, oldest first: a file of ``versions`` begins with its number."""
    return sorted(file.name[:4] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def migrate(database: Database) -> None:
    """Bring a store to the newest schema and its projections to the current version.

    Idempotent. Several processes may start at once: one migrates in one transaction while the others wait for its
    lock (SQLite: the write lock of BEGIN IMMEDIATE; PostgreSQL: an advisory lock of that transaction, which a lost
    connection cannot leave behind) and then find nothing to do. A Session whose log cannot be replayed is logged and
    keeps its old projections; it harms no other.

    Raises:
        ConfigurationInvalid: The store was written by a newer version, belongs to something else, its user may not
            change it, or it is a SQLite file that other machines may have open too. Nothing was changed.
        StoreUnavailable: The database cannot be reached.
    """
    if database.file is not None:
        require_local(database.file)
    try:
        with database.reading() as connection:
            if _is_current(connection):
                return
        damaged = database.writing(_bring_up_to_date)
    except DBAPIError as error:
        place = database.url.render_as_string(hide_password=True)
        reason = (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
        raise ConfigurationInvalid(
            f"The database {place} cannot be brought up to date ({reason}): give TEAM_DATABASE_URL a database of this "
            "product whose user may create and alter tables."
        ) from error
    for fault in damaged:
        structlog.get_logger(__name__).error("session damaged", fault=fault)


def _is_current(connection: Connection) -> bool:
    """Whether schema and projections are those of this code; without Alembic, whose import would cost every start."""
    if _revision(connection) != known_revisions()[-1]:
        return False
    return projections.get_meta(connection, projections.VERSION_KEY) == str(PROJECTION_VERSION)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS):
        return None
    return connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar_one_or_none()  # noqa: S608 -- a constant


def _bring_up_to_date(connection: Connection) -> list[str]:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if _is_current(connection):
        return []
    found, known = _revision(connection), known_revisions()
    if found is None:
        _require_no_strangers(connection)
    elif found not in known:
        raise ConfigurationInvalid(
            f"The database is at schema revision {found} and this version knows revisions up to {known[-1]}: a newer "
            "version wrote it. Start that version, or give TEAM_DATABASE_URL another database."
        )
    if found != known[-1]:
        from team.log.revisions import upgrade  # noqa: PLC0415 -- its import costs more than an up-to-date start

        upgrade(connection)
    return projections.rebuild_outdated(connection)


def _require_no_strangers(connection: Connection) -> None:
    taken = sorted(set(inspect(connection).get_table_names()) & set(Row.metadata.tables))
    if taken:
        raise ConfigurationInvalid(
            f"The database has a table {taken[0]!r} but no schema revision, so something else made it: give "
            "TEAM_DATABASE_URL a database of its own."
        )
