"""The setting ``sandbox`` on real worker processes, where the kernel lets confine and where it refuses."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_turns import last_text
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import REPOSITORY, Fleet


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey)
    made.coordinator.start()
    yield made
    made.close()


def refusing_kernel(*command: str) -> list[str]:
    """``command`` where the kernel refuses namespaces: root of a user namespace that may make no other, without
    capabilities. Skips the test where that cannot be arranged.
    """
    prepare = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- "
    wrapped = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{prepare} "$@"', "sh"]
    if subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces cannot be forbidden here")
    return [*wrapped, *command]


def environment(fleet: Fleet, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEAM_W", "PYTEST_"))}
    return kept | {"PYTHONPATH": str(REPOSITORY)} | fleet.settings(**changes)


def test_d08_a_worker_that_must_confine_and_cannot_refuses_to_start(fleet: Fleet) -> None:
    command = refusing_kernel(sys.executable, "-m", "workers")
    ended = subprocess.run(
        command,
        cwd=fleet.directory,
        env=environment(fleet, SANDBOX="on"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    sentence = ended.stderr.strip().splitlines()[-1]
    assert sentence.startswith("worker: TEAM_SANDBOX is on, but commands cannot be confined on this machine (bwrap: ")
    assert "TEAM_SANDBOX=auto goes on without confinement" in sentence


def test_d08_a_worker_that_may_confine_and_cannot_says_so_once_and_runs(fleet: Fleet) -> None:
    log = fleet.directory / "auto.log"
    with log.open("wb") as stream:
        worker = subprocess.Popen(
            refusing_kernel(sys.executable, "-m", "workers"),
            cwd=fleet.directory,
            env=environment(fleet, SANDBOX="auto"),
            stdout=stream,
            stderr=stream,
        )
    try:
        wait_until(lambda: "worker ready" in log.read_text() or worker.poll() is not None, "the worker", 30)
        assert "worker ready" in log.read_text(), log.read_text()
        model = fleet.script("""
first:
  calls: [{tool: bash, args: {command: "echo ran > made"}}]
  next: over
over: {say: finished}
""")
        turn = fleet.turns.begin("do it", model=model)
        fleet.ended(turn)
        assert last_text(turn) == "finished"
        assert (fleet.root / "made").read_text() == "ran\n"
        assert log.read_text().count("commands are not confined") == 1
    finally:
        worker.terminate()
        worker.wait(30)


def test_d08_a_members_attack_leaves_the_worker_and_its_other_turns_alone(fleet: Fleet, confinement: None) -> None:
    attack = fleet.script("""
first:
  calls:
  - {tool: bash, as: one, args: {command: "pkill -9 -f workers; pkill -9 -f celery; kill -9 -1; true"}}
  - {tool: bash, as: two, args: {command: "kill -9 1; rm -rf /tmp/team-* 2>&1; echo attacked > attacked"}}
  next: over
over: {say: attacked}
""")
    peaceful = fleet.script("""
first:
  calls: [{tool: bash, args: {command: "touch began; until [ -e attacked ]; do sleep 0.05; done; echo kept > kept"}}]
  next: over
over: {say: peaceful}
""")
    worker = fleet.worker("one", SANDBOX="on").ready()
    other = fleet.turns.begin("work", model=peaceful)
    wait_until((fleet.root / "began").exists, "the peaceful command")
    fleet.ended(fleet.turns.begin("attack", model=attack))
    fleet.ended(other)
    assert (fleet.root / "kept").read_text() == "kept\n"
    assert last_text(other) == "peaceful"
    assert worker.process.poll() is None
    assert "commands are confined" in worker.log
    worker.terminate()
    assert worker.code() == 0
