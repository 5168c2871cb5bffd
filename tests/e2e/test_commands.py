"""The commands on a real stack: sharing it, looking at it, acting on it, stopping it."""

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from team.cli.places import live_stack
from tests.support.histories import assert_sound
from tests.support.stack import Command, attached, command_environment, running_stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

QUICK = """
members:
  lead:
    start: look
    on_message: again
    states:
      look:
        calls: [{tool: bash, args: {command: echo hello from $PWD}}]
        next:
          - {when: {call: bash, contains: hello}, goto: end}
      end: {say: The shell said hello.}
      again: {say: 'You said: ${message.text}'}
"""

LASTING = """
members:
  lead:
    start: work
    on_message: end
    states:
      work:
        max_visits: 1000
        calls: [{tool: bash, args: {command: 'sleep 0.3; test -e go && echo free || echo busy'}}]
        next:
          - {when: {call: bash, contains: free}, goto: end}
          - {goto: work}
      end: {say: Released.}
"""


class Place:
    """A workspace, a data directory and a script; runs commands in them."""

    def __init__(self, directory: Path, script: str, **variables: str) -> None:
        self.directory, self.data, self.work = directory, directory / "data", directory / "work"
        self.work.mkdir(exist_ok=True)
        (directory / "script.yaml").write_text(script)
        self.environment = command_environment(
            self.data, self.work, {"TEAM_MODEL": f"script:{directory / 'script.yaml'}", **variables}
        )

    def team(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "team.cli.main", *arguments],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What a successful command prints."""
        done = self.team(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def begun(self, *arguments: str) -> Generator[Command]:
        """A command in the background, killed at the end if it still runs."""
        command = Command(
            ["-m", "team.cli.main", *arguments], self.environment, self.work, self.directory / f"{arguments[0]}.log"
        )
        try:
            yield command
        finally:
            if command.process.poll() is None:
                command.kill()


def children_of(data: Path) -> list[psutil.Process]:
    record = live_stack(data)
    assert record is not None
    return [psutil.Process(pid) for pid in record.children.values()]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_a_run_of_its_own_answers_and_leaves_a_log_to_look_at(tmp_path: Path) -> None:
    """Its provider key is stored nowhere, and a worker has forgotten it by the time that it runs a command."""
    place = Place(tmp_path, QUICK.replace("echo hello", "env; echo hello"), OPENAI_API_KEY="sk-canary-4711")
    outcome = place.json("run", "Say hello.", "--json", "--report", "report.json")
    assert outcome["status"] == "done"
    assert outcome["answer"] == "The shell said hello."
    assert outcome["workers"] == {"lead": ["worker-1"]}
    assert json.loads((place.work / "report.json").read_text()) == outcome
    assert live_stack(place.data) is None
    report = place.json("doctor", "--json")
    session = outcome["session"]
    assert (report["ok"], [row["id"] for row in report["sessions"]]) == (True, [session])
    stored = b"".join(path.read_bytes() for path in place.data.rglob("*") if path.is_file())
    assert b"sk-canary-4711" not in stored

    with running_stack(tmp_path, workers=0):
        shown = place.json("show", session, "--json")
        assert shown["session"]["lastEnd"]["reason"] == "completed"
        assert shown["session"]["cwd"] == str(place.work)
        log = place.team("log", session)
        assert log.returncode == 0, log.stderr
        assert "bash  command=env; echo hello" in log.stdout
        exported = place.team("log", session, "--jsonl").stdout.splitlines()
        assert session in exported[0]
        numbers = [line["seq"] for line in map(json.loads, exported) if "seq" in line]
        assert numbers == list(range(1, shown["session"]["lastSeq"] + 1))
        assert place.team("log", "no-such-session", "--jsonl").returncode == 2


def test_a_run_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    place = Place(tmp_path, QUICK, TEAM_DATABASE_URL=postgres_url)
    outcome = place.json("run", "Say hello.", "--json")
    assert (outcome["status"], outcome["answer"]) == ("done", "The shell said hello.")
    assert place.json("doctor", "--json")["ok"]
    assert not (place.data / "team.db").exists()


def test_runs_share_a_stack_that_is_up_and_leave_it_up(tmp_path: Path) -> None:
    with running_stack(tmp_path, workers=1) as stack:
        place = Place(tmp_path, QUICK)
        before = stack.children
        first, second = (place.json("run", text, "--json") for text in ("One.", "Two."))
        assert first["status"] == second["status"] == "done"
        assert first["session"] != second["session"]
        assert stack.children == before
        listed = place.json("sessions", "--json")["sessions"]
        assert [session["id"] for session in listed] == [first["session"], second["session"]]

        sent = place.json("send", first["session"], "Good morning.", "--json")
        assert sent["status"] == "accepted"
        resumed = place.json("resume", first["session"], "--json")
        assert resumed["answer"] == "You said: Good morning."

        refused = place.team("up")
        assert refused.returncode == 2
        assert "serves" in refused.stderr
        assert_sound(stack.logs())


def test_tools_as_a_member_from_outside(tmp_path: Path) -> None:
    with running_stack(tmp_path, workers=1):
        place = Place(tmp_path, QUICK)
        team = place.json("run", "Begin.", "--profile", "team", "--json")["session"]
        place.json("send", team, "Open again.", "--json")
        task = place.json("tool", team, "lead", "team_task_create", '{"subject": "One", "description": "Do it."}')
        assert task["id"] == "task-1"
        stale = place.team("tool", team, "lead", "team_task_update", json.dumps(update(task["id"], 7)))
        assert stale.returncode == 1
        assert json.loads(stale.stdout)["error"]["code"] == "TEAM_TASK_STALE_REVISION"
        claimed = place.json("tool", team, "lead", "team_task_update", json.dumps(update(task["id"], 1)))
        assert (claimed["ownerName"], claimed["revision"]) == ("lead", 2)
        listed = place.json("tool", team, "lead", "team_task_list")
        assert [item["id"] for item in listed["tasks"]] == ["task-1"]
        done = place.team("resume", team)
        assert done.returncode == 1
        assert "task-1 is in progress (owner lead): One" in done.stdout


def update(task_id: str, revision: int) -> dict[str, Any]:
    return {"task_id": task_id, "expected_revision": revision, "action": "claim"}


def test_a_second_run_is_refused_and_interrupt_ends_the_first(tmp_path: Path) -> None:
    place = Place(tmp_path, LASTING)
    with place.begun("run", "Work.") as run, attached(place.data) as stack:
        session = wait_until(stack.operator.sessions, "the Session")[0].id
        wait_until(lambda: (turn := stack.operator.session(session).turn) and turn.state == "running", "its turn", 30)
        refused = place.team("run", "Too.")
        assert refused.returncode == 2
        assert f"(process {run.process.pid})" in refused.stderr
        assert place.json("interrupt", session, "--json")["previousStatus"] == "running"
        assert run.wait(60) == 1
    assert "the Lead's last turn ended aborted" in run.text()
    assert f"team resume {session}" in run.text()


def test_a_signal_stops_a_run_in_order_and_it_can_be_resumed(tmp_path: Path) -> None:
    place = Place(tmp_path, LASTING)
    with place.begun("run", "Work.") as run, attached(place.data) as stack:
        session = wait_until(stack.operator.sessions, "the Session")[0].id
        wait_until(lambda: (turn := stack.operator.session(session).turn) and turn.state == "running", "its turn", 30)
        children = children_of(place.data)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(60) == 1
        assert alive(children) == []
    assert f"team resume {session}" in run.text()

    (place.work / "go").touch()
    resumed = place.json("resume", session, "--json")
    assert (resumed["status"], resumed["answer"]) == ("done", "Released.")


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """A step that would take ten minutes does not keep the command from ending, nor its processes alive."""
    script = LASTING.replace("sleep 0.3; test -e go && echo free || echo busy", "sleep 600.25")
    place = Place(tmp_path, script, TEAM_DRAIN_SECONDS="600")
    with place.begun("run", "Work.") as run, attached(place.data):
        sleeping = wait_until(lambda: processes_with("600.25"), "the shell command", 60)
        children = children_of(place.data)
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: not (place.data / "stack.json").exists(), "the stop to begin")
        run.process.send_signal(signal.SIGINT)
        assert run.wait(30) == 1
    wait_until(lambda: not alive([*children, *sleeping]), "every process to be gone", 30)


def processes_with(argument: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if argument in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_run_at_its_limit_is_incomplete_and_stops(tmp_path: Path) -> None:
    place = Place(tmp_path, LASTING)
    done = place.team("run", "Work.", "--limit-minutes", "0.05")
    assert done.returncode == 1
    assert "the time limit was reached" in done.stdout
    assert live_stack(place.data) is None


def test_up_starts_again_what_ends(tmp_path: Path) -> None:
    with running_stack(tmp_path, workers=2) as stack:
        place = Place(tmp_path, QUICK)
        for name in ("worker-1", "valkey", "coordinator", "worker-2"):
            stack.kill(name)
        assert place.json("run", "Begin.", "--json")["status"] == "done"
        assert (place.data / "stack.json").stat().st_mode & 0o077 == 0
