"""A workflow on real processes, on one worker slot, while what runs it is killed."""

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.test_commands import Place
from tests.e2e.test_subagents import logs_of, outcome_of, session_of, types
from tests.support.histories import assert_sound
from tests.support.stack import attached
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

AGENTS = 20

SCRIPT = """
members:
  lead:
    start: ask
    states:
      ask:
        calls:
          - tool: workflow
            args:
              name: count the parts
              args: {agents: 20}
              script: |
                phase("count")
                schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
                counted = await parallel(
                    [agent(f"Count part {n}.", label=f"part {n}", schema=schema) for n in range(args["agents"])]
                )
                phase("join")
                text = await agent(f"Join {counted}.", label="join")
                return {"sum": sum(one["n"] for one in counted), "text": text}
        next:
          - when: {call: workflow, contains: '"result":{"sum":20,"text":"all joined"},"agents":21,"failed":0'}
            goto: end
      end: {say: The parts are joined.}
  join:
    start: say
    states:
      say: {say: all joined}
default:
  start: count
  states:
    count:
      calls: [{tool: bash, args: {command: "echo counted >> parts.txt"}}]
      next: report
    report:
      calls: [{tool: report_result, args: {n: 1}}]
      next: never
    never: {say: The call before ends the turn.}
"""


def worked(place: Place) -> int:
    """How many agents have done their work."""
    parts = place.work / "parts.txt"
    return len(parts.read_text().splitlines()) if parts.exists() else 0


def test_a_workflow_of_20_agents_with_a_join_survives_the_kill_of_coordinator_and_workers_on_one_slot(
    tmp_path: Path,
) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    place = Place(
        tmp_path,
        SCRIPT,
        TEAM_SLOTS="1",
        TEAM_LEASE_SECONDS="2",
        TEAM_WORKFLOW_RUN_SECONDS="1",
        TEAM_FAULT_DIR=str(faults),
    )
    arguments = ["--profile", "team", "--workers", "1", "--json", "Go."]
    with place.begun("run", *arguments) as command:
        with attached(place.data) as stack:
            root = session_of(stack, None).id
            wait_until(lambda: worked(place) >= 3, "the first agents to work", 90)
            stack.kill("worker-1")
            assert "count the parts" in place.team("show", root).stdout
            wait_until(lambda: worked(place) >= 8, "more agents to work", 90)
            stack.kill("coordinator")
            wait_until(lambda: worked(place) >= 13, "most agents to work", 90)
            # Between the run of the script and the commit of what it brought.
            (faults / "in-workflow").touch()
            wait_until(lambda: list(faults.glob("in-workflow.*")), "the coordinator to die in a run", 60)
            stack.kill("worker-1")
        assert command.wait(120) == 0, command.text()
    assert outcome_of(command.text())["answer"] == "The parts are joined."
    logs = logs_of(place)
    assert_sound(logs)
    assert len(logs) == AGENTS + 2
    counts = Counter(types(logs[root]))
    assert counts["tool-workflow/agent"] == counts["tool-workflow/answered"] == AGENTS + 1
    assert counts["tool/result"] == 1
    children = [log for session, log in logs.items() if session != root]
    assert [types(log).count("turn/start") for log in children] == [1] * (AGENTS + 1)
    # Every agent did its work once, unless the kill left it unknown whether it had.
    results = [event.data for log in children for event in log if event.type == "tool/result"]
    unknown = sum(data["outcome"] == "unknown" for data in results)
    lines = (place.work / "parts.txt").read_text().splitlines()
    assert AGENTS - unknown <= len(lines) <= AGENTS
    assert place.team("doctor").returncode == 0
