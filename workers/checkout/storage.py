"""Bytes of one file: read with their version, replaced atomically, created exclusively.

Everything happens relative to an open directory of the workspace. A replaced file is a new inode with the old one's
mode, owner and extended attributes where the worker may set them. Other hard links of the old inode keep the old
content: writing through them would change files outside of what was asked, such as a package manager's store.
"""

import hashlib
import io
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from workers.checkout.errors import FileMissingError, FileTooLargeError, NotAFileError
from workers.checkout.paths import Place, missing

PIECE: Final = 1024 * 1024
LARGEST_CHANGED: Final = 64 * 1024 * 1024
"""Bytes of the largest file that write and edit handle."""

LARGEST_READ: Final = 1024 * 1024 * 1024
"""Bytes of the largest file that read hashes to show a part of it."""

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_MODE: Final = 0o666


@dataclass(frozen=True)
class Stored:
    """A file as it was read."""

    data: bytes
    version: str
    status: os.stat_result


def version_of(data: bytes) -> str:
    """The version of a content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def open_file(place: Place, largest: int) -> io.FileIO:
    """Open the regular file at ``place``; the caller closes it.

    Raises:
        FileMissingError, NotAFileError, FileTooLargeError, OSError
    """
    if place.missing:
        raise missing(place.shown)
    try:
        handle = os.open(place.name or ".", _OPEN, dir_fd=place.directory)
    except FileNotFoundError as error:
        raise missing(place.shown) from error
    try:
        _check(place, os.fstat(handle), largest)
    except BaseException:
        os.close(handle)
        raise
    return io.FileIO(handle)


def _check(place: Place, status: os.stat_result, largest: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotAFileError(f"{place.shown} is a directory. List its files with glob.")
    if not stat.S_ISREG(status.st_mode):
        raise NotAFileError(f"{place.shown} is not a regular file (a pipe, socket or device).")
    if status.st_size > largest:
        raise FileTooLargeError(
            f"{place.shown} has {status.st_size:,} bytes; the limit is {largest:,}. Work on it with bash."
        )


def load(place: Place) -> Stored | None:
    """The whole file, or None when nothing is there.

    Raises:
        NotAFileError, FileTooLargeError, OSError
    """
    try:
        file = open_file(place, LARGEST_CHANGED)
    except FileMissingError:
        return None
    with file:
        status = os.fstat(file.fileno())
        pieces: list[bytes] = []
        size = 0
        while piece := file.read(PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST_CHANGED:
                raise FileTooLargeError(f"{place.shown} grew beyond {LARGEST_CHANGED:,} bytes while it was read.")
    data = b"".join(pieces)
    return Stored(data, version_of(data), status)


def current_version(place: Place) -> str | None:
    """The version of what is at ``place`` now, None when nothing is. Raises like ``open_file``."""
    stored = load(place)
    return stored.version if stored else None


class Staged:
    """New content beside its place, not visible yet. Close it.

    The file has no name until it is published, so a killed worker leaves nothing behind. File systems without
    nameless files (NFS, some overlays) get a hidden name instead.

    Raises:
        OSError: The content could not be written.
    """

    def __init__(self, place: Place, data: bytes, old: os.stat_result | None) -> None:
        self._place = place
        self._data = data
        self._old = old
        self._name: str | None = None
        place.make_directories()
        flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
        try:
            self._handle = os.open(".", flags, _NEW_MODE if old is None else 0o600, dir_fd=place.directory)
        except OSError:
            self._open_named()
        self._fill()

    def _open_named(self) -> None:
        name = f".{secrets.token_hex(8)}.team-tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
        self._handle = os.open(name, flags, _NEW_MODE if self._old is None else 0o600, dir_fd=self._place.directory)
        self._name = name

    def _fill(self) -> None:
        try:
            view = memoryview(self._data)
            while view:
                view = view[os.write(self._handle, view) :]
            if self._old:
                _copy_attributes(self._place, self._handle, self._old)
            os.fsync(self._handle)
        except BaseException:
            self.close()
            raise

    def create(self) -> None:
        """Publish as a new file. Raises FileExistsError when something has the name already."""
        try:
            self._link(self._place.name)
        except FileExistsError:
            raise
        except OSError:
            # No hard links here: claim the name with an empty file, then put the content over it.
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self._place.name, flags, dir_fd=self._place.directory))
            try:
                self._rename()
            except BaseException:
                os.unlink(self._place.name, dir_fd=self._place.directory)
                raise
        self._sync()

    def put(self) -> None:
        """Publish in place of the old file, atomically."""
        self._rename()
        self._sync()

    def _link(self, name: str) -> None:
        directory = self._place.directory
        if self._name:
            os.link(self._name, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        else:
            os.link(f"/proc/self/fd/{self._handle}", name, dst_dir_fd=directory, follow_symlinks=True)

    def _rename(self) -> None:
        directory = self._place.directory
        if self._name is None:
            name = f".{secrets.token_hex(8)}.team-tmp"
            try:
                self._link(name)
                self._name = name
            except OSError:
                os.close(self._handle)
                self._open_named()
                self._fill()
        assert self._name
        os.rename(self._name, self._place.name, src_dir_fd=directory, dst_dir_fd=directory)
        self._name = None

    def _sync(self) -> None:
        # The change has happened: a file system that cannot sync a directory must not make it look failed.
        with suppress(OSError):
            os.fsync(self._place.directory)

    def close(self) -> None:
        """Drop what was not published. Idempotent."""
        if self._name:
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._place.directory)
            self._name = None
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _copy_attributes(place: Place, handle: int, old: os.stat_result) -> None:
    mode = stat.S_IMODE(old.st_mode)
    new = os.fstat(handle)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except OSError:
            # Not the owner's program any more: it must not run with the wrong one's rights.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    with suppress(OSError):  # gone, not readable, or a file system without attributes
        source = os.open(place.name, _OPEN, dir_fd=place.directory)
        try:
            for name in os.listxattr(source):
                with suppress(OSError):  # one that only the system may set
                    os.setxattr(handle, name, os.getxattr(source, name))
        finally:
            os.close(source)
    os.fchmod(handle, mode)
