"""The memory of worker and coordinator over many turns and reconnections."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.cluster import Supervised
from tests.faults.site import BROKER, Site
from tests.support.valkey import ValkeyProcess

MEGABYTE = 1024 * 1024


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    broker = ValkeyProcess(tmp_path)
    broker.start()
    made = Site(tmp_path, f"sqlite:///{tmp_path / 'data' / 'team.db'}", broker, variables={"TEAM_SLOTS": "4"})
    yield made.start()
    made.close()
    broker.stop()


def resident(process: Supervised) -> int:
    assert process.pid is not None
    return psutil.Process(process.pid).memory_info().rss


def work(site: Site, turns: int) -> None:
    """So many turns of one step, each of a Session of its own, and a reconnection to the broker for every fifty."""
    for begin in range(0, turns, 25):
        sessions = [site.lead(f"turn {number}") for number in range(begin, min(begin + 25, turns))]
        # Ended in any order: one look at each is enough once the last one has its answer.
        for number, session in reversed([*enumerate(sessions, begin)]):
            site.answered(session, f"turn {number}", deadline=60)
        if begin % 50 == 0:
            site.links.change(BROKER, "cut")
            site.links.change(BROKER, "open")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("warm", "turns", "growth"),
    [
        pytest.param(25, 50, 12 * MEGABYTE, id="fifty"),
        pytest.param(1000, 4000, 24 * MEGABYTE, id="thousands", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_c15_memory_is_flat_after_the_first_turns(site: Site, warm: int, turns: int, growth: int) -> None:
    work(site, warm)
    before = [resident(process) for process in site.processes]
    work(site, turns)
    after = [resident(process) for process in site.processes]
    assert [process.deaths for process in site.processes] == [[], []], "growth is not judged across a restart"
    grown = {p.name: (b - a) // 1024 for p, a, b in zip(site.processes, before, after, strict=True)}
    assert max(grown.values()) * 1024 < growth, f"KiB over {turns} turns: {grown}"
