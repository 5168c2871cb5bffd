"""F09: containment. Every way out of the workspace is refused, and ways within it work."""

import os
import threading
from pathlib import Path

import pytest

from team.model.errors import OutsideWorkspace, TeamError
from tests.support.checkout import file_desk, open_descriptors, run
from workers.checkout.errors import FileFaultError, FileMissingError, NotAFileError
from workers.checkout.paths import Workspace

SECRET = "the secret content"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    sibling = tmp_path / "work2"
    sibling.mkdir()
    (sibling / "secret").write_text(SECRET)
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "f").write_text("inside")
    (root / "escape").symlink_to(outside)
    (root / "chain1").symlink_to("chain2")
    (root / "chain2").symlink_to("sub/../escape")
    (root / "secret-link").symlink_to(outside / "secret")
    (root / "relative-escape").symlink_to("../outside")
    (root / "proc").symlink_to("/proc/self/root")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to(outside / "new")
    (root / "in-link").symlink_to("sub")
    (root / "in-absolute").symlink_to(root / "sub")
    (root / "out-and-in").symlink_to("../work/sub")
    (root / "in-dangling").symlink_to("sub/new")
    return root


ESCAPES = [
    "escape/secret",
    "chain1/secret",
    "secret-link",
    "relative-escape/secret",
    "escape/new",
    "escape/new/deeper",
    "dangling",
    "sub/../../outside/secret",
    "escape/../outside/secret",
    "in-link/../../outside/secret",
    "../work2/secret",
    "..",
    "/etc/passwd",
    "/",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "proc/etc/passwd",
    "//etc/passwd",
]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("tool", ["read", "write", "edit"])
def test_f09_a_path_that_leads_out_is_refused_and_tells_nothing(root: Path, path: str, tool: str) -> None:
    arguments: dict[str, str] = {
        "read": {},
        "write": {"content": "x"},
        "edit": {"old_text": "secret", "new_text": "public"},
    }[tool]

    async def work() -> None:
        desk = file_desk(root)
        code, message = await desk.fails(tool, path=path, **arguments)
        assert code == "FS_OUTSIDE_WORKSPACE", (code, message)
        assert SECRET not in message
        assert desk.files == {}

    run(work())
    outside = root.parent / "outside"
    assert [entry.name for entry in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == SECRET


def test_f09_existing_and_missing_outside_files_get_the_same_answer(root: Path) -> None:
    async def work() -> None:
        desk = file_desk(root)
        there = await desk.fails("read", path="escape/secret")
        absent = await desk.fails("read", path="escape/absent")
        assert there[1].replace("secret", "x") == absent[1].replace("absent", "x")

    run(work())


def test_f09_absolute_siblings_with_a_common_prefix_are_outside(root: Path) -> None:
    workspace = Workspace(root)
    with pytest.raises(OutsideWorkspace):
        workspace.place(f"{root}2/secret", str(root))


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("sub/f", "sub/f"),
        ("./sub//f", "sub/f"),
        ("sub/../sub/f", "sub/f"),
        ("in-link/f", "sub/f"),
        ("in-absolute/f", "sub/f"),
        ("out-and-in/f", "sub/f"),
        ("../work/sub/f", "sub/f"),
        ("in-link/../sub/f", "sub/f"),
        ("in-dangling", "sub/new"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_f09_ways_within_the_workspace_lead_to_one_identity(root: Path, path: str, canonical: str) -> None:
    workspace = Workspace(root)
    for spelling in (path, f"{root}/{path}"):
        with workspace.place(spelling, str(root)) as place:
            assert place.path == canonical


def test_a_root_that_is_given_through_a_link_accepts_both_spellings(root: Path) -> None:
    alias = root.parent / "alias"
    alias.symlink_to(root)
    workspace = Workspace(alias)
    for spelling in (root, alias):
        with workspace.place(f"{spelling}/sub/f", str(alias)) as place:
            assert (place.path, place.exists) == ("sub/f", True)
    assert workspace.spelled(str(root / "sub")) == str(alias / "sub")
    assert workspace.spelled(str(root)) == str(alias)
    assert workspace.spelled("/etc") is None


def test_paths_that_cannot_be_walked_are_clear_errors(root: Path) -> None:
    workspace = Workspace(root)
    for path, kind in (
        ("loop", FileFaultError),
        ("sub/f/g", NotAFileError),
        ("sub/f/../f", NotAFileError),
        ("absent/../sub/f", FileMissingError),
        ("x" * 300, FileFaultError),
    ):
        with pytest.raises(kind):
            workspace.place(path, str(root))


def test_the_data_area_is_read_but_not_written(root: Path) -> None:
    (root / ".team").mkdir()
    (root / ".team" / "note").write_text("spilled")
    (root / "to-data").symlink_to(".team")

    async def work() -> None:
        desk = file_desk(root)
        assert "spilled" in (await desk.run("read", path=".team/note")).content
        for path in (".team/note", ".team/new", "to-data/note", "sub/../.team/note", ".team"):
            assert (await desk.fails("write", path=path, content="x"))[0] == "FS_OUTSIDE_WORKSPACE", path
        assert (await desk.fails("edit", path="to-data/note", old_text="s", new_text="t"))[0] == "FS_OUTSIDE_WORKSPACE"

    run(work())
    assert (root / ".team" / "note").read_text() == "spilled"


def test_f09_a_directory_that_is_swapped_for_a_link_during_the_walk_never_leads_out(root: Path) -> None:
    workspace = Workspace(root)
    stop = threading.Event()
    (root / "swap").mkdir()
    (root / "swap" / "secret").write_text("inside")
    (root / "swap-link").symlink_to(root.parent / "outside")

    def swap() -> None:
        while not stop.is_set():
            (root / "swap").rename(root / "swap-aside")
            (root / "swap-link").rename(root / "swap")
            (root / "swap").rename(root / "swap-link")
            (root / "swap-aside").rename(root / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[str] = set()
    try:
        for _ in range(2000):
            try:
                with workspace.place("swap/secret", str(root)) as place:
                    if not place.exists or place.missing:
                        seen.add("absent")
                        continue
                    handle = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place.directory)
                    seen.add(os.read(handle, 100).decode())
                    os.close(handle)
            except TeamError as error:
                seen.add(error.code)
    finally:
        stop.set()
        thread.join()
    assert SECRET not in seen
    assert "inside" in seen


def test_no_descriptor_is_left_open(root: Path) -> None:
    workspace = Workspace(root)
    before = open_descriptors()
    for path in [*ESCAPES, "sub/f", "loop", "a/b", "in-absolute/f", "sub/f/g", "absent/.."]:
        try:
            workspace.place(path, str(root)).close()
        except TeamError:
            continue
    assert open_descriptors() == before
