"""F10: members share one git repository; its conflicts are visible, and nobody edits over what git took back."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.checkout import LEASE, Desk, error_of, guarded, run
from workers.checkout import Guard, LocalResult


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def member(desk: Desk, guard: Guard, name: str) -> Desk:
    """Another Session on the same worker."""
    guard.renewed(f"turn-{name}", LEASE)
    return Desk(desk.tools, desk.cwd, execution=f"turn-{name}", session_id=f"session-{name}")


async def repository(desk: Desk, root: Path) -> None:
    (root / "f").write_text("one\n")
    text = await desk.bash(
        "git init -q && git config user.name T && git config user.email t@example.com && git add f && "
        "git commit -qm first && git status --short"
    )
    # The data area does not show up, and no `git add -A` takes it.
    assert text == "[exit code 0]"


def test_f10_four_members_that_commit_together_fail_only_as_git_fails(root: Path) -> None:
    async def commit(desk: Desk, name: str) -> LocalResult:
        (root / f"by-{name}").write_text(name)
        arguments = json.dumps({"command": f"git add -A && git commit -qm {name}"})
        return await desk.tools.run("bash", arguments, desk)

    async def work() -> None:
        async with guarded(root) as (desk, guard):
            (root / ".team").mkdir()
            (root / ".team" / ".gitignore").write_text("*\n")
            await repository(desk, root)
            names = ("a", "b", "c", "d")
            results = await asyncio.gather(*(commit(member(desk, guard, name), name) for name in names))
            for result in results:
                assert result.outcome == "ok"
                assert "[exit code 0]" in result.content or any(
                    sign in result.content for sign in (".lock", "nothing to commit", "HEAD", "nothing added")
                ), result.content
            assert not (root / ".git" / "index.lock").exists()
            assert "[exit code 0]" in await desk.bash("git add -A; git commit -qm rest; git fsck --strict 2>&1")
            listed = await desk.bash("git ls-files")
            assert listed.splitlines()[:-1] == ["by-a", "by-b", "by-c", "by-d", "f"]

    run(work())


@pytest.mark.parametrize("command", ["git stash -q", "git checkout -q -- .", "git reset -q --hard"])
def test_f10_an_edit_after_another_members_reset_is_stale_until_it_is_read_again(root: Path, command: str) -> None:
    async def work() -> None:
        async with guarded(root) as (desk, guard):
            await repository(desk, root)
            alice, bob = member(desk, guard, "alice"), member(desk, guard, "bob")
            await alice.run("read", path="f")
            assert (await alice.run("edit", path="f", old_text="one", new_text="two")).outcome == "ok"
            await bob.bash(command)
            assert (root / "f").read_text() == "one\n"
            result = await alice.run("edit", path="f", old_text="two", new_text="three")
            code, message = error_of(result)
            assert code == "FS_STALE_VERSION"
            assert "changed by somebody else" in message
            await alice.run("read", path="f")
            assert (await alice.run("edit", path="f", old_text="one", new_text="three")).outcome == "ok"

    run(work())
