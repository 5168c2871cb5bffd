"""B03: bounded views of output."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workers.guardian.capture import Capture, Records
from workers.guardian.protocol import Selection


def spilling(path: Path, head: int = 4, tail: int = 4, limit: int = 1000) -> Capture:
    return Capture(head, tail, lambda: os.open(path, os.O_WRONLY | os.O_CREAT), limit)


def test_output_within_the_bounds_is_whole_and_not_spilled(tmp_path: Path) -> None:
    capture = spilling(tmp_path / "spill")
    capture.feed(b"1234")
    capture.feed(b"5678")
    capture.close()
    assert capture.view() == ("12345678", None, 8, 0)
    assert not (tmp_path / "spill").exists()


def test_longer_output_keeps_head_and_tail_and_spills_all_of_it(tmp_path: Path) -> None:
    capture = spilling(tmp_path / "spill")
    for piece in (b"123", b"456", b"789", b"0ab", b"c"):
        capture.feed(piece)
    capture.close()
    assert capture.view() == ("1234", "0abc", 13, 13)
    assert (tmp_path / "spill").read_bytes() == b"1234567890abc"


@given(st.lists(st.binary(max_size=12), max_size=30), st.integers(0, 8), st.integers(0, 8))
def test_head_tail_and_count_are_those_of_the_whole(pieces: list[bytes], head: int, tail: int) -> None:
    capture = Capture(head, tail)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    view = capture.view()
    assert view.total == len(whole)
    if len(whole) <= head + tail:
        assert (view.head, view.tail) == (whole.decode("utf-8", "replace"), None)
    else:
        assert view.tail is not None
        ascii_only = whole.isascii()
        assert not ascii_only or view.head == whole[:head].decode()
        assert not ascii_only or view.tail == (whole[-tail:].decode() if tail else "")


def test_a_character_cut_at_a_bound_is_left_out_but_bad_bytes_are_marked() -> None:
    capture = Capture(4, 4)
    capture.feed("ab€€€€cd".encode())
    assert (capture.view().head, capture.view().tail) == ("ab", "cd")
    bad = Capture(3, 3)
    bad.feed(b"\xffab-------ab\xff")
    assert (bad.view().head, bad.view().tail) == ("\ufffdab", "ab\ufffd")


def test_very_many_small_pieces_take_bounded_memory() -> None:
    capture = Capture(100, 100)
    for number in range(200_000):
        capture.feed(b"%d" % (number % 10))
    view = capture.view()
    assert (view.head[:10], view.total) == ("0123456789", 200_000)
    assert view.tail == "0123456789" * 10
    assert max(len(part) for part in vars(capture).values() if isinstance(part, bytearray)) <= 200


def test_the_spill_is_bounded_and_a_failing_one_is_told(tmp_path: Path) -> None:
    capture = spilling(tmp_path / "spill", limit=20)
    capture.feed(b"x" * 100)
    capture.feed(b"y" * 100)
    capture.close()
    assert (capture.view().spilled, (tmp_path / "spill").stat().st_size) == (20, 20)

    def refuse() -> int:
        raise OSError(28, "No space left on device")

    failing = Capture(1, 1, refuse, 100)
    failing.feed(b"abc")
    failing.feed(b"def")
    assert (failing.spill_fault, failing.view()) == ("No space left on device", ("a", "f", 6, 0))


def test_records_are_chosen_by_path_counted_and_bounded() -> None:
    records = Records(Selection("\n", "\0", r"(?:[^/]+/)*[^/]*\.py", 2, 1000))
    for piece in (b"./a.py\x001:x\n./b.t", b"xt\x001:x\nbroken path\nd/c.py\x002:", b"y\n./e.py\x001:z"):
        records.feed(piece)
    records.close()
    assert records.kept == ["a.py\x001:x", "d/c.py\x002:y"]
    assert records.matched == 3


def test_an_endless_record_is_dropped_without_being_kept() -> None:
    records = Records(Selection("\n", "", None, 10, 1_000_000))
    for _ in range(100):
        records.feed(b"x" * 10_000)
    records.feed(b"\nshort\n")
    records.close()
    assert (records.kept, records.matched) == (["short"], 1)


def test_after_the_first_record_beyond_the_size_none_is_kept() -> None:
    records = Records(Selection("\0", "", None, 10, 10))
    records.feed(b"123456\x00abcdefgh\x00x\x00")
    assert (records.kept, records.matched) == (["123456"], 3)
