"""``/metrics`` of a real coordinator: what a turn, a wake and a request leave in it."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def coordinator(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    variables = {"TEAM_BROKER_URL": valkey_server.url, "TEAM_KEY_PREFIX": "metrics:"}
    process = CoordinatorProcess(tmp_path_factory.mktemp("metrics"), "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


def samples(coordinator: CoordinatorProcess) -> dict[str, float]:
    response = coordinator.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_a_turn_a_wait_and_its_wake_are_seen(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    found = samples(coordinator)
    assert found["team_turns queue=turns state=queued"] == 1
    assert found["team_workers queue=turns"] == 0
    assert coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p").is_success
    worker = ManualWorker(coordinator, team)
    beat = {"worker": "manual", "slots": 2, "queues": ["turns"], "claims": []}
    assert coordinator.worker("heartbeat", beat).is_success
    worker.boundary()
    worker.call("wait_agent", '{"timeout_ms": 600000}')
    assert worker.boundary() == "parked"
    found = samples(coordinator)
    assert found["team_waits kind=wait-agent"] == 1
    assert found["team_turns queue=turns state=parked"] == 1
    assert found["team_workers queue=turns"] == 1
    assert coordinator.tool(team, "bob", "team_task_create", subject="s", description="d").is_success
    wait_until(lambda: samples(coordinator)["team_wake_seconds_count"] == 1, "the wake", 20)
    again = ManualWorker(coordinator, team)
    again.boundary()
    again.say("done")
    assert again.boundary() == "ended"
    found = samples(coordinator)
    assert found["team_claims_total queue=turns"] == 2
    assert found["team_dispatch_seconds_count queue=turns"] == 2
    assert found["team_turns_ended_total reason=completed"] == 1
    assert found["team_edges_total"] >= 3
    assert found["team_append_seconds_count"] >= 5
    assert found["team_sessions_created_total"] == 2


def test_requests_are_counted_by_template_and_strange_ones_make_no_series(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    coordinator.client.get(f"/v1/sessions/{team}")
    for number in range(5):
        coordinator.client.request("PROPFIND", f"/nowhere/{number}")
    found = samples(coordinator)
    assert found["team_http_seconds_count method=GET route=/v1/sessions/{session_id} status=200"] >= 1
    counted = [name for name in found if name.startswith("team_http_seconds_count")]
    assert [name for name in counted if "unknown" in name] == [
        "team_http_seconds_count method=unknown route=unknown status=404"
    ]
    assert not [name for name in counted if team in name or "nowhere" in name]
