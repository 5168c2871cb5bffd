"""The wheel holds what the product reads at run time, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.architecture import ROOT, tracked_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built from this tree, without a network."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = Path(target).glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_every_tracked_file_of_the_packages_is_in_the_wheel(wheel: set[str]) -> None:
    packaged = {path for path in tracked_files() if path.startswith(("config/", "team/", "workers/"))}
    assert any(path.endswith("_initial_tables.py") for path in packaged)
    assert {"team/log/migrations/env.py", "config/profiles/team.toml"} <= packaged
    assert packaged - wheel == set()


def test_nothing_else_is_in_the_wheel(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"config", "team", "workers"}
    assert not [name for name in wheel if name.endswith((".pyc", ".db"))]
