"""The database's clock may be stepped: nothing ends too early on SQLite, and nothing lasts longer than it may."""

import time
from typing import Any

import pytest

from team.service.recovery import CLOCK_SLACK_SECONDS, LONGEST_WAIT_SECONDS
from tests.integration.conftest import MakeCore
from tests.support.core import Core

DAY = 86_400.0


def times(core: Core) -> dict[str, float]:
    """Seconds from now of what a lead that runs, a member that waits and one that is queued have ahead of them."""

    def find(connection: Any) -> dict[str, float]:
        now = core.database.now(connection)
        queries = {
            "lease": "SELECT max(lease_until) FROM run",
            "dispatch": "SELECT max(next_dispatch_at) FROM run",
            "deadline": "SELECT max(deadline) FROM wait",
        }
        return {name: connection.exec_driver_sql(query).scalar_one() - now for name, query in queries.items()}

    return core.reading(find)


def test_what_a_clock_that_went_back_left_in_the_future_is_brought_back_once(make_core: MakeCore) -> None:
    core = make_core(lease_seconds=15, dispatch_backoff_max_seconds=60)
    lead = core.lead("go")
    bob = core.spawn(lead, "bob")
    core.spawn(lead, "carol")
    core.agent(lead).begin()
    waiter = core.agent(bob)
    waiter.begin()
    assert waiter.wait() == "parked"
    before = times(core)
    assert core.recovery.bring_back_times() == 0
    assert times(core)["lease"] == pytest.approx(before["lease"], abs=5)

    # The rows are as they were; the clock that reads them is a day earlier.
    core.sql(f"UPDATE run SET lease_until = lease_until + {DAY}, next_dispatch_at = next_dispatch_at + {DAY}")
    core.sql(f"UPDATE wait SET deadline = deadline + {DAY}")
    assert core.recovery.bring_back_times() == 3
    assert core.recovery.bring_back_times() == 0
    after = times(core)
    assert 0 < after["lease"] <= 15 + CLOCK_SLACK_SECONDS
    assert 0 < after["dispatch"] <= 60 + CLOCK_SLACK_SECONDS
    assert 0 < after["deadline"] <= LONGEST_WAIT_SECONDS + CLOCK_SLACK_SECONDS


def test_a_step_of_the_machines_clock_does_not_move_the_clock_of_an_open_sqlite_database(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core()
    if not core.database.is_sqlite:
        return  # PostgreSQL has a clock of its own; the test above is about a step of that one
    before = core.reading(core.database.now)
    true_time = time.time
    for step in (-DAY, DAY):
        monkeypatch.setattr("time.time", lambda step=step: true_time() + step)
        assert core.reading(core.database.now) == pytest.approx(before, abs=30)
