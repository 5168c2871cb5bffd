"""The schedule of faults is a pure function of its seed."""

from collections import Counter

import pytest

from config.faults import COORDINATOR_POINTS, WORKER_POINTS
from tests.faults.schedule import KINDS, kinds_for, schedule


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_same_seed_gives_the_same_schedule_and_another_seed_another(database: str) -> None:
    def planned(seed: int) -> object:
        return schedule(seed, kinds_for(database), until_seconds=600, workers=3, coordinators=2)

    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_a_longer_run_begins_with_the_schedule_of_a_shorter_one() -> None:
    kinds = kinds_for("sqlite")
    short = schedule(3, kinds, until_seconds=60, workers=3, coordinators=1)
    longer = schedule(3, kinds, until_seconds=600, workers=3, coordinators=1)
    assert len(short) > 10
    assert longer[: len(short)] == short


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_twenty_minutes_plan_over_three_hundred_faults_and_each_kind_as_often_as_any_other(database: str) -> None:
    kinds = kinds_for(database, disk=False)
    for seed in range(20):
        planned = schedule(seed, kinds, until_seconds=1200, workers=3, coordinators=1)
        counts = Counter(fault.kind.name for fault in planned)
        assert len(planned) > 330
        assert set(counts) == {kind.name for kind in kinds}
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(fault.victim < 3 for fault in planned)


def test_kinds_have_names_of_their_own_and_points_that_the_product_passes() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for victim, points in (("worker", WORKER_POINTS), ("coordinator", COORDINATOR_POINTS)):
        used = {kind.point for kind in KINDS if kind.victim == victim and kind.point is not None}
        assert used
        assert used <= set(points)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no such fault: worker-hug"):
        kinds_for("sqlite", names=["worker-kill", "worker-hug"])
