"""Windows of files: numbers, bounds and remarks."""

from workers.checkout.window import LONGEST_LINE, Window, binary_kind


def shown(data: bytes, offset: int = 1, limit: int = 2000, size: int = 30_000, chunk: int = 1_000_000) -> str:
    window = Window(offset, limit, size)
    for at in range(0, len(data), chunk):
        window.feed(data[at : at + chunk])
    return window.shown().text


def test_a_short_file_is_shown_whole_without_remark() -> None:
    assert shown(b"one\ntwo\n") == "     1\tone\n     2\ttwo\n"


def test_an_empty_file_says_so() -> None:
    assert shown(b"") == "[the file is empty]"


def test_a_window_in_the_middle_says_where_it_is_and_how_to_go_on() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1, 101))
    assert shown(data, 50, 2) == "    50\tline 50\n    51\tline 51\n[lines 50-51 of 100; read on with offset=52]"
    assert shown(data, 100, 2) == "   100\tline 100\n[lines 100-100 of 100]"
    assert shown(data, 102, 2) == "[no line 102: the file has 100 lines]"


def test_a_missing_final_newline_is_remarked_where_the_end_is_shown() -> None:
    assert shown(b"a\nb") == "     1\ta\n     2\tb\n[no newline at the end]"
    assert shown(b"a\nb", 1, 1) == "     1\ta\n[lines 1-1 of 2; read on with offset=2]"


def test_the_output_is_bounded_in_bytes_and_says_where_to_read_on() -> None:
    text = shown("€".encode() * 50 + b"\n" + b"x\n" * 5000, size=1000)
    assert len(text.encode()) < 1200
    assert "read on with offset=" in text


def test_one_huge_line_is_cut_at_a_whole_character_in_bounded_memory() -> None:
    data = b"a" + "€".encode() * 3_000_000
    text = shown(data, chunk=65_537)
    assert len(text) < LONGEST_LINE + 200
    assert "\ufffd" not in text
    assert f"[cut: the line has {len(data):,} bytes]" in text


def test_the_smallest_output_limit_still_shows_a_line() -> None:
    assert shown(b"x" * 100_000, size=1000).startswith("     1\tx")


def test_a_character_across_two_chunks_is_no_fault() -> None:
    assert shown("é\n".encode(), chunk=1) == "     1\té\n"


def test_kinds_of_files_that_are_no_text() -> None:
    assert binary_kind(b"BMW is a brand\n") is None
    assert binary_kind(b"BM\0\0") == "a BMP image"
    assert binary_kind(b"%PDF-1.7") == "a PDF document"
    assert binary_kind(b"\xfe\xff\0a") == "UTF-16 text"
    assert binary_kind(b"plain") is None
