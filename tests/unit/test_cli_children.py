"""Child processes: they never outlive their supervisor, and they are started again when they end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from team.cli.broker import EmbeddedBroker
from team.cli.children import Child, ChildSpec
from team.cli.tokens import keys_pipe
from team.model.errors import ConfigurationInvalid
from tests.support.waiting import wait_until


def spec(tmp_path: Path, code: str, **changes: object) -> ChildSpec:
    values: dict[str, object] = {
        "name": "child",
        "command": (sys.executable, "-c", code),
        "environment": {"PATH": "/usr/bin:/bin"},
        "directory": tmp_path,
        "log": tmp_path / "child.log",
        **changes,
    }
    return ChildSpec(**values)  # pyright: ignore[reportArgumentType]  # a table of fields


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Child]:
    child = Child(spec(tmp_path, "import time; print('up', flush=True); time.sleep(600)"))
    child.start()
    yield child
    child.signal(signal.SIGKILL)
    wait_until(lambda: not child.alive, "the child to end")


def test_a_child_that_was_killed_is_started_again_and_counts_the_restart(running: Child) -> None:
    first = running.pid
    running.signal(signal.SIGKILL)
    wait_until(lambda: running.exit_code == -signal.SIGKILL, "the child to be gone")
    wait_until(running.revive, "the back-off to end")
    assert running.alive
    assert running.pid != first
    assert running.restarts == 1


def test_the_back_off_grows_while_a_child_keeps_failing(tmp_path: Path) -> None:
    child = Child(spec(tmp_path, "raise SystemExit(3)"))
    child.start()
    delays: list[float] = []
    for _ in range(3):
        wait_until(lambda: child.exit_code == 3, "the child to fail")
        assert not child.revive()
        delays.append(child.delay_seconds)
        wait_until(child.revive, "the back-off to end")
    wait_until(lambda: child.exit_code == 3, "the child to fail")
    assert delays == sorted(set(delays))


def test_last_words_are_those_of_the_newest_start(tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("words of an earlier life\n")
    child = Child(spec(tmp_path, "pass"))
    child.start()
    wait_until(lambda: child.exit_code == 0, "the child to end")
    assert child.last_words() == ""
    speaking = Child(spec(tmp_path, "import sys; print('first', flush=True); sys.stderr.write('the reason\\n\\n')"))
    speaking.start()
    wait_until(lambda: speaking.exit_code == 0, "the child to end")
    assert speaking.last_words() == "the reason"


def test_provider_keys_reach_a_child_through_a_pipe_and_nowhere_else(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "place = os.environ['TEAM_PROVIDER_KEYS_FILE']\n"
        "print(pathlib.Path(place).read_text(), end='', flush=True)\n"
        "assert not any('sk-canary' in value for value in os.environ.values())\n"
        "assert not any('sk-canary' in value for value in sys.argv[1:])\n"
        "print('clean')\n"
    )
    keys = {"OPENAI_API_KEY": "sk-canary-1", "DEEPSEEK_API_KEY": "sk-canary-2"}
    child = Child(spec(tmp_path, code, keys=keys))
    for _ in range(2):  # a restart hands them over again
        child.start()
        wait_until(lambda: child.exit_code is not None, "the child to end")
        assert child.exit_code == 0
        assert child.last_words() == "clean"
    written = (tmp_path / "child.log").read_text()
    assert written.count("OPENAI_API_KEY=sk-canary-1\nDEEPSEEK_API_KEY=sk-canary-2\n") == 2


def test_a_key_with_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="line break"):
        keys_pipe({"OPENAI_API_KEY": "one\nTEAM_SOMETHING=two"})


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """The kernel ends them: nothing of the supervisor runs any more when it gets SIGKILL."""
    supervisor = (
        "import pathlib, sys, time\n"
        "from team.cli.children import Child, ChildSpec\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "child = Child(ChildSpec('child', ('sleep', '600'), {'PATH': '/usr/bin:/bin'}, place, place / 'child.log'))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervisor, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
        process.wait()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child to be killed")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[EmbeddedBroker, Child]]:
    settings = EmbeddedBroker.allot()
    child = Child(settings.child(tmp_path, tmp_path / "valkey.log"))
    child.start()
    wait_until(settings.answers, "the broker")
    yield settings, child
    child.signal(signal.SIGKILL)
    wait_until(lambda: not child.alive, "the broker to end")


def test_the_embedded_broker_wants_its_password_and_hides_it(
    broker: tuple[EmbeddedBroker, Child], tmp_path: Path
) -> None:
    settings, child = broker
    stranger = EmbeddedBroker(port=settings.port, password="guess")
    assert settings.answers()
    assert not stranger.answers()
    process = psutil.Process(child.pid)
    shown = " ".join([*process.cmdline(), *process.environ().values()])
    assert settings.password not in shown
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and settings.password in path.read_text()]


def test_the_embedded_broker_comes_back_empty_on_its_port(broker: tuple[EmbeddedBroker, Child]) -> None:
    settings, child = broker
    child.signal(signal.SIGKILL)
    wait_until(lambda: not child.alive, "the broker to be gone")
    assert not settings.answers()
    wait_until(child.revive, "the back-off to end")
    wait_until(settings.answers, "the broker to be back")
