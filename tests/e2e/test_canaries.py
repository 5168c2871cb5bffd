"""B04, C12: no secret of a worker and no text of a message turns up where it does not belong.

A real stack runs a command that looks for secrets. Everything that went through the broker, events for Flower included,
is recorded; the store is dumped; the logs are read.
"""

import base64
import json
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from team.cli.tokens import stored_token
from team.model.events import Event
from tests.support.stack import LiveStack, running_stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

KEYS = {
    "OPENAI_API_KEY": "canary-openai",
    "CUSTOM_API_KEY": "canary-custom",
    "TEAM_MODEL_API_KEY": "canary-model",
    "DATABASE_URL": "postgresql://u:canary-database@db/x",
    "CELERY_BROKER_URL": "redis://:canary-broker@r/0",
    "FLOWER_BASIC_AUTH": "u:canary-flower",
    "FOO_TOKEN": "canary-token",
    "X_0": "canary-indexed",
}
CANARIES = re.compile("canary-(?:openai|custom|model|database|broker|flower|token|indexed)")
PROMPT = "prompt-of-the-canary-run"
FILE = "text-of-the-canary-file"

LOOK = r"""
echo looking
env; export -p; cat /proc/self/environ | tr '\0' '\n'
for process in /proc/[0-9]*; do cat $process/environ $process/cmdline 2>/dev/null | tr '\0' '\n' | grep -a canary-; done
ps eww -A | grep canary-; ps -ef | grep canary-
python3 -c 'import os; print(dict(os.environ))'
grep -rs canary- /run/secrets
cat /proc/$PPID/environ /proc/1/environ | tr '\0' '\n'
echo looked
"""

_END = "the-end-of-the-record"

# Not below what the file's owner may read anyway when nothing confines its commands.
LOOK_AT_DATA = r"grep -rs . {data}; ls -A {data}; echo nothing more"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Outside of /tmp, which the sandbox replaces: what is hidden here is hidden on purpose."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="team-canaries-") as made:
        yield Path(made)


def scenario(path: Path, command: str) -> str:
    lines = "".join(f"          {line}\n" for line in command.strip().splitlines())
    path.write_text(
        "version: 1\ndefault:\n  start: first\n  states:\n    first:\n      calls:\n"
        f"      - tool: bash\n        args:\n          command: |\n{lines.replace('          ', '            ')}"
        f"      - {{tool: write, args: {{path: made, content: {FILE}}}}}\n      next: over\n    over: {{say: done}}\n"
    )
    return f"script:{path}"


@contextmanager
def recorded(stack: LiveStack) -> Generator[list[str]]:
    """Every command that the broker executes, bodies of Celery's messages decoded."""
    commands: list[str] = []
    client = stack.broker()
    began = threading.Event()

    def record() -> None:
        with client.monitor() as monitor:
            began.set()
            for entry in monitor.listen():
                command = decoded(cast("dict[str, Any]", entry)["command"])
                if command == f"ECHO {_END}":
                    return
                commands.append(command)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    assert began.wait(10)
    try:
        yield commands
    finally:
        client.execute_command("ECHO", _END)  # pyright: ignore[reportUnknownMemberType]  # untyped library
        thread.join(10)
        client.close()
    assert not thread.is_alive()


def decoded(command: str) -> str:
    """The command with the bodies of messages in clear text after it."""
    bodies = re.findall(r'"body": "([A-Za-z0-9+/=]+)"', command)
    return "\n".join([command, *(base64.b64decode(body).decode() for body in bodies)])


def dumped(data: Path) -> str:
    """The whole store as text."""
    with sqlite3.connect(f"file:{data / 'team.db'}?mode=ro", uri=True) as connection:
        text = "\n".join(connection.iterdump())
    connection.close()
    return text


def ended(stack: LiveStack, session: str) -> list[Event] | None:
    events = list(stack.operator.events(session))
    return events if any(event.type == "turn/end" for event in events) else None


@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_b04_c12_canaries_stay_where_they_belong(directory: Path, sandbox: str) -> None:
    if sandbox == "off" and os.geteuid() != 0:
        pytest.skip("an ordinary user's unconfined commands may read the other processes of that user")
    data = directory / "data"
    command = LOOK
    if sandbox == "auto":
        command += LOOK_AT_DATA.format(data=data)
    model = scenario(directory / "scenario.yaml", command)
    with (
        running_stack(directory, variables={**KEYS, "TEAM_SANDBOX": sandbox, "TEAM_LOG_FORMAT": "json"}) as stack,
        recorded(stack) as broker,
    ):
        wait_until(lambda: "commands are" in logs(data), "the worker to tell whether it confines", 30)
        if sandbox == "auto" and "commands are confined" not in logs(data):
            pytest.skip("no sandbox works here")
        session = stack.operator.create_session(cwd=str(directory / "work"), profile="base", model=model, prompt=PROMPT)
        events = wait_until(lambda: ended(stack, session), "the turn to end", 60)
        assert events
        secrets = [stored_token(data, "operator"), stored_token(data, "worker"), stack.broker_url()]
        wait_until(lambda: any("task-succeeded" in entry for entry in broker), "the events for Flower")
        wire = "\n".join(broker)

    (looked,) = [str(event.data["content"]) for event in events if event.type == "tool/result"][:1]
    assert "looking" in looked
    assert "looked" in looked
    assert CANARIES.findall(looked) == []
    assert not [secret for secret in secrets if secret in looked]
    if sandbox == "auto":
        assert looked.split("looked\n")[-1].startswith("nothing more")

    assert "task-received" in wire
    for place, text in {"broker": wire, "store": dumped(data), "logs": logs(data)}.items():
        assert CANARIES.findall(text) == [], place
    for text in (wire, logs(data)):
        assert PROMPT not in text
        assert FILE not in text
    assert PROMPT in dumped(data)
    assert not [secret for secret in secrets if secret in logs(data)]
    assert_turns_named(data, session)
    for path in data.rglob("*"):
        if path.is_file():
            assert CANARIES.findall(path.read_bytes().decode("latin-1")) == [], path
    # A message for a worker holds ids and nothing else.
    bodies = [entry.partition("\n")[2] for entry in broker if entry.startswith("LPUSH") and "team.turn" in entry]
    assert bodies
    assert max(len(body) for body in bodies) < 1024


def assert_turns_named(data: Path, session: str) -> None:
    """Both sides name the same turn with the same ids, and the worker that had it."""
    told: dict[str, list[dict[str, Any]]] = {}
    for path in (data / "logs").iterdir():
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("{")]
        told[path.stem] = [entry for entry in map(json.loads, lines) if entry.get("turn")]
    coordinator = {entry["event"]: entry for entry in told["coordinator"]}
    worker = {entry["event"]: entry for name, entries in told.items() if name != "coordinator" for entry in entries}
    ids = {name: coordinator["turn given"][name] for name in ("team", "member", "session", "turn", "worker")}
    assert (ids["team"], ids["member"], ids["session"]) == (session, "lead", session)
    for entry in (coordinator["turn ended"], worker["turn claimed"], worker["claim over"]):
        assert {name: entry[name] for name in ids} == ids
    assert worker["claim over"]["step"] == 2


def logs(data: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in (data / "logs").iterdir())
