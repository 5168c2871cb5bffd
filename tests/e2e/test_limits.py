"""Limits on a real stack: a history that is compacted while its worker is killed, and what the run has used."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_commands import Place
from tests.support.histories import assert_sound
from tests.support.stack import stored_logs

pytestmark = pytest.mark.timeout(180)

LARGE = """
members:
  lead:
    start: one
    summary: 'What ${member} knows of: ${message.text}'
    states:
      one:
        calls: [{tool: bash, args: {command: 'sleep 0.2; head -c 15000 /dev/zero | tr "\\\\0" x'}}]
        next:
          - {when: {call: bash, contains: xxxx}, goto: two}
      two:
        calls: [{tool: bash, args: {command: 'head -c 15000 /dev/zero | tr "\\\\0" y'}}]
        next:
          - {when: {call: bash, contains: yyyy}, goto: end}
      end: {say: 'Both were seen.'}
"""


@pytest.mark.parametrize("point", ["before-compact-post", "after-compact-post"])
def test_a_worker_killed_around_a_compaction_leaves_one_summary_and_the_run_goes_on(tmp_path: Path, point: str) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / point).touch()
    place = Place(
        tmp_path, LARGE, TEAM_CONTEXT_WINDOWS='{"script:*": 8000}', TEAM_FAULT_DIR=str(faults), TEAM_SLOTS="2"
    )

    outcome = place.json("run", "Look.", "--json")

    assert outcome["status"] == "done"
    assert outcome["answer"] == "Both were seen."
    assert list(faults.glob(f"{point}.*")), "no worker died there"
    logs = stored_logs(f"sqlite:///{place.data / 'team.db'}")
    assert_sound(logs)
    events = logs[outcome["session"]]
    summaries: list[dict[str, Any]] = [event.data for event in events if event.type == "session/compacted"]
    assert {summary["summary"] for summary in summaries} == {"What lead knows of: Look."}
    steps = [event.data["step"] for event in events if event.type == "step/start"]
    assert steps == [1, 2, 3]
    assert len(summaries) == 2
    assert all(summary["kept"][0]["content"][0]["text"] == "Look." for summary in summaries)

    usage = place.json("usage", outcome["session"], "--json")
    (lead,) = usage["sessions"]
    assert (lead["name"], lead["turns"], lead["steps"], lead["calls"], lead["compactions"]) == ("lead", 1, 3, 2, 2)
    assert lead["toolMs"] >= 200
    assert usage["budget"]["turns"] == 1
    assert "lead" in place.team("usage", outcome["session"]).stdout
    assert place.json("doctor", "--json")["ok"]
