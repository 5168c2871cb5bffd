"""The command as a process: help, exit codes, one sentence for each fault, nothing left running."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from typer.testing import CliRunner

from team.cli.main import app
from tests.support.http import Answer, Asked, RecordingServer
from tests.support.ports import free_port
from tests.support.processes import MARKER

COMMANDS = {"run", "resume", "up", "coordinator", "worker"} | {
    "sessions",
    "show",
    "send",
    "interrupt",
    "tool",
    "log",
    "doctor",
}


class Done(NamedTuple):
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Team = Callable[..., Done]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Runs the command, in this process, in a directory of its own; settings are given by name, without TEAM_."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in list(os.environ):
        if name.endswith("_API_KEY") or (name.startswith("TEAM_") and name != MARKER):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEAM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"TEAM_{name.upper()}", value)
            result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


def refused(done: Done, *phrases: str) -> None:
    """Exit code 2, and one sentence that holds every phrase."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("team: ")
    for phrase in phrases:
        assert phrase in done.stderr


def test_help_names_every_command(team: Team) -> None:
    done = team("--help")
    assert done.returncode == 0
    listed = set(re.findall(r"^│ ([a-z]+)\b", done.stdout, re.MULTILINE))
    assert listed >= COMMANDS


@pytest.mark.parametrize("command", ["run", "up", "worker"])
def test_help_shows_the_default_and_the_variable_of_each_option(team: Team, command: str) -> None:
    done = team(command, "--help")
    assert done.returncode == 0
    assert "[env var: TEAM_SLOTS]" in done.stdout
    assert "[default: (8)]" in done.stdout


def test_a_wrong_option_is_a_usage_error(team: Team) -> None:
    assert team("run", "--no-such-option", "x").returncode == 2


def test_no_model(team: Team) -> None:
    refused(team("run", "Go."), "No model is chosen", "TEAM_MODEL")


def test_no_key(team: Team) -> None:
    refused(team("run", "Go.", "--model", "deepseek:deepseek-chat"), "DEEPSEEK_API_KEY")


def test_an_unknown_provider(team: Team) -> None:
    refused(team("run", "Go.", "--model", "nobody:x"), "nobody:x", "openai-chat:")


def test_an_unknown_profile(team: Team) -> None:
    refused(team("run", "Go.", "--model", "script:x", "--profile", "teem"), "'teem'", "base", "team")


def test_a_script_that_is_not_there(team: Team) -> None:
    refused(team("run", "Go.", "--model", "script:nothing.yaml"), "work/nothing.yaml", "cannot be read")


@pytest.mark.parametrize(
    "text", ["members: [", "members: {lead: {}}", "- 1", "members: {lead: {start: a, states: {}}}"]
)
def test_a_malformed_script(team: Team, tmp_path: Path, text: str) -> None:
    (tmp_path / "work" / "bad.yaml").write_text(text)
    refused(team("run", "Go.", "--model", "script:bad.yaml"), "bad.yaml")


def test_a_directory_that_does_not_exist(team: Team) -> None:
    refused(team("run", "Go.", "--cwd", "nowhere", "--model", "script:x"), "nowhere", "not a directory")


