"""From a commit to a worker: accepted messages and edges.

The clock of both ends is the machine's: an event bears the time at which its transaction appended it, a claim the time
at which the worker's compare-and-set ran. So the commit that accepts is inside the interval, and up to a millisecond of
rounding.
"""

from collections.abc import Iterator
from datetime import datetime
from statistics import median

from benchmarks import roles
from benchmarks.bench import Bench
from benchmarks.deployment import Site
from benchmarks.figures import Figure, Target, figure, load_average, row

_MILLISECONDS = 1000


def event_times(site: Site, session: str, event_type: str) -> list[float]:
    """When the events of one type were appended, in order, in seconds since 1970."""
    found = site.all("SELECT time FROM event WHERE session_id = ? AND type = ? ORDER BY seq", session, event_type)
    return [datetime.fromisoformat(time).timestamp() for (time,) in found]


def claim_times(site: Site, session: str) -> list[float]:
    """When the turns of a Session were claimed, in order, in seconds since 1970."""
    found = site.all("SELECT claimed_at FROM claim WHERE session_id = ? ORDER BY claimed_at", session)
    return [at for (at,) in found]


@row("accepted-to-claimed", "message accepted → turn claimed by an idle worker")
def accepted_to_claimed(bench: Bench, database: str) -> Iterator[Figure]:
    limits = bench.limits(database)
    times = bench.pick(3, 60, 300)
    load = load_average()
    with bench.site(database, roles={"default": roles.answering()}, slots=2) as site:
        session = site.coordinator.lead()
        for done in range(times + 1):
            site.prompt(session)
            site.until_idle()
            assert len(claim_times(site, session)) == done + 1
        accepted = event_times(site, session, "agent/inbox/inserted")
        claimed = claim_times(site, session)
    yield figure(
        "accepted-to-claimed",
        "message accepted → turn claimed",
        "ms",
        [(end - start) * _MILLISECONDS for start, end in zip(accepted, claimed, strict=True)][1:],
        database=database,
        limit_of="POST with one commit",
        limit=median(limits.post_ms),
        targets=(Target(12), Target(40, "p99")),
        load=max(load, load_average()),
    )


@row("edge-to-running", "edge committed → parked waiter running again on a worker")
def edge_to_running(bench: Bench, database: str) -> Iterator[Figure]:
    limits = bench.limits(database)
    times = bench.pick(3, 60, 300)
    load = load_average()
    parts = {"default": roles.thinking(), "waiter": roles.waiting()}
    with bench.site(database, roles=parts, slots=4) as site:
        team = site.coordinator.lead("think")
        waiter = site.spawn(team, "waiter")
        values: list[float] = []
        for number in range(times + 1):
            site.until(lambda: site.open_turns("parked") == 1, "the waiter to park")
            before = len(claim_times(site, waiter))
            site.tool(team, "lead", "team_task_create", subject=f"edge {number}", description="")
            site.until(lambda before=before: len(claim_times(site, waiter)) > before, "the waiter to be claimed")
            start = event_times(site, team, "team/task")[-1]
            if number == 0:
                continue
            values.append((claim_times(site, waiter)[before] - start) * _MILLISECONDS)
    yield figure(
        "edge-to-running",
        "edge committed → waiter claimed",
        "ms",
        values,
        database=database,
        limit_of="POST with one commit",
        limit=median(limits.post_ms),
        targets=(Target(15),),
        load=max(load, load_average()),
    )


@row("limits", "the machine itself: commit, POST with one commit, Redis")
def machine(bench: Bench, database: str) -> Iterator[Figure]:
    load = load_average()
    limits = bench.limits(database)
    named = {"commit": limits.commit_ms, "POST with one commit": limits.post_ms, "Redis PING": limits.redis_ms}
    for what, values in named.items():
        yield figure("limits", what, "ms", values, database=database, load=max(load, load_average()))
    what = "POST with one commit, 8 clients"
    yield figure("limits", what, "per s", [limits.post_rate], database=database, load=load_average())
