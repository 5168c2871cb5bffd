"""Whoever can write to the broker makes a worker do nothing that SQL does not say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.celery import TURN_TASK, celery_app
from tests.support.fake_turns import last_text
from tests.support.valkey import ValkeyProcess
from tests.support.worker_process import PREFIX, Fleet


@pytest.fixture
def fleet(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Fleet]:
    made = Fleet(tmp_path, valkey)
    made.coordinator.start()
    yield made
    made.close()


class Exploit:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self._path,)


def test_d01_forged_and_unknown_tasks_do_nothing_and_harm_nobody(fleet: Fleet) -> None:
    worker = fleet.worker("one").ready()
    app: Any = celery_app(fleet.broker.url, PREFIX)
    touched = fleet.directory / "touched"
    queue = "turns"
    app.send_task(TURN_TASK, args=("turn-of-nobody",), queue=queue)
    app.send_task(TURN_TASK, args=(), kwargs={"turn_id": "turn-of-nobody", "surplus": 1}, queue=queue)
    app.send_task(TURN_TASK, args=({"a": "turn-of-nobody"},), queue=queue)
    app.send_task("os.system", args=(f"touch {touched}",), queue=queue)
    app.send_task("celery.backend_cleanup", queue=queue)
    app.send_task(TURN_TASK, args=(Exploit(touched),), queue=queue, serializer="pickle")
    app.close()

    # Behind all of them in the same queue.
    turn = fleet.turns.begin("go", model=fleet.script("first: {say: still here}"))
    assert last_text(fleet.ended(turn)) == "still here"
    assert not touched.exists()
    assert worker.process.poll() is None
