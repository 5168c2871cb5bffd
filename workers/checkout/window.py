"""A window of numbered lines of a file of any size, with its version, in one pass and bounded memory."""

import codecs
import hashlib
from dataclasses import dataclass
from typing import Final

from team.model.values import clean_text

LONGEST_LINE: Final = 2000
"""Characters shown of one line."""

_LINE_BYTES: Final = 4 * LONGEST_LINE
PROBE_BYTES: Final = 8192

_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"BM": "a BMP image",
    b"%PDF-": "a PDF document",
}
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def binary_kind(start: bytes) -> str | None:
    """What a file that is not text is, judged by its first PROBE_BYTES; None when it may be text."""
    for magic, kind in _IMAGES.items():
        # Two letters alone are no proof of an image: a text may begin with them.
        if start.startswith(magic) and (len(magic) > 2 or b"\0" in start):
            return kind
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "a WebP image"
    if start.startswith(_UTF16):
        return "UTF-16 text"
    return "a binary file" if b"\0" in start else None


@dataclass(frozen=True)
class Shown:
    """The text of a window, and the version of the whole file it was taken from."""

    text: str
    version: str


class Window:
    """Feed it a file from the beginning, then take ``shown``.

    Args:
        offset: First line, counted from 1.
        limit: Most lines.
        size: Most UTF-8 bytes of output.
    """

    def __init__(self, offset: int, limit: int, size: int) -> None:
        self._offset = offset
        self._limit = limit
        self._room = size
        self._longest = min(LONGEST_LINE, size // 8)
        self._hash = hashlib.sha256()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._utf8 = True
        self._nul = False
        self._bytes = 0
        self._newlines = 0
        self._crlf = 0
        self._last = b""
        self._bom = False
        self._to_skip = offset - 1
        self._lines: list[str] = []
        self._line = bytearray()
        self._line_length = 0
        self._full = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file."""
        if not chunk:
            return
        self._hash.update(chunk)
        self._nul = self._nul or b"\0" in chunk
        if self._utf8:
            try:
                self._decoder.decode(chunk)
            except UnicodeDecodeError:
                self._utf8 = False
        self._crlf += chunk.count(b"\r\n") + (self._last == b"\r" and chunk.startswith(b"\n"))
        newlines = chunk.count(b"\n")
        self._newlines += newlines
        self._last = chunk[-1:]
        rest = chunk
        if self._bytes == 0 and chunk.startswith(codecs.BOM_UTF8):
            self._bom = True
            rest = chunk[len(codecs.BOM_UTF8) :]
        self._bytes += len(chunk)
        if self._to_skip > newlines:
            self._to_skip -= newlines
            return
        if self._to_skip:
            rest = rest.split(b"\n", self._to_skip)[-1]
            self._to_skip = 0
        self._collect(rest)

    def _collect(self, data: bytes) -> None:
        at = 0
        while not self._full:
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end
            self._line += data[at : min(stop, at + _LINE_BYTES - len(self._line))]
            self._line_length += stop - at
            if end < 0:
                return
            self._end_line()
            at = end + 1

    def _end_line(self) -> None:
        raw = bytes(self._line)
        cut = self._line_length > len(raw)
        if not cut:
            raw = raw.removesuffix(b"\r")
        # An incomplete character at the cut is left out, as the decoder waits for its rest.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=not cut)
        if cut or len(text) > self._longest:
            text = f"{text[: self._longest]}… [cut: the line has {self._line_length:,} bytes]"
        shown = clean_text(f"{self._offset + len(self._lines):>6}\t{text}\n")
        size = len(shown.encode())
        if size > self._room or len(self._lines) >= self._limit:
            self._full = True
            return
        self._room -= size
        self._lines.append(shown)
        self._line.clear()
        self._line_length = 0

    def shown(self) -> Shown:
        """The window's lines with a closing note of what is remarkable. Call it once, after the last byte."""
        total = self._newlines + (self._bytes > 0 and self._last != b"\n")
        if not self._full and self._line_length:
            self._end_line()
        if self._utf8:
            try:
                self._decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                self._utf8 = False
        version = f"sha256:{self._hash.hexdigest()}"
        return Shown("".join(self._lines) + self._note(total), version)

    def _note(self, total: int) -> str:
        if not self._bytes:
            return "[the file is empty]"
        notes: list[str] = []
        last = self._offset + len(self._lines) - 1
        if not self._lines:
            notes.append(f"no line {self._offset}: the file has {total:,} lines")
        elif self._offset > 1 or last < total:
            more = f"; read on with offset={last + 1}" if last < total else ""
            notes.append(f"lines {self._offset}-{last} of {total:,}{more}")
        if not self._utf8:
            notes.append(
                "not valid UTF-8: U+FFFD stands for bytes that cannot be shown; edit keeps those outside of its match"
            )
        if self._nul:
            notes.append("NUL bytes are shown as U+2400")
        if self._crlf:
            notes.append("CRLF line ends" if self._crlf == self._newlines else "mixed LF and CRLF line ends")
        if self._bom:
            notes.append("begins with a UTF-8 byte order mark")
        if self._last != b"\n" and last >= total:
            notes.append("no newline at the end")
        return f"[{'; '.join(notes)}]" if notes else ""
