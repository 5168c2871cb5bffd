"""What the broker may do to a worker: end, forget everything, or leave it deaf."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from config.celery import celery_app
from tests.support.fake_turns import last_text
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import PREFIX, Fleet


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey)
    made.coordinator.start()
    yield made
    made.close()


def test_c13_work_goes_on_after_a_broker_restart_even_where_the_worker_itself_must_be_restarted(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    script = fleet.script(f"""
first:
  calls:
  - {{tool: bash, args: {{command: "touch {fleet.directory}/began; while [ ! -e {gate} ]; do sleep 0.05; done"}}}}
  next: over
over: {{say: finished}}
""")
    worker = fleet.worker("one", LIVENESS_SECONDS="4").ready()
    running = fleet.turns.begin("go", model=script)
    wait_until((fleet.directory / "began").exists, "the command", 20)

    fleet.broker.kill()
    gate.touch()
    # The running turn needs no broker.
    assert last_text(fleet.ended(running)) == "finished"
    fleet.broker.start()
    waiting = fleet.turns.begin("next", model=fleet.script("first: {say: after}"), member="other")

    def supervised() -> bool:
        if worker.process.poll() is not None and len(fleet.workers) == 1:
            fleet.worker("two")
        return waiting.status == "ended"

    wait_until(supervised, "the next turn to end", 60)
    assert last_text(waiting) == "after"


def test_c01_a_broker_that_stays_away_does_not_end_the_worker(fleet: Fleet) -> None:
    worker = fleet.worker("one", LIVENESS_SECONDS="2").ready()
    fleet.broker.kill()
    wait_until(lambda: worker.log.count("broker away") >= 4, "four checks without a verdict", 30)
    assert worker.process.poll() is None
    assert "own ping did not arrive" not in worker.log
    fleet.broker.start()
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: after}"))
    fleet.ended(turn, 60)
    assert worker.process.poll() is None


def test_d07_a_worker_stops_when_it_is_asked_to_while_the_broker_is_away(fleet: Fleet) -> None:
    worker = fleet.worker("one", DRAIN_SECONDS="1").ready()
    fleet.broker.kill()
    wait_until(lambda: "broker" in worker.log.lower() or "connection" in worker.log.lower(), "it to notice", 20)
    worker.terminate()
    assert worker.code(20) == 0
    fleet.broker.start()


def test_d03_a_store_that_was_emptied_loses_no_queued_turn(fleet: Fleet) -> None:
    gate = fleet.directory / "gate"
    script = fleet.script(f"""
first:
  calls:
  - {{tool: bash, args: {{command: "touch {fleet.directory}/began; while [ ! -e {gate} ]; do sleep 0.05; done"}}}}
  next: over
over: {{say: finished}}
""")
    fleet.worker("one", SLOTS="1").ready()
    first = fleet.turns.begin("go", model=script)
    wait_until((fleet.directory / "began").exists, "the command", 20)
    # Nothing publishes a second hint: the slot that becomes free must find the turns in SQL.
    fleet.coordinator.dispatch = None
    others = [fleet.turns.begin("go", model=fleet.script("first: {say: after}"), member=f"m{n}") for n in range(3)]
    fleet.broker.flush()
    gate.touch()
    for turn in (first, *others):
        fleet.ended(turn)


def test_c01_a_deaf_worker_hands_its_turn_over_and_ends_itself(fleet: Fleet) -> None:
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: late, think_ms: 600000}"))
    worker = fleet.worker("one", LIVENESS_SECONDS="0.6").ready()
    wait_until(lambda: turn.step_open, "the model request", 20)
    app = celery_app(fleet.broker.url, PREFIX)
    with app.connection_for_write() as connection:
        control: Any = app.control
        replies = cast("list[dict[str, list[dict[str, str]]]]", control.inspect(connection=connection).active_queues())
        node, queues = next(iter(cast("dict[str, list[dict[str, str]]]", replies).items()))
        private = next(queue["name"] for queue in queues if queue["name"].startswith("ping."))
        # Celery stays up and its other queues are served; only the path to this worker is cut.
        control.cancel_consumer(private, destination=[node], connection=connection)
    app.close()

    assert worker.code(30) == 70
    assert "did not reach this worker" in worker.log
    assert (turn.status, turn.releases) == ("queued", 1)
