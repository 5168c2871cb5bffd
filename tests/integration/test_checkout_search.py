"""``glob`` and ``grep`` on a real ripgrep: what is found, what is left out, and what is an error."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.checkout import Desk, guarded, run, workspace_processes
from tests.support.waiting import wait_until_async
from workers.checkout import search as search_module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("needle outside\n")
    root = tmp_path / "work"
    files = {
        "app.py": "import os\nneedle = 1\n",
        "src/main.py": "def main():\n    return needle\n",
        "src/deep/util.ts": "const Needle = 2\n",
        "src/crlf.txt": "first\r\nneedle\r\n",
        "docs/read me.md": "the needle: here\n",
        ".hidden/x.py": "needle\n",
        "node_modules/pkg/index.py": "needle\n",
        "debug.log": "needle\n",
        ".gitignore": "node_modules/\n*.log\n",
    }
    for number, (name, content) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    (root / ".git").mkdir()
    (root / "binary.dat").write_bytes(b"needle\0\0needle")
    (root / "link-out").symlink_to(outside)
    (root / "link-in.py").symlink_to("app.py")
    (root / ".team").mkdir()
    (root / ".team" / "note.py").write_text("needle\n")
    return root


async def glob(desk: Desk, **arguments: object) -> list[str]:
    result = await desk.run("glob", **arguments)
    assert result.outcome == "ok", result
    return result.content.split("\n")


async def grep(desk: Desk, **arguments: object) -> list[str]:
    result = await desk.run("grep", **arguments)
    assert result.outcome == "ok", result
    return result.content.split("\n")


def test_glob_lists_newest_first_without_ignored_hidden_and_linked_files(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            assert await glob(desk, pattern="**/*.py") == ["src/main.py", "app.py"]
            assert await glob(desk, pattern="**/*.{ts,md}") == ["docs/read me.md", "src/deep/util.ts"]
            assert await glob(desk, pattern="*.py", path="src") == ["src/main.py"]
            assert await glob(desk, pattern="src/**") == ["src/crlf.txt", "src/deep/util.ts", "src/main.py"]
            everything = await glob(desk, pattern="**")
            assert sorted(everything) == [
                *("app.py", "binary.dat", "docs/read me.md"),
                *("src/crlf.txt", "src/deep/util.ts", "src/main.py"),
            ]
            assert await glob(desk, pattern="**/*.log") == [f"No files match **/*.log in {root}."]
            assert await glob(desk, pattern="*.ts") == [
                f"No files match *.ts in {root}. To search below it use '**/*.ts'."
            ]

    run(work())


def test_names_are_relative_to_the_sessions_directory_where_that_is_possible(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            desk.cwd = f"{root}/src"
            assert await glob(desk, pattern="**/*.ts") == ["deep/util.ts"]
            assert await glob(desk, pattern="*.md", path="../docs") == [f"{root}/docs/read me.md"]
            assert await glob(desk, pattern="*.py", path=str(root)) == [f"{root}/app.py"]
            assert await grep(desk, pattern="needle", path="main.py") == ["main.py:2:    return needle"]
            assert await grep(desk, pattern="Needle", path="deep") == ["deep/util.ts:1:const Needle = 2"]
            assert (await desk.run("read", path=f"{root}/docs/read me.md")).outcome == "ok"

    run(work())


def test_grep_shows_lines_in_path_order_and_filters_names(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            assert await grep(desk, pattern="needle") == [
                "app.py:2:needle = 1",
                "docs/read me.md:1:the needle: here",
                "src/crlf.txt:2:needle",
                "src/main.py:2:    return needle",
            ]
            assert await grep(desk, pattern="needle", glob="*.py") == [
                "app.py:2:needle = 1",
                "src/main.py:2:    return needle",
            ]
            assert await grep(desk, pattern="needle", glob="src/**/*.py") == ["src/main.py:2:    return needle"]
            assert await grep(desk, pattern="needle$", glob="*.txt") == ["src/crlf.txt:2:needle"]
            assert await grep(desk, pattern="NEEDLE", ignore_case=True, glob="*.ts") == [
                "src/deep/util.ts:1:const Needle = 2"
            ]
            assert await grep(desk, pattern="needle", files_only=True) == [
                *("app.py", "docs/read me.md", "src/crlf.txt", "src/main.py"),
            ]
            assert await grep(desk, pattern="needle", files_only=True, path="app.py") == ["app.py"]
            assert await grep(desk, pattern="needle", files_only=True, glob="src/*") == ["src/crlf.txt", "src/main.py"]
            assert await grep(desk, pattern="absent") == [f"No matches for absent in {root}."]
            assert await grep(desk, pattern="-needle", path="app.py") == ["No matches for -needle in app.py."]
            assert await grep(desk, pattern="needle", path=".team/note.py") == [".team/note.py:1:needle"]
            assert await grep(desk, pattern="needle", path="link-in.py") == ["app.py:2:needle = 1"]

    run(work())


@pytest.mark.parametrize(
    "path", ["link-out", "link-out/secret.py", "..", "/etc", "/proc/self/environ", "/proc/self/root/etc"]
)
def test_f09_a_search_does_not_leave_the_workspace(root: Path, path: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            assert (await desk.fails("grep", pattern="needle", path=path))[0] == "FS_OUTSIDE_WORKSPACE"
            assert (await desk.fails("glob", pattern="*", path=path))[0] == "FS_OUTSIDE_WORKSPACE"

    run(work())


def test_errors_name_what_is_wrong(root: Path) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, _):
            code, message = await desk.fails("grep", pattern="(")
            assert code == "TEAM_INVALID_ARGUMENT"
            assert message.startswith("regex parse error:")
            assert "unclosed group" in message
            assert (await desk.fails("grep", pattern="x", path="app.py/y"))[0] == "FS_NOT_A_FILE"
            assert (await desk.fails("grep", pattern="x", path="absent"))[0] == "FS_NOT_FOUND"
            assert (await desk.fails("glob", pattern="*", path="app.py"))[0] == "FS_NOT_A_FILE"
            assert (await desk.fails("grep", pattern="x", glob="{a"))[0] == "TEAM_INVALID_ARGUMENT"

    run(work())


def test_results_are_bounded_and_counted(root: Path) -> None:
    many = root / "many"
    many.mkdir()
    for number in range(1500):
        (many / f"f{number:04}.txt").write_text("needle " + "x" * 3000 + "\n")

    async def work() -> None:
        async with guarded(root, output_bytes=5000) as (desk, _):
            result = await desk.run("grep", pattern="needle", path="many")
            assert len(result.content.encode()) <= 5000
            assert "of 1,500 matching lines; narrow the pattern" in result.content
            assert result.content.startswith("many/f0000.txt:1:needle xxx")
            listed = await desk.run("glob", pattern="many/*")
            assert len(listed.content.encode()) <= 5000
            assert "of 1,500 files; narrow the pattern" in listed.content

    run(work())


def test_a_line_without_end_does_not_fill_memory(root: Path) -> None:
    (root / "long.txt").write_bytes(b"needle" + b"y" * 20_000_000)

    async def work() -> None:
        async with guarded(root, output_bytes=5000) as (desk, _):
            (line,) = await grep(desk, pattern="needle", path="long.txt")
            assert line.startswith("long.txt:1:needleyyy")
            assert len(line) < 1000

    run(work())


def slow_ripgrep(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds one line and then goes on for ever."""
    slow = root.parent / "rg"
    slow.write_text("#!/bin/sh\nprintf 'a.txt\\0001:found\\n'\ntouch ready\nsleep 300\n")
    slow.chmod(0o755)
    monkeypatch.setattr(search_module, "find_ripgrep", lambda: str(slow))


def test_a_cancelled_search_leaves_no_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_ripgrep(root, monkeypatch)

    async def work() -> None:
        async with guarded(root) as (desk, _):
            task = asyncio.create_task(desk.run("grep", pattern="found"))
            await wait_until_async(lambda: _exists(root / "ready"), "the search to run")
            assert workspace_processes(root) != []
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert workspace_processes(root) == []

    run(work())


def test_a_search_that_takes_too_long_says_that_it_is_not_complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_ripgrep(root, monkeypatch)
    monkeypatch.setattr(search_module, "TIMEOUT_SECONDS", 0.5)

    async def work() -> None:
        async with guarded(root) as (desk, _):
            lines = await grep(desk, pattern="found")
            assert lines == [
                "a.txt:1:found",
                "[the search was stopped after 0.5 s and is not complete: narrow the path]",
            ]
            assert workspace_processes(root) == []

    run(work())


async def _exists(path: Path) -> bool:
    return path.exists()
