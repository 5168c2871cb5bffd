"""Subagents on real processes: in the foreground, in the background, and while what runs them is killed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from team.model.events import Event
from team.model.views import SessionView
from tests.e2e.test_commands import Place
from tests.support.histories import assert_sound
from tests.support.stack import LiveStack, attached, stored_logs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

SCRIPT = """
members:
  lead:
    start: ask
    on_message:
      - {when: {message: {from: scout, contains: went free}}, goto: told}
    states:
      ask:
        calls:
          - {tool: subagent, as: scout, args: {label: scout, prompt: Watch., background: true}}
          - {tool: subagent, as: reader, args: {label: reader, prompt: Read.}}
        next:
          - {when: {call: reader, contains: it says 42}, goto: rest}
      rest: {say: The reader found 42.}
      told:
        say: "The notice of ${message.from} came by ${message.kind}."
  reader:
    start: look
    states:
      look:
        calls: [{tool: bash, args: {command: echo 42}}]
        next:
          - {when: {call: bash, contains: "42"}, goto: end}
          - {goto: look}
      end: {say: it says 42}
  scout:
    start: watch
    states:
      watch:
        max_visits: 1000
        calls: [{tool: bash, args: {command: 'test -e go && echo free || { sleep 0.2; echo busy; }'}}]
        next:
          - {when: {call: bash, contains: free}, goto: end}
          - {goto: watch}
      end: {say: It went free.}
"""

FOREGROUND = """
members:
  lead:
    start: ask
    states:
      ask:
        calls: [{tool: subagent, as: scout, args: {label: scout, prompt: Watch.}}]
        next:
          - {when: {call: scout, outcome: ok}, goto: end}
      end: {say: The scout came back.}
""" + SCRIPT[SCRIPT.index("  scout:\n") :]


def session_of(stack: LiveStack, label: str | None) -> SessionView:
    """The Session with this label, once it is there; without one the root."""

    def found() -> SessionView | None:
        return next((each for each in stack.operator.sessions() if each.label == label), None)

    session = wait_until(found, f"the Session of {label or 'the root'}", 60)
    assert session is not None
    return session


def logs_of(place: Place) -> dict[str, list[Event]]:
    """Every log that a run left behind."""
    return stored_logs(f"sqlite:///{place.data / 'team.db'}")


def types(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events]


def outcome_of(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


def test_a_run_waits_for_its_foreground_and_its_background_subagent_and_a_waiting_turn_holds_no_slot(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, SCRIPT, TEAM_SLOTS="2")
    with (
        place.begun("run", "--profile", "base", "--workers", "1", "--json", "Go.") as command,
        attached(place.data) as stack,
    ):
        root = session_of(stack, None)
        scout = session_of(stack, "scout")
        wait_until(lambda: stack.operator.session(root.id).last_end is not None, "the first turn to end", 60)
        view = stack.operator.team(root.id)
        assert [(each.label, each.mode, each.status) for each in view.subagents] == [
            ("scout", "continuable", "running"),
            ("reader", "one-shot", "inactive"),
        ]
        assert command.process.poll() is None, "the run ended while its subagent worked"
        (place.work / "go").touch()
        assert command.wait(90) == 0, command.text()
    assert outcome_of(command.text())["answer"] == "The notice of scout came by settlement."
    shown = place.team("show", root.id).stdout
    assert "subagents" in shown
    assert scout.id in shown
    logs = logs_of(place)
    assert_sound(logs)
    assert types(logs[root.id]).count("turn/start") == 2
    assert place.team("doctor").returncode == 0


def test_a_waiting_call_survives_the_end_of_worker_and_coordinator(tmp_path: Path) -> None:
    place = Place(tmp_path, FOREGROUND)
    with place.begun("run", "--profile", "base", "--workers", "1", "--json", "Go.") as command:
        with attached(place.data) as stack:
            scout = session_of(stack, "scout")
            wait_until(lambda: stack.operator.session(scout.id).last_seq > 10, "the scout to work", 60)
            stack.kill("coordinator")
            stack.kill("worker-1")
            (place.work / "go").touch()
        assert command.wait(120) == 0, command.text()
    assert outcome_of(command.text())["answer"] == "The scout came back."
    logs = logs_of(place)
    assert_sound(logs)
    assert len(logs) == 2
    (root,) = set(logs) - {scout.id}
    assert types(logs[root]).count("tool/result") == 1
