"""F05: several worker processes edit the same files; no update is lost, and every loser is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("edits", "files"), [pytest.param(25, 2, id="short"), pytest.param(625, 20, id="long", marks=pytest.mark.soak)]
)
def test_f05_the_numbers_equal_the_successes(tmp_path: Path, edits: int, files: int) -> None:
    for number in range(files):
        (tmp_path / f"f{number}").write_text("0\n")
    command = [sys.executable, "-m", "tests.support.checkout_rival", str(tmp_path), str(edits), str(files)]
    repository = Path(__file__).resolve().parents[2]
    rivals = [subprocess.Popen(command, cwd=repository, text=True, stdout=subprocess.PIPE) for _ in range(3)]
    reports = [json.loads(rival.communicate(timeout=600)[0]) for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0, 0]
    for number in range(files):
        name = f"f{number}"
        assert int((tmp_path / name).read_text()) == sum(report["counts"][name] for report in reports)
    assert sum(sum(report["counts"].values()) for report in reports) == 3 * 4 * edits
    assert sum(report["stale"] for report in reports) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".team", *(f"f{n}" for n in range(files))])
