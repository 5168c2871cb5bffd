"""B04: no secret of a worker reaches a command, by its environment or by looking at other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CANARIES = {
    "MODEL_API_KEY": "canary-model",
    "DATABASE_URL": "postgresql://u:canary-database@db/x",
    "CELERY_BROKER_URL": "redis://:canary-broker@r/0",
    "FLOWER_BASIC_AUTH": "u:canary-flower",
    "FOO_TOKEN": "canary-token",
    "X_0": "canary-indexed",
    "TEAM_WORKER_TOKEN": "canary-worker",
}

KEPT = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "TEAM_TEST_RUN")

LOOK = """
env
export -p
cat /proc/self/environ | tr '\\0' '\\n'
echo parent; cat /proc/$PPID/environ | tr '\\0' '\\n'
for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -a canary; done
ps eww -A 2>/dev/null | grep canary
python3 -c 'import os; print(dict(os.environ))'
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_b04_a_command_sees_no_canary_anywhere(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    output = subprocess.run(
        [sys.executable, "-m", "tests.support.checkout_worker", str(root), "60", LOOK],
        cwd=Path(__file__).resolve().parents[2],
        env={**environment, **CANARIES},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "PWD=" in output
    assert "parent" in output
    for canary in CANARIES.values():
        assert canary not in output


def test_b04_the_canaries_would_be_seen_without_the_guard(tmp_path: Path) -> None:
    """The look of the test above finds what there is to find."""
    output = subprocess.run(
        ["bash", "-c", LOOK], cwd=tmp_path, env={**os.environ, **CANARIES}, capture_output=True, text=True, check=False
    ).stdout
    for canary in CANARIES.values():
        assert canary in output
