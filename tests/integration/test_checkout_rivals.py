"""F05: worker processes and worker machines edit the same files; no update is lost, and every loser is told."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MEMBERS_OF_PROCESS: Final = 4


@dataclass(frozen=True)
class Rival:
    """What one worker process reported."""

    counts: dict[str, int]
    stale: int
    seconds: float
    namespaces: list[str]


def rivals(commands: list[list[str]]) -> list[Rival]:
    """Run worker processes side by side to their end."""
    started = [subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE) for command in commands]
    try:
        outputs = [process.communicate(timeout=1500)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * len(commands)
    return [Rival(**json.loads(output)) for output in outputs]


def assert_no_lost_update(directory: Path, reports: list[Rival], edits: int, files: int) -> None:
    for name in (f"f{number}" for number in range(files)):
        assert int((directory / name).read_text()) == sum(report.counts[name] for report in reports)
    assert sum(sum(report.counts.values()) for report in reports) == edits
    assert sum(report.stale for report in reports) > 0
    assert sorted(path.name for path in directory.iterdir()) == sorted([".team", *(f"f{n}" for n in range(files))])


def numbered_files(directory: Path, files: int) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(files):
        (directory / f"f{number}").write_text("0\n")


def rival(root: Path, edits: int, files: int) -> list[str]:
    return [sys.executable, "-m", "tests.support.checkout_rival", str(root), str(edits), str(files)]


def test_f05_the_numbers_equal_the_successes(tmp_path: Path) -> None:
    numbered_files(tmp_path, 2)
    reports = rivals([rival(tmp_path, 25, 2)] * 3)
    assert_no_lost_update(tmp_path, reports, 3 * MEMBERS_OF_PROCESS * 25, 2)


def machine(shared: Path, mount: Path, command: list[str]) -> list[str]:
    """``command`` in mount, network and host-name namespaces of its own; ``mount`` shows ``shared`` only there."""
    script = f'mount --bind "{shared}" "{mount}" && exec "$@"'
    return ["unshare", "--mount", "--net", "--uts", "--ipc", "sh", "-c", script, "sh", *command]


def require_machines(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = subprocess.run(machine(tmp_path / "a", tmp_path / "b", ["true"]), capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"namespaces are refused here: {found.stderr.decode().strip()}")


@pytest.mark.parametrize(
    ("edits", "files"),
    [
        pytest.param(20, 4, id="short"),
        pytest.param(1250, 20, id="ten-thousand", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_f05_eight_members_on_two_machines_lose_no_update(
    tmp_path: Path, edits: int, files: int, capsys: pytest.CaptureFixture[str]
) -> None:
    require_machines(tmp_path)
    shared, mount = tmp_path / "shared", tmp_path / "workspace"
    numbered_files(shared, files)
    mount.mkdir()
    began = time.monotonic()
    first, second = rivals([machine(shared, mount, rival(mount, edits, files))] * 2)
    seconds = time.monotonic() - began
    # Two machines, indeed: this one and either of them share neither mounts nor network.
    assert not set(first.namespaces) & set(second.namespaces)
    assert list(mount.iterdir()) == []
    total = 2 * MEMBERS_OF_PROCESS * edits
    assert_no_lost_update(shared, [first, second], total, files)
    if files == 20:
        with capsys.disabled():
            print(f"\n{'machine':>8} {'members':>8} {'edits':>8} {'told stale':>11} {'seconds':>8}")
            for name, report in (("first", first), ("second", second)):
                made = sum(report.counts.values())
                print(f"{name:>8} {MEMBERS_OF_PROCESS:>8} {made:>8,} {report.stale:>11,} {report.seconds:>8.1f}")
            print(f"{total:,} edits of {files} files, none lost, {total / seconds:,.0f} per second")
