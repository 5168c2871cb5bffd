"""Board mutations over HTTP: one client, eight members at once, and logs of every length."""

import itertools
import threading
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks import roles
from benchmarks.bench import Bench
from benchmarks.deployment import Site
from benchmarks.figures import Figure, Target, figure, load_average, row
from benchmarks.histories import grown, imported, template
from benchmarks.limits import CLIENTS, rate_of, timed_ms


def mutation(site: Site, team: str, member: str = "lead", task: str | None = None) -> Callable[[], object]:
    """An action that edits one task, each time with the revision that the time before returned."""
    if task is None:
        task = str(site.tool(team, member, "team_task_create", subject="measured", description="d")["id"])
        site.tool(team, member, "team_task_update", task_id=task, expected_revision=1, action="claim")
    revisions = itertools.count(int(site.tool(team, member, "team_task_get", task_id=task)["revision"]))
    client = site.client()
    path = f"/v1/teams/{team}/members/{member}/tools/team_task_update"

    def edit() -> None:
        body = {"task_id": task, "expected_revision": next(revisions), "action": "edit", "description": "x" * 80}
        response = client.post(path, json=body)
        assert response.is_success, response.text

    return edit


@row("board-mutation", "board mutation over HTTP, one client")
def board_mutation(bench: Bench, database: str) -> Iterator[Figure]:
    limits = bench.limits(database)
    load = load_average()
    with bench.site(database, workers=0) as site:
        values = timed_ms(mutation(site, site.coordinator.lead()), bench.pick(5, 300, 2_000))
    yield figure(
        "board-mutation",
        "team_task_update over HTTP",
        "ms",
        values,
        database=database,
        limit_of="POST with one commit",
        limit=median(limits.post_ms),
        targets=(Target(3, "ratio"),),
        load=max(load, load_average()),
    )


@row("board-growth", "board mutation against the length of the Lead's log")
def board_growth(bench: Bench, database: str) -> Iterator[Figure]:
    sizes = bench.pick([100, 200], [100, 1_000, 10_000], [100, 1_000, 10_000, 100_000])
    with bench.site(database, roles={"default": roles.answering()}) as site:
        lines = template(site)
        teams = {size: imported(site, grown(lines, f"grown-{size}", events=size, turns=5)) for size in sizes}
        edits = {size: mutation(site, team, task="task-1") for size, team in teams.items()}
        values: dict[int, list[float]] = {size: [] for size in sizes}
        load = load_average()
        # In turns, so that a change of the machine's load meets all sizes alike.
        for _ in range(bench.pick(1, 15, 60)):
            for size in sizes:
                values[size] += timed_ms(edits[size], bench.pick(3, 20, 20), warm_up=1)
    shortest = median(values[sizes[0]])
    for size in sizes:
        last = size == sizes[-1]
        yield figure(
            "board-growth",
            "team_task_update, events in the log",
            "ms",
            values[size],
            database=database,
            size=size,
            limit_of=f"the same at {sizes[0]} events",
            limit=shortest,
            targets=(Target(1.2, "ratio"),) if last else (),
            load=max(load, load_average()),
        )


@row("board-members", "board mutations of one Team by eight members at once")
def board_members(bench: Bench, database: str) -> Iterator[Figure]:
    limits = bench.limits(database)
    load = load_average()
    seconds = bench.pick(0.3, 3.0, 8.0)
    done = [0] * CLIENTS
    set_up = 2
    lock = threading.Lock()
    with bench.site(database, workers=0) as site:
        team = site.coordinator.lead()
        names = ["lead", *(f"member-{number}" for number in range(1, CLIENTS))]
        for name in names[1:]:
            site.spawn(team, name)

        def make(number: int) -> Callable[[], object]:
            with lock:
                edit = mutation(site, team, names[number])

            def counted() -> None:
                edit()
                done[number] += 1

            return counted

        rates = [rate_of(CLIENTS, seconds, make) for _ in range(bench.pick(1, 2, 3))]
        snapshots = site.value("SELECT count(*) FROM event WHERE session_id = ? AND type = 'team/task'", team)
        lost = sum(done) + CLIENTS * len(rates) * set_up - snapshots
    assert lost == 0, f"{lost} accepted mutations are not in the log"
    yield figure(
        "board-members",
        "team_task_update, 8 members",
        "per s",
        rates,
        database=database,
        limit_of="POST with one commit, 8 clients",
        limit=limits.post_rate,
        targets=(Target(0.4, "ratio", "least"),),
        load=max(load, load_average()),
        note="Every accepted mutation is one event of the log: none was lost.",
    )
