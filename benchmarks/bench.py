"""What all measurements of a run share: databases, directories, the scale, the limits of the machine."""

import itertools
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.postgres import PostgresProcess

from benchmarks.deployment import Site
from benchmarks.figures import Scale
from benchmarks.limits import Limits, measure_limits

_T = TypeVar("_T")


class Bench:
    """One run; used with ``with``. PostgreSQL starts when a measurement first asks for it."""

    def __init__(self, scale: Scale) -> None:
        self.scale: Scale = scale
        self._stack = ExitStack()
        self._directory: Path
        self._postgres: PostgresProcess | None = None
        self._numbers = itertools.count(1)
        self._limits: dict[str, Limits] = {}

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="team-bench-"))
        # The database server runs as another user.
        self._directory.chmod(0o755)
        self._stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def pick(self, tiny: _T, quick: _T, full: _T) -> _T:
        """The value that goes with the scale of the run."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.scale]

    def directory(self) -> Path:
        """A fresh name inside the run's directory."""
        return self._directory / f"site-{next(self._numbers)}"

    def database_url(self, database: str) -> str:
        """A fresh database of this kind, with every commit on the disk before it is acknowledged."""
        if database == "sqlite":
            path = self.directory()
            path.mkdir()
            return f"sqlite:///{path / 'team.db'}"
        if self._postgres is None:
            self._postgres = PostgresProcess(self._directory / "postgres", durable=True)
            self._stack.callback(self._postgres.stop)
        return self._postgres.create_database()

    def site(
        self,
        database: str,
        *,
        roles: Mapping[str, Any] | None = None,
        workers: int = 1,
        slots: int = 8,
        variables: Mapping[str, str] | None = None,
    ) -> Site:
        """A deployment on a fresh database; see ``Site``."""
        url = self.database_url(database)
        return Site(self.directory(), url, roles=roles, workers=workers, slots=slots, variables=variables)

    def limits(self, database: str) -> Limits:
        """What this machine gives for a bare commit, request and Redis round trip; measured once in a run."""
        if database not in self._limits:
            path = self.directory()
            path.mkdir()
            self._limits[database] = measure_limits(self.database_url(database), path, self.pick(20, 300, 2_000))
        return self._limits[database]
