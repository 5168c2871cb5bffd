"""F06 and what a replace keeps: bytes, mode, owner, attributes, links."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.checkout import file_desk, run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


# F06: bytes that are not text.

LATIN1 = bytes.fromhex("232043 6166e90a 703d350a 6e61ef76650a".replace(" ", ""))


@pytest.mark.parametrize(
    ("name", "data", "after"),
    [
        ("latin-1", LATIN1, LATIN1.replace(b"p=5", b"p=7")),
        ("late NUL", b"x" * 9000 + b"\0p=5\0", b"x" * 9000 + b"\0p=7\0"),
        ("GBK", "中文\np=5\n".encode("gbk"), "中文\np=7\n".encode("gbk")),
        ("invalid late", b"a\n" * 600_000 + b"p=5\n\xff\xfe", b"a\n" * 600_000 + b"p=7\n\xff\xfe"),
        ("cut sequence", b"p=5\n" + "€".encode()[:2], b"p=7\n" + "€".encode()[:2]),
        ("BOM and CRLF", b"\xef\xbb\xbfa\r\np=5\r\nb", b"\xef\xbb\xbfa\r\np=7\r\nb"),
    ],
)
def test_f06_an_edit_changes_only_the_matched_bytes(root: Path, name: str, data: bytes, after: bytes) -> None:
    path = root / "f"
    path.write_bytes(data)

    async def work() -> None:
        desk = file_desk(root)
        assert (await desk.run("read", path="f")).outcome == "ok"
        assert (await desk.run("edit", path="f", old_text="p=5", new_text="p=7")).outcome == "ok", name
        assert path.read_bytes() == after

    run(work())


def test_f06_a_lossy_view_is_marked_and_cannot_be_written_back(root: Path) -> None:
    path = root / "f"
    path.write_bytes(LATIN1)

    async def work() -> None:
        desk = file_desk(root)
        shown = (await desk.run("read", path="f")).content
        assert "Caf\ufffd" in shown
        assert "not valid UTF-8" in shown
        assert (await desk.fails("write", path="f", content="# Caf\ufffd\np=7\n"))[0] == "TEAM_INVALID_ARGUMENT"
        assert (await desk.fails("edit", path="f", old_text="Caf\ufffd", new_text="Cafe"))[0] == "FS_NO_MATCH"
        assert (await desk.fails("edit", path="f", old_text="p=5", new_text="\ufffd"))[0] == "TEAM_INVALID_ARGUMENT"
        assert path.read_bytes() == LATIN1
        assert (await desk.run("write", path="f", content="# Cafe\n")).outcome == "ok"

    run(work())


def test_f06_a_replacement_character_that_is_really_in_the_file_may_be_edited(root: Path) -> None:
    (root / "f").write_text("was \ufffd here\n")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        assert (await desk.run("edit", path="f", old_text="\ufffd here", new_text="\ufffd there")).outcome == "ok"
        assert (root / "f").read_text() == "was \ufffd there\n"

    run(work())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"\x7fELF\0\0", "a binary file"),
        ("text".encode("utf-16"), "UTF-16 text"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "a WebP image"),
    ],
)
def test_a_file_that_is_not_text_is_refused_by_name_and_not_observed(root: Path, data: bytes, kind: str) -> None:
    (root / "f").write_bytes(data)

    async def work() -> None:
        desk = file_desk(root)
        code, message = await desk.fails("read", path="f")
        assert (code, kind in message) == ("FS_BINARY", True), message
        assert desk.files == {}
        assert (await desk.fails("edit", path="f", old_text="t", new_text="u"))[0] == "FS_NOT_OBSERVED"

    run(work())


# What a replace keeps.


def test_a_replace_keeps_mode_owner_attributes_and_the_link_to_the_file(root: Path) -> None:
    path = root / "real"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o754)
    (root / "link").symlink_to("real")
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
        path.chmod(0o4755)
    try:
        os.setxattr(path, "user.note", b"kept")
        attributes = True
    except OSError:
        attributes = False
    before = path.stat()

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="link")
        assert (await desk.run("edit", path="link", old_text="exit 1", new_text="exit 0")).outcome == "ok"
        assert set(desk.files) == {"real"}

    run(work())
    after = path.stat()
    assert (root / "link").is_symlink()
    assert path.read_text() == "#!/bin/sh\nexit 0\n"
    assert (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid) == (
        stat.S_IMODE(before.st_mode),
        before.st_uid,
        before.st_gid,
    )
    if attributes:
        assert os.getxattr(path, "user.note") == b"kept"


def test_a_hard_link_is_broken_and_the_model_is_told(root: Path) -> None:
    (root / "f").write_text("shared")
    os.link(root / "f", root / "store")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        result = await desk.run("write", path="f", content="mine")
        assert "1 other hard links keep the old content" in result.content
        assert ((root / "f").read_text(), (root / "store").read_text()) == ("mine", "shared")

    run(work())


def test_a_whole_write_keeps_the_byte_order_mark_and_crlf_that_read_does_not_show(root: Path) -> None:
    path = root / "f"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")

    async def work() -> None:
        desk = file_desk(root)
        shown = (await desk.run("read", path="f")).content
        assert shown == "     1\tone\n     2\ttwo\n[CRLF line ends; begins with a UTF-8 byte order mark]"
        result = await desk.run("write", path="f", content="one\ntwo\nthree\n")
        assert "CRLF line ends are kept" in result.content
        assert path.read_bytes() == b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"

    run(work())


def test_writing_what_is_there_already_changes_nothing_and_logs_no_intent(root: Path) -> None:
    (root / "f").write_text("same")
    inode = (root / "f").stat().st_ino

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        assert "It had this content already" in (await desk.run("write", path="f", content="same")).content
        assert desk.intents == []
        assert (root / "f").stat().st_ino == inode

    run(work())
