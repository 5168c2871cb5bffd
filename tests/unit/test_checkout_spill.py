"""Spilled output is bounded over all turns."""

import os
from pathlib import Path

from workers.checkout.paths import Workspace
from workers.checkout.spill import prune_spill


def test_the_oldest_turns_go_first_and_the_current_one_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_bytes(b"x" * 1000)
    root = tmp_path / "work"
    spill = root / ".team" / "spill"
    for number, name in enumerate(("current", "old", "middle", "new")):
        (spill / name).mkdir(parents=True)
        (spill / name / "c.txt").write_bytes(b"x" * 100)
        os.utime(spill / name, (number, number))
    (spill / "link").symlink_to(outside)
    workspace = Workspace(root)
    prune_spill(workspace, "current")
    assert {path.name for path in spill.iterdir()} == {"current", "old", "middle", "new", "link"}
    prune_spill(workspace, "current", kept_bytes=250)
    assert {path.name for path in spill.iterdir()} == {"current", "middle", "new", "link"}
    prune_spill(workspace, "current", kept_bytes=0)
    assert {path.name for path in spill.iterdir()} == {"current", "link"}
    assert (spill / "current" / "c.txt").exists()
    assert (outside / "kept.txt").exists()


def test_a_workspace_without_spill_is_fine(tmp_path: Path) -> None:
    prune_spill(Workspace(tmp_path), "t")
