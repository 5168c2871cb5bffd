"""Every fault of the broker and of the way to it, while people go on sending messages."""

import base64
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.celery import TURN_TASK, celery_app
from tests.faults.site import BROKER, Site, lasting
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

Fault = Callable[[Site, Callable[[], None]], None]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all faults: each must leave it as able as it was."""
    directory = tmp_path_factory.mktemp("broker-faults")
    broker = ValkeyProcess(directory)
    broker.start()
    made = Site(directory, f"sqlite:///{directory / 'data' / 'team.db'}", broker)
    yield made.start()
    made.close()
    broker.stop()


def command(site: Site, *words: str) -> None:
    client: Any = site.broker.client()
    try:
        client.execute_command(*words)
    finally:
        client.close()


def cut(site: Site) -> None:
    site.links.change(BROKER, "cut")
    site.links.change(BROKER, "open")


def cut_once(site: Site, meanwhile: Callable[[], None]) -> None:
    cut(site)
    meanwhile()


def cut_three_times(site: Site, meanwhile: Callable[[], None]) -> None:
    for _ in range(3):
        cut(site)
        lasting(0.9)
    meanwhile()


def away(seconds: float) -> Fault:
    def fault(site: Site, meanwhile: Callable[[], None]) -> None:
        site.links.change(BROKER, "cut")
        meanwhile()
        lasting(seconds)
        site.links.change(BROKER, "open")

    return fault


def half_open(site: Site, meanwhile: Callable[[], None]) -> None:
    """Packets are lost and nobody is told."""
    site.links.change(BROKER, "silent")
    meanwhile()
    lasting(7)
    site.links.change(BROKER, "open")


def cut_during_start(site: Site, meanwhile: Callable[[], None]) -> None:
    worker = site.workers["one"]
    begun = worker.log.read_text().count("worker greets")
    site.links.change(BROKER, "cut")
    site.restart(worker)
    wait_until(lambda: worker.log.read_text().count("worker greets") > begun, "it to start without a broker", 40)
    meanwhile()
    site.links.change(BROKER, "open")
    lasting(0.3)
    cut(site)


def killed_clients(kind: str) -> Fault:
    def fault(site: Site, meanwhile: Callable[[], None]) -> None:
        command(site, "CLIENT", "KILL", "TYPE", kind)
        meanwhile()

    return fault


def restarted(*, with_data: bool) -> Fault:
    def fault(site: Site, meanwhile: Callable[[], None]) -> None:
        if with_data:
            command(site, "SAVE")
        site.broker.kill()
        meanwhile()
        site.broker.start()
        (site.broker.directory / "dump.rdb").unlink(missing_ok=True)

    return fault


def emptied(site: Site, meanwhile: Callable[[], None]) -> None:
    site.broker.flush()
    meanwhile()
    site.broker.flush()


def bookkeeping_deleted(site: Site, meanwhile: Callable[[], None]) -> None:
    keys = [f"site:{name}" for name in ("turns", "unacked", "unacked_index", "_kombu.binding.turns")]
    command(site, "DEL", *keys)
    meanwhile()
    command(site, "DEL", *keys)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(cut_once, id="cut-once"),
        pytest.param(cut_three_times, id="cut-three-times-in-three-seconds"),
        pytest.param(away(5), id="away"),
        pytest.param(away(90), id="away-for-90-seconds", marks=pytest.mark.soak),
        pytest.param(half_open, id="half-open"),
        pytest.param(cut_during_start, id="cut-during-start"),
        pytest.param(killed_clients("normal"), id="normal-clients-killed"),
        pytest.param(killed_clients("pubsub"), id="pubsub-clients-killed"),
        pytest.param(restarted(with_data=True), id="restarted-with-data"),
        pytest.param(restarted(with_data=False), id="restarted-empty"),
        pytest.param(emptied, id="emptied-d03"),
        pytest.param(bookkeeping_deleted, id="bookkeeping-deleted-d03"),
    ],
)
def test_c01_every_message_sent_before_during_and_after_a_broker_fault_is_answered_once(
    site: Site, fault: Fault
) -> None:
    before, during = site.lead("before"), site.lead()
    site.answered(before, "before")
    # One whose turn is under way, or queued, when the fault strikes.
    site.say(before, "at once")
    fault(site, lambda: site.say(during, "during"))
    after = site.lead("after")
    site.answered(before, "at once")
    site.answered(during, "during")
    site.answered(after, "after")
    site.is_sound()


def test_c02_c13_a_turn_outlives_a_cut_broker_and_its_message_that_comes_again_runs_nothing(
    site: Site, tmp_path: Path
) -> None:
    """The broker forgets who took a message, or hands it out again: the claim in SQL decides."""
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    script = tmp_path / "long.yaml"
    script.write_text(f"""
version: 1
default:
  start: first
  states:
    first:
      calls:
      - {{tool: bash, args: {{command: "echo x >> {runs}; while [ ! -e {gate} ]; do sleep 0.1; done"}}}}
      next: over
    over: {{say: finished}}
""")
    body = {"cwd": str(site.checkout), "profile": "team", "model": f"script:{script}", "prompt": "go"}
    lead = site.post("/v1/sessions", **body)["id"]
    site.until(runs.exists, "the command", 30)
    turn = site.session(lead)["turn"]["id"]
    site.links.change(BROKER, "cut")
    lasting(3)
    site.links.change(BROKER, "open")
    producer = celery_app(site.broker.url, "site:")
    with producer.connection_for_write() as connection:
        for _ in range(4):
            producer.send_task(TURN_TASK, args=(turn,), queue="turns", connection=connection, retry=False)  # pyright: ignore[reportUnknownMemberType] -- Celery's signature is untyped
    producer.close()
    other = site.lead("meanwhile")
    site.answered(other, "meanwhile")
    gate.touch()
    wait_until(lambda: "finished" in site.said(lead), "the turn to end", 30)
    assert runs.read_text() == "x\n"
    assert [end["reason"] for end in site.events(lead, "turn/end")] == ["completed"]
    site.is_sound()


def test_c12_broker_messages_carry_ids_and_nothing_that_anybody_wrote(site: Site) -> None:
    site.supervised = False
    worker = site.workers["one"]
    worker.send(signal.SIGKILL)
    wait_until(lambda: worker.pid is None, "the worker to be gone")
    canary = "canary-in-a-prompt"
    lead = site.lead()
    client: Any = site.broker.client()
    try:
        leads = [lead, *(site.lead() for _ in range(3))]
        for session in leads:
            site.say(session, canary + " x" * 30_000)
        wait_until(lambda: client.llen("site:turns") >= len(leads), "the hints")
        messages: list[bytes] = client.lrange("site:turns", 0, -1)
        assert max(map(len, messages)) < 2_000
        assert not [message for message in messages if canary.encode() in base64_free(message)]
        assert not [key for key in client.keys("*") if b"result" in key or b"celery-task-meta" in key]
    finally:
        client.close()
        site.supervised = True
    for session in leads:
        wait_until(lambda session=session: site.said(session), "its answer", 40)


def base64_free(message: bytes) -> bytes:
    """A message with its body decoded."""
    body = json.loads(message)["body"]
    return message + base64.b64decode(body)
