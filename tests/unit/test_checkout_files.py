"""The file tools of one Session and of rivals: versions, absence, bytes that were not asked to change."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from team.model.errors import StoreUnavailable, TurnFenced
from tests.support.checkout import Desk, error_of, file_desk, run
from workers.checkout import Guard, LocalTools
from workers.checkout import storage as storage_module


def version(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def leftovers(root: Path) -> list[str]:
    return [name for _, _, names in os.walk(root) for name in names if "team-tmp" in name]


# F01: whole-file writes and edits on a version that somebody else replaced.


def test_f01_a_write_and_an_edit_on_an_old_version_are_refused_until_the_file_is_read_again(root: Path) -> None:
    (root / "f").write_text("one\ntwo\n")

    async def work() -> None:
        alice, bob = file_desk(root), file_desk(root)
        for desk in (alice, bob):
            assert (await desk.run("read", path="f")).outcome == "ok"
        assert (await bob.run("write", path="f", content="one\ntwo\nthree\n")).outcome == "ok"

        code, message = await alice.fails("write", path="f", content="mine\n")
        assert code == "FS_STALE_VERSION"
        assert "Read it again" in message
        assert (await alice.fails("edit", path="f", old_text="one", new_text="1"))[0] == "FS_STALE_VERSION"
        assert (root / "f").read_text() == "one\ntwo\nthree\n"
        assert alice.intents == []

        await alice.run("read", path="f")
        assert (await alice.run("edit", path="f", old_text="one", new_text="1")).outcome == "ok"
        assert (root / "f").read_text() == "1\ntwo\nthree\n"
        assert alice.intents == [("f", version(b"one\ntwo\nthree\n"), version(b"1\ntwo\nthree\n"))]

    run(work())


def test_a_session_may_change_again_what_it_wrote_itself(root: Path) -> None:
    async def work() -> None:
        desk = file_desk(root)
        assert (
            "Created new/deep/f (1 lines, 2 bytes)"
            in (await desk.run("write", path="new/deep/f", content="a\n")).content
        )
        assert (await desk.run("edit", path="new/deep/f", old_text="a", new_text="b")).outcome == "ok"
        assert (await desk.run("write", path="new/deep/f", content="c\n")).outcome == "ok"
        assert desk.files["new/deep/f"].version == version(b"c\n")
        assert desk.intents[0] == ("new/deep/f", None, version(b"a\n"))

    run(work())


def test_an_existing_file_that_was_never_read_is_not_replaced(root: Path) -> None:
    (root / "f").write_text("theirs")

    async def work() -> None:
        desk = file_desk(root)
        assert (await desk.fails("write", path="f", content="mine"))[0] == "FS_NOT_OBSERVED"
        assert (await desk.fails("edit", path="f", old_text="theirs", new_text="mine"))[0] == "FS_NOT_OBSERVED"
        assert (root / "f").read_text() == "theirs"

    run(work())


# F02: only the content decides.


def test_f02_same_size_and_mtime_do_not_hide_a_change_and_a_touch_is_none(root: Path) -> None:
    path = root / "f"
    path.write_text("p=5\n")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        before = path.stat()
        path.write_text("p=6\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (await desk.fails("edit", path="f", old_text="p", new_text="q"))[0] == "FS_STALE_VERSION"

        await desk.run("read", path="f")
        os.utime(path, (0, 0))
        replacement = root / "other"
        replacement.write_text("p=6\n")
        replacement.rename(path)
        assert (await desk.run("edit", path="f", old_text="p=6", new_text="p=7")).outcome == "ok"
        assert path.read_text() == "p=7\n"

    run(work())


# F04: absence is an observation, and creation is exclusive.


def test_f04_a_deleted_file_is_stale_until_its_absence_was_seen(root: Path) -> None:
    path = root / "f"
    path.write_text("x")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        path.unlink()
        code, message = await desk.fails("write", path="f", content="y")
        assert code == "FS_STALE_VERSION"
        assert "deleted" in message
        assert (await desk.fails("read", path="f"))[0] == "FS_NOT_FOUND"
        assert desk.files["f"].version is None
        assert (await desk.run("write", path="f", content="y")).outcome == "ok"

    run(work())


def test_f04_of_two_creators_one_wins_and_the_other_is_told(root: Path) -> None:
    async def work() -> None:
        alice, bob = file_desk(root), file_desk(root)
        results = await asyncio.gather(
            alice.run("write", path="f", content="alice"), bob.run("write", path="f", content="bob")
        )
        assert sorted(result.outcome for result in results) == ["error", "ok"]
        loser = next(result for result in results if result.outcome == "error")
        assert error_of(loser)[0] in {"FS_STALE_VERSION", "FS_NOT_OBSERVED"}
        winner = "alice" if results[0].outcome == "ok" else "bob"
        assert (root / "f").read_text() == winner

    run(work())


def test_f04_a_shell_that_creates_the_file_inside_the_critical_section_wins(root: Path) -> None:
    async def work() -> None:
        desk = file_desk(root)

        async def shell() -> None:
            (root / "f").write_text("from the shell")

        desk.on_intent = shell
        code, message = await desk.fails("write", path="f", content="mine")
        assert (code, "created by somebody else" in message) == ("FS_STALE_VERSION", True)
        assert (root / "f").read_text() == "from the shell"
        assert leftovers(root) == []

    run(work())


def test_f05_a_shell_that_changes_the_file_inside_the_critical_section_is_not_overwritten(root: Path) -> None:
    path = root / "f"
    path.write_text("a\n")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")

        async def shell() -> None:
            path.write_text("a\nappended\n")

        desk.on_intent = shell
        assert (await desk.fails("edit", path="f", old_text="a", new_text="b"))[0] == "FS_STALE_VERSION"
        assert path.read_text() == "a\nappended\n"
        assert leftovers(root) == []

    run(work())


# The claim.


@pytest.mark.parametrize("failure", [TurnFenced("fenced"), StoreUnavailable("down"), ValueError("broken")])
def test_what_the_intent_raises_goes_on_and_the_file_stays(root: Path, failure: Exception) -> None:
    (root / "f").write_text("old")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")

        async def fail() -> None:
            raise failure

        desk.on_intent = fail
        with pytest.raises(type(failure)):
            await desk.run("write", path="f", content="new")
        assert (root / "f").read_text() == "old"
        assert leftovers(root) == []
        desk.on_intent = None
        assert (await desk.run("write", path="f", content="new")).outcome == "ok"

    run(work())


def test_without_a_valid_lease_nothing_is_changed(root: Path) -> None:
    (root / "f").write_text("old")

    async def work() -> None:
        guard = Guard()
        desk = Desk(LocalTools(root, output_bytes=10_000, guard=guard), str(root))
        assert (await desk.run("read", path="f")).outcome == "ok"
        with pytest.raises(TurnFenced):
            await desk.run("write", path="f", content="new")
        assert desk.intents == []

        guard.renewed("turn-1", 60)

        async def expire() -> None:
            guard.renewed("turn-1", -1)

        desk.on_intent = expire
        with pytest.raises(TurnFenced):
            await desk.run("write", path="f", content="new")
        assert (root / "f").read_text() == "old"

    run(work())


def test_a_call_that_is_cancelled_during_its_intent_changes_nothing(root: Path) -> None:
    (root / "f").write_text("old")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        waiting = asyncio.Event()

        async def hang() -> None:
            waiting.set()
            await asyncio.Event().wait()

        desk.on_intent = hang
        task = asyncio.create_task(desk.run("write", path="f", content="new"))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ((root / "f").read_text(), leftovers(root)) == ("old", [])
        desk.on_intent = None
        assert (await desk.run("write", path="f", content="new")).outcome == "ok"

    run(work())


# File systems with less than this one.


def test_without_nameless_files_a_hidden_name_is_used_and_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(storage_module.os, "open", refusing)
    run(_write_twice(root))


def test_without_hard_links_a_name_is_claimed_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(storage_module.os, "link", refusing)
    run(_write_twice(root))


async def _write_twice(root: Path) -> None:
    desk = file_desk(root)
    assert (await desk.run("write", path="d/f", content="one")).outcome == "ok"
    assert (await desk.run("write", path="d/f", content="two")).outcome == "ok"
    assert (await file_desk(root).fails("write", path="d/f", content="three"))[0] == "FS_NOT_OBSERVED"

    async def create() -> None:
        (root / "d" / "g").write_text("theirs")

    desk.on_intent = create
    assert (await desk.fails("write", path="d/g", content="mine"))[0] == "FS_STALE_VERSION"
    assert ((root / "d" / "f").read_text(), (root / "d" / "g").read_text()) == ("two", "theirs")
    assert leftovers(root) == []


def test_a_full_disk_is_an_error_result_and_the_file_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "f").write_text("old")

    def full(_handle: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        monkeypatch.setattr(storage_module.os, "write", full)
        code, message = await desk.fails("write", path="f", content="new")
        assert (code, "No space left" in message) == ("FS_FAILED", True)
        assert ((root / "f").read_text(), leftovers(root)) == ("old", [])

    run(work())


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_is_no_regular_file_is_refused_without_blocking(root: Path, make: Callable[[Path], None]) -> None:
    make(root / "f")

    async def work() -> None:
        desk = file_desk(root)
        for tool, arguments in (
            ("read", {}),
            ("write", {"content": "x"}),
            ("edit", {"old_text": "x", "new_text": "y"}),
        ):
            assert (await desk.fails(tool, path="f", **arguments))[0] == "FS_NOT_A_FILE", tool

    run(work())


def test_a_file_too_large_to_change_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "LARGEST_CHANGED", 10)
    (root / "f").write_text("12345678901")

    async def work() -> None:
        desk = file_desk(root)
        await desk.run("read", path="f")
        assert (await desk.fails("edit", path="f", old_text="1", new_text="2"))[0] == "FS_TOO_LARGE"

    run(work())
