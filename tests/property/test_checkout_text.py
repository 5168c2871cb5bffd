"""Whatever a file holds: an edit changes the match and nothing else, and a window tells the version of all bytes."""

import hashlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from team.model.values import text_fault
from workers.checkout.errors import AmbiguousMatchError, NoMatchError
from workers.checkout.text import replace
from workers.checkout.window import Window

_pieces = st.lists(
    st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r", b"\xff", "é".encode(), b"\0", b" "]), max_size=40
)
_data = _pieces.map(b"".join)
_text = st.text(st.sampled_from("ab\n é"), min_size=1, max_size=4)


@given(before=_data, after=_data, old=_text, new=_text)
def test_bytes_outside_of_a_single_match_stay(before: bytes, after: bytes, old: str, new: str) -> None:
    data = before + old.encode() + after
    if old == new:
        return
    try:
        result = replace(data, old, new, everywhere=False)
    except AmbiguousMatchError:
        return
    crlf = new.replace("\n", "\r\n")
    assert result.data in {before + new.encode() + after, before + crlf.encode() + after}


@given(data=_data, old=_text, new=st.text(st.sampled_from("xy"), max_size=3))
def test_replace_all_equals_the_plain_replacement_where_no_line_end_is_involved(
    data: bytes, old: str, new: str
) -> None:
    if "\n" in old:
        return
    try:
        result = replace(data, old, new, everywhere=True)
    except NoMatchError:
        assert old.encode() not in data
        return
    assert result.data == data.replace(old.encode(), new.encode())


@given(
    data=_data,
    cuts=st.lists(st.integers(0, 80), max_size=5),
    offset=st.integers(1, 10),
    limit=st.integers(1, 10),
)
def test_a_window_is_the_same_however_the_file_arrives(data: bytes, cuts: list[int], offset: int, limit: int) -> None:
    whole = Window(offset, limit, 10_000)
    whole.feed(data)
    expected = whole.shown()
    pieces = Window(offset, limit, 10_000)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(edges):
        pieces.feed(data[start:end])
    assert pieces.shown() == expected
    assert expected.version == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert text_fault(expected.text) is None
    lines = data.split(b"\n")[offset - 1 : offset - 1 + limit]
    for number, line in enumerate(lines[:-1], offset):
        shown = line.removesuffix(b"\r").decode("utf-8", "replace").replace("\0", "\N{SYMBOL FOR NULL}")
        assert f"{number:>6}\t{shown}\n" in expected.text
