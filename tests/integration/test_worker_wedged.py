"""A worker that is alive but does nothing any more: its claims go to another one, and it is replaced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from team.model.history import ToolResultEntry
from tests.support.fake_turns import FakeTurn, last_text
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import Fleet, WorkerProcess, processes_with

WEDGED_EXIT: Final = 70


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey, lease_seconds=2.0)
    made.coordinator.start()
    yield made
    made.close()


def hanging(fleet: Fleet, tool: str, **settings: str) -> tuple[WorkerProcess, FakeTurn]:
    """A worker and a turn that hangs in ``tool`` beside a command."""
    arguments = "{pattern: x}"
    command = f"while [ ! -e {fleet.directory}/never ]; do sleep 0.1; done"
    script = fleet.script(f"""
first:
  calls:
  - {{tool: bash, args: {{command: "{command}", timeout_ms: 600000}}}}
  next: second
second:
  say: finished
""")
    beside = fleet.turns.begin("go", model=script)
    program = ("-m", "tests.support.wedging_worker")
    worker = WorkerProcess("wedged", fleet.directory, fleet.settings(DRAIN_SECONDS="1", **settings), program)
    fleet.workers.append(worker.ready())
    wait_until(lambda: processes_with(f"{fleet.directory}/never"), "the command beside it", 20)
    stuck = fleet.turns.begin(
        "go",
        model=fleet.script(f"first: {{calls: [{{tool: {tool}, args: {arguments}}}], next: over}}\nover: {{say: done}}"),
        member="other",
    )
    wait_until(lambda: beside.status == "running" and stuck.answered, "the call that hangs", 20)
    return worker, stuck


def test_w08_a_worker_whose_event_loop_stands_still_ends_and_its_turn_goes_on_elsewhere(fleet: Fleet) -> None:
    worker, stuck = hanging(fleet, "glob", STALL_SECONDS="2")
    assert worker.code(30) == WEDGED_EXIT
    assert "event loop stands still" in worker.log
    assert "wedging_worker.py" in worker.log, "the log must show where it hangs"
    wait_until(lambda: not processes_with(f"{fleet.directory}/never"), "the end of its commands")

    fleet.worker("two").ready()
    fleet.ended(stuck)
    assert stuck.workers == ["wedged", "two"]
    assert [entry.outcome for entry in results(stuck)] == ["error"], "it may be repeated: it only reads"
    assert last_text(stuck) == "done"


def test_w08_an_operation_beyond_its_bound_costs_its_claim_and_replaces_the_worker(fleet: Fleet) -> None:
    worker, stuck = hanging(fleet, "grep")
    assert worker.code(30) == WEDGED_EXIT
    assert "operation beyond its bound" in worker.log

    fleet.worker("two").ready()
    fleet.ended(stuck)
    assert stuck.workers == ["wedged", "two"]
    assert last_text(stuck) == "done"


def results(turn: FakeTurn) -> list[ToolResultEntry]:
    return [entry for entry in turn.session.history if isinstance(entry, ToolResultEntry)]
