"""Containment: which file of the workspace a path names, found without ever leaving the workspace.

The walk opens one component after the other below the root and follows links itself, so a link that is swapped while
it runs leads to another place inside, or to a refusal, but never outside. What follows the walk happens relative to
the directory that it opened.
"""

import errno
import os
import posixpath
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from team.model.errors import ConfigurationInvalid, InvalidArgument, OutsideWorkspace
from team.model.values import text_fault
from workers.checkout.errors import FileFaultError, FileMissingError, NotAFileError

DATA_AREA: Final = ".team"
"""Directory below the root that belongs to the product: the workspace id, locks, spilled output."""

_MOST_LINKS: Final = 40
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Place:
    """A name in an open directory of the workspace. Close it, or use it as a context manager.

    Attributes:
        directory: The open directory; the deepest that exists, when ``missing`` is not empty.
        missing: Directories between ``directory`` and the file that are not there.
        name: The last component; "" for the root itself.
        path: Relative to the root, posix, links resolved: the identity of the file.
        mode: ``st_mode`` of what is there, None when nothing is.
        shown: The path as the caller wrote it, for messages.
    """

    directory: int
    name: str
    path: str
    shown: str
    mode: int | None = None
    missing: tuple[str, ...] = ()
    _open: bool = field(default=True, repr=False)

    @property
    def exists(self) -> bool:
        return self.mode is not None

    @property
    def is_directory(self) -> bool:
        return self.mode is not None and stat.S_ISDIR(self.mode)

    def require_file(self) -> None:
        """Raise unless a regular file is there."""
        if self.mode is None:
            raise missing(self.shown)
        if stat.S_ISDIR(self.mode):
            raise NotAFileError(f"{self.shown} is a directory. List its files with glob.")
        if not stat.S_ISREG(self.mode):
            raise NotAFileError(f"{self.shown} is not a regular file (a pipe, socket or device).")

    def make_directories(self) -> None:
        """Create the missing directories. Another process may create them too."""
        for name in self.missing:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.directory)
            inner = os.open(name, _DIRECTORY, dir_fd=self.directory)
            os.close(self.directory)
            self.directory = inner
        self.missing = ()

    def close(self) -> None:
        """Close the directory. Idempotent."""
        if self._open:
            self._open = False
            os.close(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def missing(shown: str) -> FileMissingError:
    return FileMissingError(f"There is no file at {shown}. Look with glob, or create it with write.")


def outside(shown: str) -> OutsideWorkspace:
    # Says nothing of what is there: not even whether it exists.
    return OutsideWorkspace(f"{shown} is not inside the workspace. Use a path below the workspace root.")


def os_fault(shown: str, error: OSError) -> FileFaultError:
    return FileFaultError(f"{shown}: {error.strerror or error}. Nothing was changed.")


class Workspace:
    """The root of the shared checkout.

    Args:
        root: An existing directory.

    Raises:
        OSError: ``root`` is not a directory that can be opened.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._given = os.path.abspath(root)  # noqa: PTH100  # as it is spelled, links kept
        self._spellings = tuple({str(self.root), self._given})
        os.close(self._open_root())

    def _open_root(self) -> int:
        return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def relative(self, path: str) -> str | None:
        """``path``, absolute, relative to the root by its text alone; None when it is not below it."""
        for root in self._spellings:
            if path == root:
                return ""
            if path.startswith(root.rstrip("/") + "/"):
                return path[len(root.rstrip("/")) + 1 :]
        return None

    def spelled(self, path: str) -> str | None:
        """An absolute path inside with the root as it was given, which may be a link; None when it is outside."""
        relative = self.relative(path)
        return None if relative is None else posixpath.join(self._given, relative).rstrip("/")

    def place(self, path: str, cwd: str) -> Place:
        """Find what ``path`` names, relative to the absolute directory ``cwd`` inside the workspace.

        The caller closes the place.

        Raises:
            OutsideWorkspace: The path leads out of the workspace.
            FileMissingError: A directory on the way that the path leaves again does not exist.
            NotAFileError: A component on the way is not a directory.
            InvalidArgument: The path is no text that can be logged.
            FileFaultError: The operating system refused.
        """
        try:
            return _Walk(self, path).run(self._components(posixpath.join(cwd, path), path))
        except OSError as error:
            raise os_fault(path, error) from error

    def directory(self, path: str, cwd: str) -> Place:
        """Like ``place``, for a directory that must exist. ``Place.directory`` is that directory itself.

        Raises:
            FileMissingError: Nothing is there.
            NotAFileError: Something else is there.
        """
        with self.place(path, cwd) as place:
            if place.mode is None:
                raise FileMissingError(f"There is no directory at {path}.")
            if not place.is_directory:
                raise NotAFileError(f"{path} is not a directory.")
            try:
                inner = os.open(place.name or ".", _DIRECTORY, dir_fd=place.directory)
            except OSError as error:
                raise os_fault(path, error) from error
            return Place(inner, "", place.path, path, place.mode)

    def data_directory(self, *names: str) -> int:
        """Open a directory of the data area, created when missing. The caller closes it. Raises OSError."""
        directory = self._open_root()
        for name in (DATA_AREA, *names):
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=directory)
                inner = os.open(name, _DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = inner
        return directory

    def _components(self, path: str, shown: str) -> list[str]:
        """Components below the root of an absolute path that may lie anywhere."""
        inside = self.relative(path)
        if inside is None and not posixpath.normpath(path).startswith("/proc/"):
            # Perhaps another spelling of a place inside. The walk checks it once more.
            inside = self.relative(os.path.realpath(path))
        if inside is None:
            raise outside(shown)
        return inside.split("/")

    def enter(self, path: str, shown: str) -> list[str]:
        """Components of an absolute link target or of a path that left the root by ``..``."""
        return self._components(path, shown)


def open_workspace(root: Path) -> Workspace:
    """The workspace at ``root``. Raises ConfigurationInvalid when that is no directory that can be opened."""
    try:
        return Workspace(root)
    except OSError as error:
        raise ConfigurationInvalid(f"the workspace {root} cannot be opened: {error.strerror}") from error


class _Walk:
    """One resolution. Holds the open directories from the root down."""

    def __init__(self, workspace: Workspace, shown: str) -> None:
        self._workspace = workspace
        self._shown = shown
        self._names: list[str] = []
        self._handles: list[int] = []
        self._links = 0

    def run(self, components: list[str]) -> Place:
        self._handles.append(os.open(self._workspace.root, _LOOK | os.O_DIRECTORY))
        try:
            return self._run(list(reversed(components)))
        finally:
            for handle in self._handles:
                os.close(handle)

    def _run(self, pending: list[str]) -> Place:
        """``pending`` is the rest of the path, last component first."""
        absent: list[str] = []
        mode: int | None = stat.S_IFDIR
        while pending:
            name = pending.pop()
            if name in {"", "."}:
                continue
            if absent:
                if name == "..":
                    raise missing(self._shown)
                absent.append(name)
                continue
            if mode is not None and not stat.S_ISDIR(mode):
                raise NotAFileError(f"{self._shown}: {self._names[-1]} is not a directory.")
            if name == "..":
                self._up(pending)
                mode = stat.S_IFDIR
                continue
            found = self._step(name, pending)
            if found is None:
                absent.append(name)
                mode = None
            else:
                mode = found
        return self._place(mode, absent)

    def _up(self, pending: list[str]) -> None:
        if self._names:
            self._names.pop()
            os.close(self._handles.pop())
            return
        above = posixpath.dirname(str(self._workspace.root))
        again = self._workspace.enter(posixpath.join(above, *reversed(pending)), self._shown)
        pending[:] = reversed(again)

    def _step(self, name: str, pending: list[str]) -> int | None:
        """Enter ``name``, or put a link's target before the rest. The mode of what was entered; None when absent."""
        try:
            handle = os.open(name, _LOOK, dir_fd=self._handles[-1])
        except FileNotFoundError:
            return None
        mode = os.fstat(handle).st_mode
        if not stat.S_ISLNK(mode):
            self._names.append(name)
            self._handles.append(handle)
            return mode
        try:
            target = os.readlink("", dir_fd=handle)
        finally:
            os.close(handle)
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            inside = self._workspace.enter(target, self._shown)
            self._leave_all()
            pending.extend(reversed(inside))
        else:
            pending.extend(reversed(target.split("/")))
        return stat.S_IFDIR

    def _leave_all(self) -> None:
        self._names.clear()
        while len(self._handles) > 1:
            os.close(self._handles.pop())

    def _place(self, mode: int | None, absent: list[str]) -> Place:
        path = "/".join([*self._names, *absent])
        if text_fault(path):
            raise InvalidArgument(f"{self._shown} leads to a file whose name is not UTF-8. Use bash for it.")
        parent = self._handles[-2] if self._names and not absent else self._handles[-1]
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        name = absent[-1] if absent else self._names[-1] if self._names else ""
        return Place(directory, name, path, self._shown, mode, tuple(absent[:-1]))
