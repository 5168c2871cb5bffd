"""Matching and replacing text in bytes."""

import pytest

from team.model.errors import InvalidArgument
from workers.checkout.errors import AmbiguousMatchError, NoMatchError
from workers.checkout.text import newline_style, replace, whole_text


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        (b"a\nb\nc\n", "b", "B", b"a\nB\nc\n"),
        (b"a\r\nb\r\nc", "a\nb", "x\ny", b"x\r\ny\r\nc"),
        (b"a\r\nb\r\nc", "b", "x\ny", b"a\r\nx\r\ny\r\nc"),
        (b"a\r\nb", "b", "x\ny", b"a\r\nx\r\ny"),
        (b"a\nb", "b", "x\ny", b"a\nx\ny"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", "c", "x\ny", b"a\r\nb\nx\ny\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\r\n", "a", "x\r\ny\nz", b"x\r\ny\r\nz\r\n"),
        ("ä€😀".encode(), "€", "euro", "äeuro😀".encode()),
        (b"no newline", "newline", "", b"no "),
        (b"\xef\xbb\xbfone\n", "one", "two", b"\xef\xbb\xbftwo\n"),
    ],
)
def test_one_match_is_replaced_in_the_line_ends_of_its_place(data: bytes, old: str, new: str, after: bytes) -> None:
    assert replace(data, old, new, everywhere=False).data == after


def test_more_than_one_match_needs_replace_all() -> None:
    data = b"x = 1\ny = 1\nx = 1\n"
    with pytest.raises(AmbiguousMatchError, match=r"occurs 2 times \(lines 1, 3\)"):
        replace(data, "x = 1", "x = 2", everywhere=False)
    result = replace(data, "x = 1", "x = 2", everywhere=True)
    assert (result.data, result.lines) == (b"x = 2\ny = 1\nx = 2\n", (1, 3))


def test_an_overlap_is_ambiguous_and_replace_all_takes_the_leftmost() -> None:
    with pytest.raises(AmbiguousMatchError):
        replace(b"aaa", "aa", "b", everywhere=False)
    assert replace(b"aaa", "aa", "b", everywhere=True).data == b"ba"


def test_replace_all_finds_both_kinds_of_line_ends_and_keeps_each() -> None:
    data = b"a\r\nb\r\n-\na\nb\n"
    assert replace(data, "a\nb", "x\ny", everywhere=True).data == b"x\r\ny\r\n-\nx\ny\n"


def test_a_count_beyond_reason_is_not_counted_to_its_end() -> None:
    with pytest.raises(AmbiguousMatchError, match="at least 1000 times"):
        replace(b"a" * 1_000_000, "a", "b", everywhere=False)


def test_a_match_that_differs_in_white_space_is_shown_with_its_lines() -> None:
    data = b"def f():\n    if x:\n        return 1\n"
    with pytest.raises(NoMatchError, match="only in white space") as caught:
        replace(data, "if x:\n    return 1", "pass", everywhere=False)
    assert "     2\t    if x:\n     3\t        return 1" in caught.value.message


def test_a_near_match_is_shown_and_a_far_one_is_not() -> None:
    data = b"first\nthe quick brown fox jumps\nlast\n"
    with pytest.raises(NoMatchError, match="nearest") as caught:
        replace(data, "the quick brown fix jumps", "x", everywhere=False)
    assert "     2\tthe quick brown fox jumps" in caught.value.message
    with pytest.raises(NoMatchError, match="Nothing in it comes near"):
        replace(data, "0123456789", "x", everywhere=False)


def test_replacing_text_by_itself_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        replace(b"a", "a", "a", everywhere=False)


def test_a_whole_text_takes_over_mark_and_line_ends_only_where_all_lines_agree() -> None:
    assert whole_text("a\nb\n", None) == b"a\nb\n"
    assert whole_text("a\nb\n", b"x\r\ny\r\n") == b"a\r\nb\r\n"
    assert whole_text("a\nb\n", b"x\r\ny\n") == b"a\nb\n"
    assert whole_text("a\r\nb\n", b"x\r\n") == b"a\r\nb\r\n"
    assert whole_text("a", b"\xef\xbb\xbfx") == b"\xef\xbb\xbfa"
    assert whole_text("\ufeffa", b"\xef\xbb\xbfx") == b"\xef\xbb\xbfa"


@pytest.mark.parametrize(
    ("data", "style"), [(b"a", "none"), (b"a\nb\n", "lf"), (b"a\r\n", "crlf"), (b"a\r\nb\n", "mixed")]
)
def test_newline_styles(data: bytes, style: str) -> None:
    assert newline_style(data) == style
