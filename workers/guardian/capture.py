"""Bounded views of a command's output: constant memory and linear time, whatever it prints."""

import os
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from workers.guardian.protocol import Selection

_LONGEST_RECORD: Final = 64 * 1024


class View(NamedTuple):
    """``head`` is everything unless ``tail`` is set."""

    head: str
    tail: str | None
    total: int
    spilled: int


class Capture:
    """Keeps the first ``head`` and the last ``tail`` bytes, and spills what is longer.

    Args:
        head: Bytes kept of the beginning.
        tail: Bytes kept of the end.
        open_spill: Opens the spill file when it is needed; it may raise OSError, then nothing is spilled.
        spill_bytes: Largest size of the spill file.
    """

    def __init__(self, head: int, tail: int, open_spill: Callable[[], int] | None = None, spill_bytes: int = 0) -> None:
        self._head_bytes = head
        self._tail_bytes = tail
        self._open_spill = open_spill
        self._spill_bytes = spill_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._spill: int | None = None
        self.total = 0
        self.spilled = 0
        self.spill_fault = ""

    def spill_at_once(self) -> None:
        """Open the spill file now: from here on all output goes to it as it comes, however short it stays."""
        self._write_spill(b"")

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        if self._spill is not None or self.total + len(data) > self._head_bytes + self._tail_bytes:
            self._write_spill(data)
        self.total += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_bytes :] if self._tail_bytes else b""
        # Trimmed at twice the bound, so that small pieces do not move the buffer each time.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def _write_spill(self, data: bytes) -> None:
        try:
            if self._spill is None:
                if self._open_spill is None:
                    return
                opener, self._open_spill = self._open_spill, None
                self._spill = opener()
                # Nothing was left out so far: head and tail are the output up to here.
                data = bytes(self._head) + bytes(self._tail) + data
            view = memoryview(data)[: max(0, self._spill_bytes - self.spilled)]
            while view:
                written = os.write(self._spill, view)
                self.spilled += written
                view = view[written:]
        except OSError as error:
            self.spill_fault = error.strerror or str(error)
            self.close()

    def close(self) -> None:
        """Close the spill file. Idempotent."""
        if self._spill is not None:
            os.close(self._spill)
        self._spill, self._open_spill = None, None

    def view(self) -> View:
        """The output so far. Bytes that are not UTF-8 become U+FFFD; a character cut at a bound is left out."""
        if self.total <= self._head_bytes + self._tail_bytes:
            return View(bytes(self._head + self._tail).decode("utf-8", "replace"), None, self.total, self.spilled)
        tail = bytes(self._tail[len(self._tail) - self._tail_bytes :]) if self._tail_bytes else b""
        return View(
            _without_cut_end(bytes(self._head)).decode("utf-8", "replace"),
            _without_cut_start(tail).decode("utf-8", "replace"),
            self.total,
            self.spilled,
        )


def _without_cut_end(data: bytes) -> bytes:
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if needed > back else data
        if byte < 0x80:
            break
    return data


def _without_cut_start(data: bytes) -> bytes:
    skip = 0
    while skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return data[skip:]


class Records:
    """Keeps the first records whose path is wanted, and counts them all."""

    def __init__(self, selection: Selection) -> None:
        self._separator = selection.separator.encode()
        self._path_end = selection.path_end.encode()
        self._pattern = re.compile(os.fsencode(selection.pattern)) if selection.pattern is not None else None
        self._room = selection.size
        self._most = selection.records
        self._rest = b""
        self._skipping = False
        self.kept: list[str] = []
        self.matched = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        *whole, rest = (self._rest + data).split(self._separator)
        for record in whole:
            if self._skipping:
                self._skipping = False
            else:
                self._take(record)
        # A record beyond any path or cut line is no record: drop it up to its end.
        if len(rest) > _LONGEST_RECORD:
            self._skipping, rest = True, b""
        self._rest = rest

    def close(self) -> None:
        """Take a last record without separator. Idempotent."""
        if self._rest and not self._skipping:
            self._take(self._rest)
        self._rest = b""

    def _take(self, record: bytes) -> None:
        path, found, _ = record.partition(self._path_end) if self._path_end else (record, b"", b"")
        if not path or (self._path_end and not found):
            return  # not a record: the first line of a path that holds a line break
        if self._pattern and not self._pattern.fullmatch(path.removeprefix(b"./")):
            return
        self.matched += 1
        if len(self.kept) < self._most and len(record) <= self._room:
            self._room -= len(record)
            self.kept.append(record.removeprefix(b"./").decode("utf-8", "replace"))
        else:
            self._room = 0
