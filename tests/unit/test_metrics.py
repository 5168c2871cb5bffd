"""Metrics: what is observed of a committed transaction, and what they cost."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from team.dispatch.metrics import REMEMBERED_EDGES, REMEMBERED_TEAMS, EdgeTimes, Metrics
from team.log.census import Census
from team.log.transaction import Claimed, Effects, Ended, Lost
from team.model.errors import StoreUnavailable
from team.model.ids import TeamId
from tests.support.runs import RUN

TEAM = TeamId("team-1")
EMPTY = Census(turns={}, teams=0, oldest_queued_seconds={}, waits={})


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and labels, as a scraper reads it."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def quiet() -> Metrics:
    return Metrics(lambda: EMPTY, dict[str, int])


def test_a_committed_transaction_is_counted() -> None:
    metrics = quiet()
    metrics(
        Effects(
            edges={TEAM: 3},
            claimed=[Claimed(RUN, "two", 2, 0.2)],
            ended=[Ended(RUN.session_id, RUN.turn_id, RUN, reason, None) for reason in ("completed", "error")],
            lost=[Lost(RUN, 1)],
            created=2,
            events=5,
            write_seconds=0.004,
        )
    )
    found = values(metrics)
    assert found["team_edges_total"] == 1
    assert found["team_claims_total queue=big"] == 1
    assert found["team_dispatch_seconds_sum queue=big"] == pytest.approx(0.2)
    assert found["team_turns_ended_total reason=error"] == 1
    assert found["team_leases_lost_total"] == 1
    assert found["team_sessions_created_total"] == 2
    assert found["team_events_total"] == 5
    assert found["team_append_seconds_count"] == 1
    assert found["team_append_seconds_bucket le=0.005"] == 1
    assert found["team_append_seconds_bucket le=0.002"] == 0


def test_a_transaction_that_appends_nothing_is_no_append() -> None:
    metrics = quiet()
    metrics(Effects(write_seconds=9.0))
    assert values(metrics)["team_append_seconds_count"] == 0


def test_wake_latency_is_counted_from_the_edge_that_ended_the_wait() -> None:
    now = [100.0]
    times = EdgeTimes(clock=lambda: now[0])
    times.committed(TEAM, 6)
    now[0] = 101.0
    times.committed(TEAM, 7)
    now[0] = 103.0
    assert times.since(TEAM, 5) == 3.0
    assert times.since(TEAM, 6) == 2.0
    assert times.since(TEAM, 7) is None
    assert times.since(TeamId("another"), 5) is None


def test_the_memory_of_edges_is_bounded() -> None:
    times = EdgeTimes(clock=lambda: 0.0)
    for counter in range(1, REMEMBERED_EDGES + 2):
        times.committed(TEAM, counter)
    assert times.since(TEAM, 0) is None
    assert times.since(TEAM, 1) == 0.0
    for number in range(REMEMBERED_TEAMS):
        times.committed(TeamId(f"t{number}"), 1)
    assert times.since(TEAM, REMEMBERED_EDGES) is None


def test_a_wake_by_an_edge_of_another_coordinator_is_not_measured() -> None:
    metrics = quiet()
    metrics(Effects(woken=[(TEAM, 4)]))
    assert values(metrics)["team_wake_seconds_count"] == 0
    metrics(Effects(edges={TEAM: 9}))
    metrics(Effects(woken=[(TEAM, 8)]))
    assert values(metrics)["team_wake_seconds_count"] == 1


def test_what_is_open_is_read_when_somebody_asks() -> None:
    census = Census(
        turns={("queued", "big"): 2, ("running", "turns"): 1},
        teams=2,
        oldest_queued_seconds={"big": 12.5},
        waits={"wait-agent": 3},
    )
    found = values(Metrics(lambda: census, lambda: {"turns": 4, "browser": 1}))
    assert found["team_turns queue=big state=queued"] == 2
    assert found["team_turns queue=big state=running"] == 0
    assert found["team_oldest_queued_seconds queue=big"] == 12.5
    assert found["team_workers queue=big"] == 0
    assert found["team_workers queue=browser"] == 1
    assert found["team_waits kind=wait-agent"] == 3
    assert found["team_active_teams"] == 2
    assert found["team_store_up"] == 1


def test_a_database_that_is_away_is_told_and_hides_no_counter() -> None:
    def away() -> Census:
        raise StoreUnavailable("away")

    metrics = Metrics(away, dict[str, int])
    metrics(Effects(events=1))
    found = values(metrics)
    assert found["team_store_up"] == 0
    assert found["team_events_total"] == 1
    assert not [name for name in found if name.startswith("team_turns ")]


def test_a_request_is_measured_by_its_template() -> None:
    metrics = quiet()
    metrics.answered("GET", "/v1/sessions/{session_id}", 200, 0.01)
    assert values(metrics)["team_http_seconds_count method=GET route=/v1/sessions/{session_id} status=200"] == 1
