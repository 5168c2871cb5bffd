"""Parked waits wake through pub/sub, through the sweep without it, and at their deadline without either."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

Start = Callable[..., CoordinatorProcess]


@pytest.fixture
def start(tmp_path: Path, postgres_url: str, valkey: ValkeyProcess) -> Iterator[Start]:
    """Starts coordinators on one database and one broker."""
    started: list[CoordinatorProcess] = []

    def start(name: str, **variables: str) -> CoordinatorProcess:
        chosen = {"TEAM_DATABASE_URL": postgres_url, "TEAM_BROKER_URL": valkey.url, **variables}
        started.append(CoordinatorProcess(tmp_path, name, chosen))
        return started[-1].ready()

    yield start
    for process in started:
        assert process.stop() == 0, process.log


def parked_lead(coordinator: CoordinatorProcess, timeout_ms: int = 600_000) -> str:
    """A Lead that is parked in wait_agent while its teammate has an open turn; the Team's id."""
    team = coordinator.lead("begin")
    lead = ManualWorker(coordinator)
    assert lead.boundary() == "step"
    lead.call("spawn_teammate", '{"name":"bob","description":"b","prompt":"p"}')
    assert lead.boundary() == "step"
    assert lead.call("wait_agent", f'{{"timeout_ms":{timeout_ms}}}')["state"] == "waiting"
    assert lead.boundary() == "parked"
    return team


def state_of(coordinator: CoordinatorProcess, team: str) -> str:
    return coordinator.member(team, "lead")["turn"]["state"]


def raise_edge(coordinator: CoordinatorProcess, team: str) -> None:
    response = coordinator.tool(team, "bob", "team_task_create", subject="s", description="d")
    assert response.status_code == httpx2.codes.OK, response.text


def test_p01_with_the_sweep_off_the_edge_of_a_second_coordinator_wakes_through_pubsub(start: Start) -> None:
    first = start("first", TEAM_SWEEP_SECONDS="0")
    second = start("second", TEAM_SWEEP_SECONDS="0")
    team = parked_lead(first)
    raise_edge(second, team)
    wait_until(lambda: state_of(first, team) == "queued", "the parked Lead to be queued")
    resumed = ManualWorker(second)
    assert resumed.claim["member"] in {"lead", "bob"}


def test_p01_with_pubsub_cut_the_sweep_wakes_a_parked_wait(start: Start) -> None:
    cut = start("cut", TEAM_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0", TEAM_SWEEP_SECONDS="0.2")
    team = parked_lead(cut)
    raise_edge(cut, team)
    wait_until(lambda: state_of(cut, team) == "queued", "the sweep to find the missed edge")


def test_p03_without_pubsub_and_sweep_an_edge_is_not_lost_when_the_sweep_comes_back(start: Start) -> None:
    deaf = start("deaf", TEAM_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0", TEAM_SWEEP_SECONDS="0")
    team = parked_lead(deaf)
    raise_edge(deaf, team)
    assert state_of(deaf, team) == "parked"
    assert deaf.stop() == 0
    again = start("again", TEAM_SWEEP_SECONDS="0.2")
    wait_until(lambda: state_of(again, team) == "queued", "the missed edge to be found")


def test_w01_a_deadline_needs_neither_broker_nor_sweep_and_outlives_a_coordinator(start: Start) -> None:
    broken = {"TEAM_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0", "TEAM_SWEEP_SECONDS": "0"}
    first = start("first", **broken)
    team = parked_lead(first, 10_000)
    assert first.stop() == 0
    second = start("second", **broken)
    wait_until(lambda: state_of(second, team) == "queued", "the deadline to pass", 20)
    events = second.client.get(f"/v1/sessions/{team}/events").json()["events"]
    results = [event["data"]["content"] for event in events if event["type"] == "tool/result"]
    assert results[-1] == '{"timedOut":true}'