def test_a_directory_outside_the_workspace(team: Team, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = team("run", "Go.", "--cwd", str(tmp_path / "other"), "--workspace", str(tmp_path / "work"))
    refused(done, "outside the workspace", "--workspace")


def test_an_empty_prompt(team: Team) -> None:
    refused(team("run", "  "), "prompt is empty")
    refused(team("run", "-"), "prompt is empty")


def test_a_run_without_workers(team: Team) -> None:
    refused(team("run", "Go.", "--workers", "0"), "--workers")


@pytest.mark.parametrize("command", ["up", "coordinator"])
def test_a_port_in_use(team: Team, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(team(command, "--port", str(port)), f"Port {port} of 127.0.0.1 is in use", "--port")


@pytest.mark.parametrize("command", [("up",), ("run", "Go.", "--model", "script:{script}")])
def test_an_unreachable_broker(team: Team, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = team(*_with_script(command, tmp_path), broker_url=f"redis://:pass-word@127.0.0.1:{free_port()}/0")
    refused(done, "The broker at 127.0.0.1:", "TEAM_BROKER_URL")
    assert "pass-word" not in done.stderr


@pytest.mark.parametrize("command", [("up",), ("run", "Go.", "--model", "script:{script}")])
def test_an_unreachable_database(team: Team, tmp_path: Path, command: tuple[str, ...]) -> None:
    url = f"postgresql+psycopg://someone:pass-word@127.0.0.1:{free_port()}/team"
    done = team(*_with_script(command, tmp_path), database_url=url)
    refused(done, "The database at 127.0.0.1:", "TEAM_DATABASE_URL")
    assert "pass-word" not in done.stderr


@pytest.mark.parametrize("url", ["nonsense", "mysql+nothing://h/d", "http://h/"])
def test_a_database_url_that_is_none(team: Team, url: str) -> None:
    refused(team("up", database_url=url), "TEAM_DATABASE_URL")


@pytest.mark.parametrize("url", ["nonsense", "amqp://h/", "redis://"])
def test_a_broker_url_that_is_none(team: Team, url: str) -> None:
    refused(team("up", broker_url=url), "TEAM_BROKER_URL")


def test_a_variable_that_is_no_number(team: Team) -> None:
    refused(team("sessions", lease_seconds="soon"), "TEAM_LEASE_SECONDS")


@pytest.mark.parametrize(
    "command",
    [
        ("sessions",),
        ("show", "x"),
        ("log", "x"),
        ("doctor",),
        ("send", "x", "y"),
        ("resume", "nope"),
        ("resume", "nope", "Go on."),
    ],
)
def test_nothing_stored_yet(team: Team, tmp_path: Path, command: tuple[str, ...]) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused(team(*command), "Nothing has run", "TEAM_DATA_DIR")
    assert sorted(tmp_path.rglob("*")) == before, "looking leaves nothing behind"


def test_a_coordinator_without_a_token(team: Team) -> None:
    refused(team("sessions", coordinator_url="http://127.0.0.1:1"), "TEAM_OPERATOR_TOKEN")


def test_a_tool_prints_its_result_as_json(team: Team) -> None:
    with RecordingServer(lambda _: (200, {"result": {"id": "task-1"}})) as server:
        done = team("tool", "t", "lead", "team_task_get", '{"task_id": "task-1"}', **remote(server))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"id": "task-1"})
    assert server.asked[0].body == {"task_id": "task-1"}


def test_a_tool_error_is_json_and_exits_1(team: Team) -> None:
    error = {"code": "TEAM_TASK_NOT_FOUND", "message": "There is no task-9."}
    with RecordingServer(lambda _: (404, {"error": error})) as server:
        done = team("tool", "t", "lead", "team_task_get", '{"task_id": "task-9"}', **remote(server))
    assert (done.returncode, json.loads(done.stdout)) == (1, {"error": error})


@pytest.mark.parametrize("parameters", ["{", "[]", '"text"', '{"a": NaN}'])
def test_tool_parameters_that_are_no_object(team: Team, parameters: str) -> None:
    refused(team("tool", "t", "lead", "list_agents", parameters, coordinator_url="http://127.0.0.1:1"), "JSON")


def test_a_refusal_of_the_coordinator_is_one_sentence(team: Team) -> None:
    def answer(request: Asked) -> Answer:
        return 422, {"error": {"code": "PROFILE_UNKNOWN", "message": "There is no profile 'x'."}}

    with RecordingServer(answer) as server:
        refused(team("run", "Go.", "--profile", "x", **remote(server)), "There is no profile 'x'.")


def test_sessions_as_json(team: Team) -> None:
    session = {
        "id": "s-1",
        "rootId": "s-1",
        "profile": "team",
        "cwd": "/w",
        "createdAt": "2026-01-01T00:00:00Z",
        "status": "inactive",
        "lastSeq": 3,
        "pending": 0,
        "held": False,
        "workers": ["worker-1"],
    }
    with RecordingServer(lambda _: (200, {"sessions": [session]})) as server:
        done = team("sessions", "--json", **remote(server))
        readable = team("sessions", **remote(server))
    assert json.loads(done.stdout) == {"sessions": [session]}
    assert "s-1" in readable.stdout


def test_the_exit_of_doctor_tells_whether_replay_equals_projections(team: Team) -> None:
    rows = [{"id": "s-1", "events": 3, "ok": False, "fault": "task-1 differs"}]
    with RecordingServer(lambda _: (200, {"ok": False, "sessions": rows})) as server:
        done = team("doctor", **remote(server))
    assert done.returncode == 1
    assert "task-1 differs" in done.stdout
    with RecordingServer(lambda _: (200, {"ok": True, "sessions": [{**rows[0], "ok": True}]})) as server:
        assert team("doctor", **remote(server)).returncode == 0


def test_as_a_process_it_refuses_in_one_sentence_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "team.cli.main", "up"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TEAM_DATA_DIR": str(tmp_path / "data"),
            "TEAM_DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/x",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused(Done(done.returncode, done.stdout, done.stderr), "The database at 127.0.0.1:1")
    mine: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(tmp_path) in " ".join([process.cwd(), *process.cmdline()]):
                mine.append(process.pid)
    assert mine == []


def remote(server: RecordingServer) -> dict[str, str]:
    return {"coordinator_url": server.url, "operator_token": "token"}


def _with_script(command: tuple[str, ...], tmp_path: Path) -> list[str]:
    script = tmp_path / "work" / "script.yaml"
    script.write_text("members: {lead: {start: end, states: {end: {say: Done.}}}}\n")
    return [part.format(script=script) for part in command]
