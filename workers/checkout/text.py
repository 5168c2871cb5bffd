"""Text of files as bytes: matching, replacing and describing it without touching what was not asked for."""

import codecs
import difflib
import re
from dataclasses import dataclass
from typing import Final, Literal

from team.model.errors import InvalidArgument
from team.model.values import REPLACEMENT
from workers.checkout.errors import AmbiguousMatchError, NoMatchError

NewlineStyle = Literal["lf", "crlf", "mixed", "none"]

_BARE_NEWLINE: Final = re.compile(rb"(?<!\r)\n")
_MOST_COUNTED: Final = 1000
_COMPARED_LINES: Final = 5_000
_COMPARED_LENGTH: Final = 300
_SHOWN_LENGTH: Final = 200
_NEAR: Final = 0.6


@dataclass(frozen=True)
class Replacement:
    """A file's new bytes, and the line numbers at which text was replaced."""

    data: bytes
    lines: tuple[int, ...]


@dataclass(frozen=True)
class _Match:
    start: int
    end: int
    crlf: bool


def newline_style(data: bytes) -> NewlineStyle:
    """How the lines of ``data`` end."""
    newlines, crlf = data.count(b"\n"), data.count(b"\r\n")
    if not newlines:
        return "none"
    return "lf" if not crlf else "crlf" if crlf == newlines else "mixed"


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def whole_text(content: str, old: bytes | None) -> bytes:
    """The bytes of a whole new content.

    When it replaces ``old``, a byte order mark and CRLF line ends of all lines are kept: ``read`` does not show them.

    Raises:
        InvalidArgument: ``content`` holds U+FFFD where ``old`` holds bytes that are not UTF-8: it would destroy them.
    """
    data = content.encode()
    if old is None:
        return data
    _refuse_replacement(content, old, "content")
    if newline_style(old) == "crlf":
        data = _BARE_NEWLINE.sub(b"\r\n", data)
    if old.startswith(codecs.BOM_UTF8) and not data.startswith(codecs.BOM_UTF8):
        data = codecs.BOM_UTF8 + data
    return data


def replace(data: bytes, old_text: str, new_text: str, *, everywhere: bool) -> Replacement:
    r"""Replace ``old_text`` in ``data``; every byte outside the matches stays.

    A newline in ``old_text`` also matches CRLF; then, and where a match without newline stands in a line that ends
    in CRLF, newlines of ``new_text`` become CRLF.

    Raises:
        NoMatchError: ``old_text`` does not occur; the text shows what comes near.
        AmbiguousMatchError: It occurs more than once and ``everywhere`` is not set.
        InvalidArgument: ``new_text`` equals ``old_text``, or holds U+FFFD where the file is not UTF-8.
    """
    if old_text == new_text:
        raise InvalidArgument("new_text equals old_text: there is nothing to change.")
    _refuse_replacement(new_text, data, "new_text")
    matches = _matches(data, old_text.encode(), most=None if everywhere else _MOST_COUNTED)
    if not matches:
        raise NoMatchError(_no_match(data, old_text))
    if len(matches) > 1 and not everywhere:
        lines = ", ".join(str(_line(data, match.start)) for match in matches[:5])
        count = f"at least {_MOST_COUNTED}" if len(matches) >= _MOST_COUNTED else str(len(matches))
        raise AmbiguousMatchError(
            f"old_text occurs {count} times (lines {lines}{', …' if len(matches) > 5 else ''}). Add surrounding lines "
            "to make it unique, or set replace_all. Nothing was changed."
        )
    pieces: list[bytes] = []
    lines_changed: list[int] = []
    at = 0
    line = 1
    new = new_text.encode()
    for match in matches:
        if match.start < at:
            continue  # overlaps the one before, which is replaced
        line += data.count(b"\n", at, match.start)
        lines_changed.append(line)
        line += data.count(b"\n", match.start, match.end)
        pieces += [data[at : match.start], _BARE_NEWLINE.sub(b"\r\n", new) if match.crlf else new]
        at = match.end
    pieces.append(data[at:])
    return Replacement(b"".join(pieces), tuple(lines_changed))


def _refuse_replacement(text: str, data: bytes, parameter: str) -> None:
    if REPLACEMENT in text and not is_utf8(data):
        raise InvalidArgument(
            f"{parameter} holds U+FFFD, which stood for bytes of this file that are not UTF-8. Writing it would "
            "destroy them: edit a span without it, or convert the file with bash first. Nothing was changed."
        )


def _matches(data: bytes, old: bytes, most: int | None) -> list[_Match]:
    """Every occurrence in order, overlapping ones too: an overlap is as ambiguous as a second place."""
    forms = [(old, False)]
    if b"\n" in old:
        crlf = _BARE_NEWLINE.sub(b"\r\n", old)
        if crlf != old:
            forms.append((crlf, True))
    found: list[_Match] = []
    for form, is_crlf in forms:
        at = data.find(form)
        while at >= 0 and (most is None or len(found) < most):
            ends_crlf = is_crlf or (b"\n" not in form and _line_ends_crlf(data, at))
            found.append(_Match(at, at + len(form), ends_crlf))
            at = data.find(form, at + (len(form) if most is None else 1))
    return sorted(found, key=lambda match: match.start)


def _line_ends_crlf(data: bytes, at: int) -> bool:
    end = data.find(b"\n", at)
    if end < 0:
        end = data.rfind(b"\n", 0, at)
    return end > 0 and data[end - 1 : end] == b"\r"


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1


def _no_match(data: bytes, old_text: str) -> str:
    start = "old_text does not occur in the file; nothing was changed."
    if REPLACEMENT in old_text:
        return f"{start} It holds U+FFFD, which stands for bytes that are not UTF-8: choose a span without them."
    lines = data.decode("utf-8", "replace").split("\n")
    wanted = old_text.strip("\n").split("\n") or [old_text]
    trimmed = [line.strip() for line in wanted]
    stripped = [line.strip() for line in lines]
    for number in range(len(lines) - len(trimmed) + 1):
        if stripped[number] == trimmed[0] and stripped[number : number + len(trimmed)] == trimmed:
            there = _shown(lines, number, len(trimmed))
            return f"{start} It differs only in white space from this, which is there:\n{there}"
    anchor = max(trimmed, key=len)[:_COMPARED_LENGTH]
    best, best_ratio = -1, _NEAR
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(anchor)
    for number, line in enumerate(stripped[:_COMPARED_LINES]):
        matcher.set_seq1(line[:_COMPARED_LENGTH])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = number, ratio
    if best < 0:
        return f"{start} Nothing in it comes near: read the file again."
    first = max(0, best - trimmed.index(max(trimmed, key=len)))
    return f"{start} The nearest text is:\n{_shown(lines, first, len(trimmed))}"


def _shown(lines: list[str], first: int, count: int) -> str:
    last = min(len(lines), first + min(count, 10))
    return "\n".join(f"{number + 1:>6}\t{lines[number][:_SHOWN_LENGTH]}" for number in range(first, last))
