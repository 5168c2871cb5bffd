"""Revisions of the schema, run and drafted by Alembic.

``python -m team.log.revisions "what changes"`` drafts the next revision: the difference between the newest one and
``team.log.tables``. A revision that was committed is never changed: somebody's store is at it already.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Literal

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlmodel import AutoString

from team.log.database import Database
from team.log.schema import MIGRATIONS, known_revisions

_TEMPLATE: Final = "%%(rev)s_%%(slug)s"


def upgrade(connection: Connection) -> None:
    """Run what is missing up to the newest revision inside the connection's transaction."""
    command.upgrade(_config(connection), "head")


def draft(message: str) -> Path:
    """Write the next revision by comparing the tables with a fresh store at the newest one; returns its file."""
    revision = f"{len(known_revisions()) + 1:04d}"
    with tempfile.TemporaryDirectory() as directory:
        database = Database(f"sqlite:///{directory}/draft.db")

        def compare(connection: Connection) -> None:
            config = _config(connection)
            if known_revisions():
                command.upgrade(config, "head")
            command.revision(config, message, autogenerate=True, rev_id=revision)

        database.writing(compare)
        database.close()
    return next((MIGRATIONS / "versions").glob(f"{revision}_*.py"))


def render_item(kind: str, item: Any, _context: object) -> str | Literal[False]:
    """Text columns as plain SQLAlchemy, so that a revision never imports the table classes' library."""
    return "sa.String()" if kind == "type" and isinstance(item, AutoString) else False


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("file_template", _TEMPLATE)
    return config


if __name__ == "__main__":
    sys.stdout.write(f"{draft(' '.join(sys.argv[1:]) or 'change')}\n")
