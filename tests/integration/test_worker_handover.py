"""The end of a worker in mid-turn: asked to stop, or killed at any point of a step."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from team.model.history import ToolResultEntry
from tests.support.fake_turns import FakeTurn, last_text
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import PREFIX, Fleet, processes_with


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey, lease_seconds=2.0)
    made.coordinator.start()
    yield made
    made.close()


def results(turn: FakeTurn) -> list[ToolResultEntry]:
    return [entry for entry in turn.session.history if isinstance(entry, ToolResultEntry)]


BASH = """
first:
  calls:
  - {{tool: bash, args: {{command: '{command}'}}}}
  next: over
over: {{say: finished}}
"""


def test_an_idle_worker_stops_at_once_and_leaves_no_key(fleet: Fleet) -> None:
    worker = fleet.worker("one", LIVENESS_SECONDS="0.4").ready()
    wait_until(lambda: fleet.turns.beats, "a heartbeat")
    worker.terminate()
    assert worker.code(10) == 0
    client: Any = fleet.broker.client()  # untyped library
    assert client.keys(f"{PREFIX}ping.*") == []
    assert client.keys(f"{PREFIX}_kombu.binding.ping*") == []
    client.close()


def test_c09_a_hand_over_finishes_the_step_and_another_worker_takes_the_turn_at_once(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    command = f"echo x >> {fleet.directory}/runs; while [ ! -e {gate} ]; do sleep 0.05; done"
    turn = fleet.turns.begin("go", model=fleet.script(BASH.format(command=command)))
    first = fleet.worker("one").ready()
    wait_until((fleet.directory / "runs").exists, "the command", 20)
    first.terminate()
    wait_until(lambda: "worker hands over" in first.log, "the hand-over to begin")
    second = fleet.worker("two").ready()
    gate.touch()

    fleet.ended(turn)
    assert first.code() == 0
    assert turn.workers == ["one", "two"]
    assert (turn.releases, turn.losses) == (1, 0)
    assert [entry.outcome for entry in results(turn)] == ["ok"]
    assert (fleet.directory / "runs").read_text() == "x\n"
    assert second.process.poll() is None


def test_c09_a_model_request_that_outlasts_the_drain_is_cancelled_and_its_turn_released(fleet: Fleet) -> None:
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: late, think_ms: 600000}"))
    worker = fleet.worker("one", DRAIN_SECONDS="0.5").ready()
    wait_until(lambda: turn.step_open, "the model request", 20)
    worker.terminate()
    assert worker.code(15) == 0
    assert (turn.status, turn.releases, turn.losses) == ("queued", 1, 0)
    assert turn.step_open
    assert not turn.answered


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_c09_d07_every_signal_to_stop_hands_over_and_the_same_one_again_does_not_wait(
    fleet: Fleet, number: signal.Signals
) -> None:
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: late, think_ms: 600000}"))
    worker = fleet.worker("one", DRAIN_SECONDS="600").ready()
    wait_until(lambda: turn.step_open, "the model request", 20)
    worker.process.send_signal(number)
    wait_until(lambda: "worker hands over" in worker.log, "the hand-over to begin")
    worker.process.send_signal(number)
    assert worker.code(15) == 0
    assert (turn.status, turn.releases) == ("queued", 1)


def test_c09_a_command_that_outlasts_the_drain_is_ended_and_its_outcome_unknown(fleet: Fleet) -> None:
    marker = f"{fleet.directory}/never"
    turn = fleet.turns.begin(
        "go", model=fleet.script(BASH.format(command=f"while [ ! -e {marker} ]; do sleep 0.1; done"))
    )
    first = fleet.worker("one", DRAIN_SECONDS="0.5").ready()
    wait_until(lambda: processes_with(marker), "the command", 20)
    first.terminate()
    assert first.code(15) == 0
    assert not processes_with(marker)
    assert [entry.outcome for entry in results(turn)] == ["unknown"]
    assert (turn.status, turn.releases) == ("queued", 1)

    fleet.worker("two").ready()
    fleet.ended(turn)
    assert last_text(turn) == "finished"


def test_c04_a_killed_workers_turn_goes_on_elsewhere_after_its_lease(fleet: Fleet) -> None:
    marker = f"{fleet.directory}/never"
    turn = fleet.turns.begin(
        "go", model=fleet.script(BASH.format(command=f"while [ ! -e {marker} ]; do sleep 0.1; done"))
    )
    first = fleet.worker("one").ready()
    wait_until(lambda: processes_with(marker), "the command", 20)
    first.kill()
    wait_until(lambda: not processes_with(marker), "the end of the killed worker's command")

    fleet.worker("two").ready()
    fleet.ended(turn)
    assert turn.workers == ["one", "two"]
    assert turn.losses == 1
    assert [entry.outcome for entry in results(turn)] == ["unknown"]
    assert last_text(turn) == "finished"


EVERY_KIND = """
first:
  calls:
  - {tool: write, args: {path: notes.txt, content: "text"}}
  - {tool: list_agents, args: {}}
  next: over
over: {say: finished}
"""


@pytest.mark.parametrize(
    "point",
    [
        "after-claim:1",
        "before-boundary:1",
        "after-boundary:1",
        "before-answer-post:1",
        "after-answer-post:1",
        "in-tool:1",
        "after-intent:1",
        "before-result-post:1",
        "after-answer-post:2",
        "before-boundary:3",
    ],
)
def test_l03_s08_a_worker_killed_at_any_point_loses_and_repeats_nothing(fleet: Fleet, point: str) -> None:
    fleet.turns.tools["list_agents"] = lambda arguments: "[]"
    turn = fleet.turns.begin("go", model=fleet.script(EVERY_KIND))
    first = fleet.worker("one", FAULT_POINTS=point)
    assert first.code() == -9

    fleet.worker("two").ready()
    fleet.ended(turn)

    assert (turn.reason, last_text(turn)) == ("completed", "finished")
    assert turn.workers == ["one", "two"]
    assert sorted(entry.index for entry in results(turn)) == [0, 1]
    assert len(fleet.turns.tool_runs) == 1
    answers = [item.body for item in fleet.coordinator.requests if item.verb == "answer"]
    assert len({getattr(answer, "step", 0) for answer in answers}) == 2
