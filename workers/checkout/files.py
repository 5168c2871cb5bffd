"""``read``, ``write`` and ``edit``: what a Session has seen of a file decides what it may do to it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from team.model.claims import PendingCall
from team.model.errors import NotObserved, OutsideWorkspace, StaleVersion, TeamError
from team.model.slices import FileSlice
from team.model.tools import EditParameters, ReadParameters, WriteParameters
from workers.checkout.blocking import off_loop
from workers.checkout.errors import BinaryFileError, FileMissingError, FileTooLargeError
from workers.checkout.locks import PathLocks
from workers.checkout.paths import DATA_AREA, Place, Workspace, missing, os_fault
from workers.checkout.storage import (
    LARGEST_CHANGED,
    LARGEST_READ,
    PIECE,
    Staged,
    Stored,
    current_version,
    load,
    open_file,
    version_of,
)
from workers.checkout.text import newline_style, replace, whole_text
from workers.checkout.window import PROBE_BYTES, Shown, Window, binary_kind

DEFAULT_LINES: Final = 2000


class AbsentError(Exception):
    """Nothing is at ``path``: an error for the model, and an observation of the Session."""

    def __init__(self, path: str, error: TeamError) -> None:
        super().__init__(error.message)
        self.path = path
        self.error = error


@dataclass(frozen=True)
class Done:
    """What a file tool did, and the version that the Session now knows."""

    text: str
    observed: FileSlice


@dataclass(frozen=True)
class FileCall:
    """What a file tool needs of its call. ``require_lease`` raises TurnFenced when the turn may not act any more."""

    cwd: str
    versions: Mapping[str, str | None]
    intent: Callable[[str, str | None, str], Awaitable[None]]
    require_lease: Callable[[], None]


class Files:
    """The file tools of one workspace."""

    def __init__(self, workspace: Workspace, locks: PathLocks, output_bytes: int) -> None:
        self._workspace = workspace
        self._locks = locks
        self._output_bytes = output_bytes

    async def read(self, parameters: ReadParameters, call: FileCall) -> Done:
        """Show a window of a file. Raises AbsentError, and TeamError for what cannot be shown."""
        return await off_loop(self._read, parameters, call.cwd)

    def _read(self, parameters: ReadParameters, cwd: str) -> Done:
        with self._workspace.place(parameters.path, cwd) as place:
            try:
                shown = self._shown(place, parameters)
            except FileMissingError as error:
                raise AbsentError(place.path, error) from error
            except OSError as error:
                raise os_fault(parameters.path, error) from error
        return Done(shown.text, FileSlice(path=place.path, version=shown.version))

    def _shown(self, place: Place, parameters: ReadParameters) -> Shown:
        window = Window(parameters.offset or 1, parameters.limit or DEFAULT_LINES, self._output_bytes)
        size = 0
        with open_file(place, LARGEST_READ) as file:
            while piece := file.read(PIECE):
                if not size:
                    kind = binary_kind(piece[:PROBE_BYTES])
                    if kind:
                        raise BinaryFileError(f"{place.shown} is {kind}; read shows text only. Inspect it with bash.")
                size += len(piece)
                if size > LARGEST_READ:
                    raise FileTooLargeError(f"{place.shown} grew beyond {LARGEST_READ:,} bytes while it was read.")
                window.feed(piece)
        return window.shown()

    async def write(self, parameters: WriteParameters, call: FileCall) -> Done:
        """Create or replace a whole file.

        Raises:
            NotObserved, StaleVersion: The Session does not know the current version.
            TurnFenced: The turn may not act any more; nothing was changed.
            TeamError: Another fault of the call; nothing was changed.
        """
        place = await off_loop(self._writable, parameters.path, call.cwd)
        with place:
            async with self._locks.holding(place.path):
                old = await off_loop(_load, place)
                _check_version(place, old, call.versions)
                data = whole_text(parameters.content, old.data if old else None)
                notes = await self._publish(place, old, data, call)
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        verb = "Replaced" if old else "Created"
        return Done(
            f"{verb} {parameters.path} ({lines:,} lines, {len(data):,} bytes).{notes}",
            FileSlice(path=place.path, version=version_of(data)),
        )

    async def edit(self, parameters: EditParameters, call: FileCall) -> Done:
        """Replace a piece of a file. Raises AbsentError, and otherwise like ``write``."""
        place = await off_loop(self._writable, parameters.path, call.cwd)
        with place:
            async with self._locks.holding(place.path):
                old = await off_loop(_load, place)
                if old is None:
                    raise AbsentError(place.path, missing(parameters.path))
                _check_version(place, old, call.versions)
                result = await off_loop(
                    replace,
                    old.data,
                    parameters.old_text,
                    parameters.new_text,
                    everywhere=parameters.replace_all,
                )
                notes = await self._publish(place, old, result.data, call)
        count = len(result.lines)
        lines = ", ".join(str(line) for line in result.lines[:10]) + (", …" if count > 10 else "")
        where = f"line {lines}" if count == 1 else f"lines {lines}"
        return Done(
            f"Edited {parameters.path}: {count:,} replacement{'' if count == 1 else 's'} at {where}.{notes}",
            FileSlice(path=place.path, version=version_of(result.data)),
        )

    def _writable(self, path: str, cwd: str) -> Place:
        place = self._workspace.place(path, cwd)
        if place.path == DATA_AREA or place.path.startswith(f"{DATA_AREA}/"):
            place.close()
            raise OutsideWorkspace(
                f"{path} is in the data area {DATA_AREA}/ of the workspace, which tools do not change."
            )
        return place

    async def _publish(self, place: Place, old: Stored | None, data: bytes, call: FileCall) -> str:
        """Replace or create the file, inside its lock. Returns notes for the model."""
        if len(data) > LARGEST_CHANGED:
            raise FileTooLargeError(f"{place.shown} would have {len(data):,} bytes; the limit is {LARGEST_CHANGED:,}.")
        if old and old.data == data:
            return " It had this content already."
        call.require_lease()
        staged = await off_loop(_stage, place, data, old)
        try:
            await call.intent(place.path, old.version if old else None, version_of(data))
            await off_loop(_commit, staged, place, old, call.require_lease)
        finally:
            await off_loop(staged.close)
        return _notes(old, data)

    def recover(self, call: PendingCall) -> FileSlice | None:
        """What is at the path of a logged intent now. Raises TeamError when that cannot be told."""
        if call.intent_path is None:
            return None
        with self._workspace.place(call.intent_path, str(self._workspace.root)) as place:
            return FileSlice(path=place.path, version=_current(place))


def _load(place: Place) -> Stored | None:
    try:
        return load(place)
    except OSError as error:
        raise os_fault(place.shown, error) from error


def _current(place: Place) -> str | None:
    try:
        return current_version(place)
    except OSError as error:
        raise os_fault(place.shown, error) from error


def _stage(place: Place, data: bytes, old: Stored | None) -> Staged:
    try:
        return Staged(place, data, old.status if old else None)
    except OSError as error:
        raise os_fault(place.shown, error) from error


def _commit(staged: Staged, place: Place, old: Stored | None, require_lease: Callable[[], None]) -> None:
    # The lock excludes the tools of all workers, but not a shell command: look once more, right before the change.
    if old and _current(place) != old.version:
        raise _stale(place)
    # The intent may have waited for long: between this check and the change there are only microseconds.
    require_lease()
    try:
        if old:
            staged.put()
        else:
            staged.create()
    except FileExistsError as error:
        raise _exists(place) from error
    except OSError as error:
        raise os_fault(place.shown, error) from error


def _check_version(place: Place, old: Stored | None, versions: Mapping[str, str | None]) -> None:
    seen = place.path in versions
    known = versions.get(place.path)
    if old is None:
        if known is not None:
            raise StaleVersion(
                f"{place.shown} was deleted since you read it. Read it again to confirm that, then write creates it."
            )
    elif not seen:
        raise NotObserved(f"You have not read {place.shown}. Read it first, so that you know what you change.")
    elif known is None:
        raise _exists(place)
    elif known != old.version:
        raise _stale(place)


def _stale(place: Place) -> StaleVersion:
    return StaleVersion(
        f"{place.shown} was changed by somebody else since you read it. Nothing was changed. Read it again and rebase "
        "your change on what is there now."
    )


def _exists(place: Place) -> StaleVersion:
    return StaleVersion(
        f"{place.shown} was created by somebody else. Nothing was changed. Read it, then decide what to change."
    )


def _notes(old: Stored | None, data: bytes) -> str:
    if old is None:
        return ""
    notes: list[str] = []
    if newline_style(old.data) == "crlf" and newline_style(data) == "crlf":
        notes.append("CRLF line ends are kept")
    if old.status.st_nlink > 1:
        notes.append(f"its {old.status.st_nlink - 1} other hard links keep the old content")
    return f" ({'; '.join(notes)})" if notes else ""
