"""B03 and the text of a command's result: output, exit code, directory."""

import asyncio
from pathlib import Path

import psutil
import pytest

from team.model.values import text_fault
from tests.support.checkout import guarded, run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    (path / "sub").mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo out; echo err >&2", "out\nerr\n[exit code 0]"),
        ("printf 'no newline'; exit 3", "no newline\n[exit code 3]"),
        ("true", "[exit code 0]"),
        ("kill -9 $$", "[ended by signal 9]"),
        ("cat; echo 'empty input'", "empty input\n[exit code 0]"),
        ("absent-command", "bash: line 1: absent-command: command not found\n[exit code 127]"),
        ("echo one\nabsent-command", "one\nbash: line 2: absent-command: command not found\n[exit code 127]"),
        ("set -x; echo traced", "+ echo traced\ntraced\n[exit code 0]"),
        ("set -e; false; echo never", "[exit code 1]"),
        ("cat <<EOF\nhere\nEOF", "here\n[exit code 0]"),
        ("# only a comment", "[exit code 0]"),
        ("exec echo replaced", "replaced\n[exit code 0]"),
        ("printf 'a\\0b\\xff'", "a␀b\ufffd\n[exit code 0]"),
        ("trap 'echo bye' EXIT; echo hi", "hi\nbye\n[exit code 0]"),
    ],
)
def test_the_result_holds_output_and_exit_code(root: Path, command: str, text: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            assert await desk.bash(command) == text

    run(work())


def test_b03_endless_and_huge_output_is_cut_in_bounded_memory(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, output_bytes=4000) as (desk, guard):
            await desk.bash("true")
            own = psutil.Process()
            before = own.memory_info().rss
            peak = 0

            async def watch() -> None:
                nonlocal peak
                while True:
                    for process in psutil.Process(guard.pid).children():
                        try:
                            peak = max(peak, process.memory_info().rss)
                        except psutil.NoSuchProcess:
                            continue
                    await asyncio.sleep(0.02)

            watcher = asyncio.create_task(watch())
            single = await desk.bash("head -c 300M /dev/zero; echo end")
            endless = await desk.bash("yes", timeout_ms=1000)
            both = await desk.bash("(head -c 5M /dev/urandom >&2) & head -c 5M /dev/urandom; wait")
            watcher.cancel()
            for text in (single, endless, both):
                assert len(text.encode()) <= 4000 * 3
                assert text_fault(text) is None
            assert "of 314,572,804 bytes left out" in single
            assert single.endswith("end\n[exit code 0]")
            assert "timed out after 1,000 ms" in endless
            assert "of 10,485,760 bytes left out" in both
            assert own.memory_info().rss - before < 30_000_000
            assert 0 < peak < 60_000_000

    run(work())


MANY = "python3 -c 'import os; [os.write(1, b\"x\") for _ in range(1_000_000)]'"


def test_b03_a_million_one_byte_writes_are_counted_and_kept_in_bounded_memory(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, output_bytes=2000) as (desk, _):
            text = await desk.bash(MANY, timeout_ms=100_000)
            assert "of 1,000,000 bytes left out" in text
            assert text.endswith("x\n[exit code 0]")
            assert (root / ".team" / "spill" / "turn-1" / f"{desk.call_id}.txt").stat().st_size == 1_000_000

    run(work())


def test_b03_characters_cut_at_the_limit_and_terminal_codes_stay_valid_text(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, output_bytes=2000) as (desk, _):
            for shift in range(4):
                text = await desk.bash(f'python3 -c \'print("a" * {shift} + "\U0001f600" * 2000)\'')
                assert text_fault(text) is None
                assert "\ufffd" not in text
            coloured = await desk.bash("printf '\\033[31mred\\033[0m\\000\\377\\n'")
            assert text_fault(coloured) is None
            assert "red" in coloured

    run(work())


def test_b03_what_is_cut_is_kept_whole_in_a_file_that_read_shows(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, output_bytes=2000) as (desk, _):
            text = await desk.bash("seq 1 5000")
            assert text.startswith("1\n2\n3\n")
            assert text.endswith("4999\n5000\n[exit code 0]")
            assert len(text.encode()) <= 2000
            path = root / ".team" / "spill" / "turn-1" / f"{desk.call_id}.txt"
            assert f"the whole output: {path} …]" in text
            assert path.read_text() == "".join(f"{number}\n" for number in range(1, 5001))
            shown = await desk.run("read", path=str(path), offset=2500, limit=1)
            assert "  2500\t2500" in shown.content

    run(work())


def test_a_spill_does_not_follow_a_link_that_a_command_put_in_its_way(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / ".team").mkdir()
    (root / ".team" / "spill").symlink_to(outside)

    async def work() -> None:
        async with guarded(root, output_bytes=2000) as (desk, _):
            text = await desk.bash("seq 1 5000")
            assert "could not be kept" in text
            assert list(outside.iterdir()) == []

    run(work())


def test_a_change_of_directory_moves_the_session_and_only_within_the_workspace(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            assert f"your directory is now {root}/sub" in await desk.bash("cd sub && mkdir deeper")
            assert desk.cwd == f"{root}/sub"
            assert await desk.bash("pwd") == f"{root}/sub\n[exit code 0]"
            assert (await desk.run("write", path="f", content="x")).outcome == "ok"
            assert (root / "sub" / "f").exists()
            for command in ("cd deeper; exit 4", "cd deeper; false", "set -x; cd deeper"):
                await desk.bash(command)
                assert desk.cwd == f"{root}/sub/deeper", command
                await desk.bash("cd ..")
            for command in ("(cd deeper)", "cd deeper; kill -9 $$", "cd deeper; exec true", "cd deeper & wait"):
                await desk.bash(command)
                assert desk.cwd == f"{root}/sub", command
            assert f"outside of the workspace; your directory stays {root}/sub" in await desk.bash("cd /")
            assert f"outside of the workspace; your directory stays {root}/sub" in await desk.bash("cd ../..")
            assert "is gone" in await desk.bash("cd deeper && rmdir ../deeper")
            assert "is not UTF-8" in await desk.bash("mkdir $'\\xff' && cd $'\\xff'")
            assert desk.cwd == f"{root}/sub"
            await desk.bash("mkdir $'line\\nbreak' && cd $'line\\nbreak'")
            assert desk.cwd == f"{root}/sub/line\nbreak"

    run(work())


def test_a_directory_that_is_gone_is_a_clear_error_and_the_session_moves_to_the_nearest(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            desk.cwd = f"{root}/sub/a/b"
            code, message = await desk.fails("bash", command="touch ran")
            assert code == "FS_NOT_FOUND"
            assert f"Your directory is now {root}/sub" in message
            assert desk.cwd == f"{root}/sub"
            assert await desk.bash("pwd") == f"{root}/sub\n[exit code 0]"

    run(work())


def test_a_link_that_leads_out_is_no_start_directory(root: Path) -> None:
    (root / "out").symlink_to("/tmp")

    async def work() -> None:
        async with guarded(root) as (desk, _):
            desk.cwd = f"{root}/out"
            assert (await desk.fails("bash", command="touch ran"))[0] == "FS_OUTSIDE_WORKSPACE"

    run(work())


def test_f10_git_works_and_its_failures_are_those_of_a_command(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            await desk.bash("git init -q . && git config user.name T && git config user.email t@example.com")
            (root / "f").write_text("one\n")
            assert "[exit code 0]" in await desk.bash("git add f && git commit -qm first")
            await desk.run("read", path="f")
            await desk.run("edit", path="f", old_text="one", new_text="two")
            (root / ".git" / "index.lock").touch()
            text = await desk.bash("git add f")
            assert "index.lock" in text
            assert "[exit code 128]" in text
            (root / ".git" / "index.lock").unlink()
            await desk.bash("git checkout -q -- f")
            code, message = await desk.fails("edit", path="f", old_text="two", new_text="three")
            assert (code, "changed by somebody else" in message) == ("FS_STALE_VERSION", True)

    run(work())
