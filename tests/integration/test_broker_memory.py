"""A broker that may drop the queue, or that is full: it is told, and nothing depends on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import CoordinatorProcess
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

KEY = "test:turns"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    """A client of a server of its own: its memory is limited here."""
    server = ValkeyProcess(tmp_path)
    server.start()
    client: Any = server.client()
    client.url = server.url
    yield client
    client.close()
    server.stop()


@pytest.mark.parametrize(("policy", "warned"), [("allkeys-lru", True), ("volatile-ttl", True), ("noeviction", False)])
def test_d03_a_coordinator_warns_of_a_broker_that_may_evict_the_queue(
    tmp_path: Path, broker: Any, policy: str, warned: bool
) -> None:
    broker.config_set("maxmemory-policy", policy)
    process = CoordinatorProcess(tmp_path, "one", {"TEAM_BROKER_URL": broker.url, "TEAM_KEY_PREFIX": "test:"}).ready()
    process.lead("go")
    wait_until(lambda: broker.llen(KEY), "the first hint")
    assert process.stop() == 0, process.log
    assert ("broker may drop queued hints" in process.log) is warned
    assert (f"policy='{policy}'" in process.log) is warned


def test_d03_hints_that_a_full_broker_refuses_are_sent_once_there_is_room(tmp_path: Path, broker: Any) -> None:
    variables = {
        "TEAM_BROKER_URL": broker.url,
        "TEAM_KEY_PREFIX": "test:",
        "TEAM_SWEEP_SECONDS": "0.2",
        "TEAM_DISPATCH_BACKOFF_SECONDS": "0.3",
        "TEAM_DISPATCH_BACKOFF_MAX_SECONDS": "600",
    }
    process = CoordinatorProcess(tmp_path, "one", variables).ready()
    broker.config_set("maxmemory", "1")
    leads = [process.lead("go") for _ in range(3)]
    wait_until(lambda: process.log.count("cannot do its work") or None, "the sweep to be refused", 20)
    refused = broker.info("stats").get("total_error_replies", 0)
    # Many more refusals than a growing back-off would allow.
    wait_until(lambda: broker.info("stats")["total_error_replies"] >= refused + 6, "it to try again and again", 20)
    assert broker.llen(KEY) == 0
    assert all(process.client.get(f"/v1/sessions/{lead}").json()["turn"]["state"] == "queued" for lead in leads)
    broker.config_set("maxmemory", "0")
    wait_until(lambda: broker.llen(KEY) >= len(leads), "all three to be sent", 10)
    assert process.stop() == 0, process.log
