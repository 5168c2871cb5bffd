"""Turns on real worker processes: Celery, a broker, real HTTP; the coordinator is the in-memory one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from team.model.claims import ClaimRequest, ResultRequest
from team.model.history import ToolResultEntry
from tests.support.fake_coordinator import Fault
from tests.support.fake_turns import WAITING, FakeTurn, last_text
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import PREFIX, Fleet, WorkerProcess, processes_with


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey)
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


def test_a_turn_runs_to_its_end_and_the_next_one_reuses_the_history(fleet: Fleet) -> None:
    model = fleet.script("""
first:
  calls:
  - {tool: write, args: {path: notes.txt, content: "canary-of-the-file\\n"}}
  - {tool: list_agents, args: {}}
  next: second
second:
  calls:
  - {tool: bash, args: {command: "cat notes.txt; echo $TEAM_WORKER_TOKEN$OPENAI_API_KEY-"}}
  next: over
over:
  say: finished
  on_message: again
again: {say: finished again}
""")
    fleet.turns.tools["list_agents"] = lambda arguments: "[]"
    worker = fleet.worker("one", SLOTS="1").ready()

    turn = fleet.ended(fleet.turns.begin("canary-of-the-prompt", model=model))

    assert (turn.reason, last_text(turn)) == ("completed", "finished"), (turn.code, turn.message, worker.log)
    assert (fleet.root / "notes.txt").read_text() == "canary-of-the-file\n"
    assert [entry.outcome for entry in results(turn)] == ["ok", "ok", "ok"]
    assert "canary-of-the-file" in results(turn)[-1].content
    assert turn.session.files["notes.txt"].version is not None

    again = fleet.ended(fleet.turns.prompt(turn.session, "more"))
    assert (again.reason, last_text(again)) == ("completed", "finished again")
    claims = [item.body for item in fleet.coordinator.requests if isinstance(item.body, ClaimRequest)]
    assert any(claim.known.get("session-1", 0) > 0 for claim in claims)
    # No message text, no secret: ids only.
    assert "canary" not in worker.log
    assert "token-of-the-workers" not in worker.log
    for identifier in (turn.turn_id, "session-1", "member", "worker='one'"):
        assert identifier in worker.log


def test_slots_run_turns_at_the_same_time_and_more_wait_for_a_slot(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    command = f"touch {fleet.directory}/began-$$; while [ ! -e {gate} ]; do sleep 0.05; done"
    model = fleet.script(BASH.format(command=command))
    fleet.worker("one", SLOTS="2").ready()
    turns = [fleet.turns.begin("go", model=model, member=f"m{number}") for number in range(3)]

    wait_until(lambda: len(list(fleet.directory.glob("began-*"))) == 2, "two turns in bash", 20)
    assert sorted(turn.status for turn in turns) == ["queued", "running", "running"]
    gate.touch()
    for turn in turns:
        fleet.ended(turn)


def test_c10_a_parked_turn_holds_no_slot(fleet: Fleet) -> None:
    fleet.turns.tools["wait_agent"] = lambda arguments: WAITING
    waits = fleet.script("first: {calls: [{tool: wait_agent, args: {}}], next: over}\nover: {say: woken}")
    works = fleet.script("first: {say: worked}")
    fleet.worker("one", SLOTS="1").ready()
    waiting = fleet.turns.begin("wait", model=waits)
    wait_until(lambda: waiting.status == "parked", "the parked turn", 20)

    fleet.ended(fleet.turns.begin("work", model=works, member="other"))

    fleet.turns.resolve(waiting, "{}")
    assert last_text(fleet.ended(waiting)) == "woken"


def test_streamed_text_is_published_with_its_place(fleet: Fleet) -> None:
    client: Any = fleet.broker.client()  # untyped library
    subscription: Any = client.pubsub()
    subscription.subscribe(f"{PREFIX}delta:session-1")
    fleet.worker("one").ready()
    turn = fleet.ended(fleet.turns.begin("go", model=fleet.script("first: {say: words of the answer}")))

    texts: list[str] = []

    def arrived() -> bool:
        message = subscription.get_message(ignore_subscribe_messages=True)
        if message is not None:
            delta = cast("dict[str, Any]", json.loads(message["data"]))
            assert (delta["turnId"], delta["epoch"], delta["step"], delta["attempt"]) == (turn.turn_id, 1, 1, 1)
            texts.append(delta["text"])
        return "".join(texts) == last_text(turn)

    wait_until(arrived, "the text")
    subscription.close()
    client.close()


def test_w08_an_interrupt_ends_bash_and_is_confirmed(fleet: Fleet) -> None:
    marker = f"{fleet.directory}/never"
    turn = fleet.turns.begin(
        "go", model=fleet.script(BASH.format(command=f"while [ ! -e {marker} ]; do sleep 0.1; done"))
    )
    worker = fleet.worker("one").ready()
    wait_until(lambda: processes_with(marker), "the command", 20)

    fleet.turns.interrupt(turn)

    wait_until(lambda: not processes_with(marker), "the end of the command")
    wait_until(lambda: [held.turn_id for held in fleet.turns.stopped] == [turn.turn_id], "the confirmation")
    assert worker.process.poll() is None
    assert [entry.content for entry in results(turn)] == ["interrupted"]
    assert not [item for item in fleet.coordinator.requests if isinstance(item.body, ResultRequest)]
    fleet.ended(fleet.turns.begin("next", model=fleet.script("first: {say: next}"), member="other"))


def test_w08_an_interrupt_ends_a_silent_model_request(fleet: Fleet) -> None:
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: late, think_ms: 600000}"))
    fleet.worker("one").ready()
    wait_until(lambda: turn.step_open, "the model request", 20)

    fleet.turns.interrupt(turn)

    wait_until(lambda: [held.turn_id for held in fleet.turns.stopped] == [turn.turn_id], "the confirmation")


def test_w08_a_fenced_worker_writes_nothing_more_and_the_next_claim_goes_on(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    command = f"echo x >> {fleet.directory}/runs; while [ ! -e {gate} ]; do sleep 0.05; done"
    turn = fleet.turns.begin("go", model=fleet.script(BASH.format(command=command)))
    fleet.worker("one", SLOTS="1").ready()
    wait_until((fleet.directory / "runs").exists, "the command", 20)

    fleet.turns.fence(turn)
    gate.touch()

    fleet.ended(turn)
    assert (fleet.directory / "runs").read_text() == "x\n"
    assert [entry.outcome for entry in results(turn)] == ["unknown"]
    posted = [item.body.epoch for item in fleet.coordinator.requests if isinstance(item.body, ResultRequest)]
    assert posted[-1] > 1


def test_r05_a_restart_of_the_coordinator_in_mid_turn_is_outlived(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    command = f"echo x >> {fleet.directory}/runs; while [ ! -e {gate} ]; do sleep 0.05; done"
    turn = fleet.turns.begin("go", model=fleet.script(BASH.format(command=command)))
    worker = fleet.worker("one").ready()
    wait_until((fleet.directory / "runs").exists, "the command", 20)

    fleet.coordinator.stop()
    gate.touch()
    wait_until(lambda: "heartbeat not answered" in worker.log, "the worker to notice")
    fleet.coordinator.start()

    fleet.ended(turn)
    assert turn.epoch == 1
    assert [entry.outcome for entry in results(turn)] == ["ok"]
    assert (fleet.directory / "runs").read_text() == "x\n"


def test_a_claim_that_cannot_be_renewed_lapses_and_its_command_ends(fleet: Fleet) -> None:
    marker = f"{fleet.directory}/never"
    turn = fleet.turns.begin(
        "go", model=fleet.script(BASH.format(command=f"while [ ! -e {marker} ]; do sleep 0.1; done"))
    )
    worker = fleet.worker("one").ready()
    wait_until(lambda: processes_with(marker), "the command", 20)

    fleet.coordinator.stop()

    wait_until(lambda: not processes_with(marker), "the end of the command")
    wait_until(lambda: "why='lapsed'" in worker.log, "the lapse in the log")
    fleet.coordinator.start()
    fleet.ended(turn)
    assert turn.epoch == 2
    assert [entry.outcome for entry in results(turn)] == ["unknown"]


def test_a_checkout_that_changes_under_a_worker_ends_it_and_leaves_the_turn_to_others(fleet: Fleet) -> None:
    worker = fleet.worker("one").ready()
    fleet.turns.workspace_id = "another workspace"
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: over}"))
    refused(worker, "another workspace")
    assert (turn.status, turn.step, turn.losses) == ("queued", 0, 0)


def test_a_claim_that_is_answered_too_late_is_given_back(fleet: Fleet) -> None:
    fault = fleet.coordinator.fault(Fault("claim", "slow", seconds=fleet.turns.lease_seconds * 0.85))
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: over}"))
    fleet.worker("one").ready()
    fleet.ended(turn)
    assert fault.used == 1
    assert (turn.releases, turn.losses, turn.epoch) == (1, 0, 2)


def test_l05_a_worker_that_starts_before_the_coordinator_waits_for_it(fleet: Fleet) -> None:
    fleet.coordinator.stop()
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: over}"))
    worker = fleet.worker("one")
    wait_until(lambda: "waiting for the coordinator" in worker.log, "the worker to say that it waits", 20)
    fleet.coordinator.start()
    fleet.ended(turn)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"WORKER_TOKEN": "another"}, "worker token"),
        ({"WORKER_TOKEN": ""}, "TEAM_WORKER_TOKEN"),
        ({"BROKER_URL": "amqp://127.0.0.1"}, "TEAM_BROKER_URL"),
        ({"BROKER_URL": ""}, "TEAM_BROKER_URL"),
        ({"WORKSPACE_ROOT": "/"}, "TEAM_WORKSPACE_ROOT"),
        ({"SLOTS": "0"}, "TEAM_SLOTS"),
        ({"PROVIDER_KEYS_FILE": "/nonexistent/keys"}, "TEAM_PROVIDER_KEYS_FILE"),
        ({"FAULT_POINTS": "nowhere"}, "TEAM_FAULT_POINTS"),
    ],
)
def test_a_wrong_configuration_is_one_sentence_and_code_2(fleet: Fleet, changes: dict[str, str], words: str) -> None:
    refused(fleet.worker("one", **changes), words)


def test_another_checkout_at_the_same_path_is_one_sentence_and_code_2(fleet: Fleet) -> None:
    (fleet.root / ".team" / "workspace-id").write_text("another workspace\n")
    refused(fleet.worker("one"), "workspace")


def refused(worker: WorkerProcess, words: str) -> None:
    assert worker.code() == 2
    lines = [line for line in worker.log.splitlines() if line.startswith("worker: ")]
    complaints = [line for line in lines if "Warm shutdown" not in line]  # Celery's word to the terminal
    assert len(complaints) == 1, worker.log
    assert words in complaints[0]
    assert "Traceback" not in worker.log


def test_keys_and_credentials_do_not_reach_a_command(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-canary")
    turn = fleet.turns.begin("go", model=fleet.script(BASH.format(command="env; echo end")))
    fleet.worker("one").ready()
    fleet.ended(turn)
    content = results(turn)[0].content
    assert "end" in content
    for secret in ("key-canary", "token-of-the-workers", os.fspath(fleet.broker.url)):
        assert secret not in content
