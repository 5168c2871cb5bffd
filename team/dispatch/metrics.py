"""Metrics of one coordinator, in a registry of its own: what committed transactions did, and what is open now.

Observations are made after a commit and never inside a transaction, whose body may run more than once.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from team.log.census import Census
from team.log.transaction import Effects
from team.model.errors import StoreUnavailable
from team.model.ids import TeamId

STATES: Final = ("queued", "running", "parked")
LATENCIES: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
REMEMBERED_TEAMS: Final = 4_096
REMEMBERED_EDGES: Final = 64


class EdgeTimes:
    """When this process committed the newest edges of each Team. Safe to share between threads; bounded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: OrderedDict[TeamId, deque[tuple[int, float]]] = OrderedDict()

    def committed(self, team_id: TeamId, counter: int) -> None:
        """An edge was committed now."""
        with self._lock:
            times = self._times.setdefault(team_id, deque(maxlen=REMEMBERED_EDGES))
            times.append((counter, self._clock()))
            self._times.move_to_end(team_id)
            while len(self._times) > REMEMBERED_TEAMS:
                self._times.popitem(last=False)

    def since(self, team_id: TeamId, registered_at: int) -> float | None:
        """Seconds since the edge that ended a wait registered at this counter; None if another process committed it."""
        with self._lock:
            for counter, moment in self._times.get(team_id, ()):
                if counter == registered_at + 1:
                    return max(0.0, self._clock() - moment)
        return None


class Metrics:
    """Counts for Prometheus. ``census`` reads what is open; it may raise StoreUnavailable."""

    def __init__(self, census: Callable[[], Census], workers: Callable[[], dict[str, int]]) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._edge_times = EdgeTimes()
        self._dispatch = self._histogram("team_dispatch_seconds", "From queued to claimed by a worker.", "queue")
        self._wake = self._histogram(
            "team_wake_seconds", "From the commit of an edge to the wait that it resolved; edges of this coordinator."
        )
        self._append = self._histogram("team_append_seconds", "A transaction that appended events, locks and commit.")
        self._http = self._histogram(
            "team_http_seconds", "A request until its response begins.", "method", "route", "status"
        )
        self._edges = self._counter("team_edges", "Committed changes that wake waiters.")
        self._events = self._counter("team_events", "Events appended to logs.")
        self._sessions = self._counter("team_sessions_created", "Sessions created.")
        self._claims = self._counter("team_claims", "Turns claimed by workers.", "queue")
        self._lost = self._counter("team_leases_lost", "Claims whose worker was lost.")
        self._ended = self._counter("team_turns_ended", "Turns that ended.", "reason")
        self._registry.register(_Open(census, workers))

    def __call__(self, effects: Effects) -> None:
        """Take note of a committed transaction."""
        for team_id, counter in effects.edges.items():
            self._edge_times.committed(team_id, counter)
        self._edges.inc(len(effects.edges))
        for team_id, registered_at in effects.woken:
            seconds = self._edge_times.since(team_id, registered_at)
            if seconds is not None:
                self._wake.observe(seconds)
        for claimed in effects.claimed:
            self._claims.labels(claimed.run.queue).inc()
            self._dispatch.labels(claimed.run.queue).observe(claimed.queued_seconds)
        for ended in effects.ended:
            self._ended.labels(ended.reason).inc()
        self._lost.inc(len(effects.lost))
        self._sessions.inc(effects.created)
        if effects.events:
            self._events.inc(effects.events)
            self._append.observe(effects.write_seconds)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Take note of a request; ``route`` is a template, never a path with ids."""
        self._http.labels(method, route, str(status)).observe(seconds)

    def exposition(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=LATENCIES)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)


class _Open(Collector):
    """Gauges that are read when somebody asks. ``team_store_up`` is 0 while the database is away."""

    def __init__(self, census: Callable[[], Census], workers: Callable[[], dict[str, int]]) -> None:
        self._census, self._workers = census, workers

    def describe(self) -> Iterable[Metric]:
        """Names without values: registering must not read the database."""
        return list(self._families().values())

    def collect(self) -> Iterable[Metric]:
        families = self._families()
        try:
            census, workers = self._census(), self._workers()
        except StoreUnavailable:
            families["store"].add_metric([], 0)
            return [families["store"]]
        families["store"].add_metric([], 1)
        families["teams"].add_metric([], census.teams)
        for queue in sorted({queue for _state, queue in census.turns} | set(workers)):
            for state in STATES:
                families["turns"].add_metric([state, queue], census.turns.get((state, queue), 0))
            families["oldest"].add_metric([queue], census.oldest_queued_seconds.get(queue, 0.0))
            families["workers"].add_metric([queue], workers.get(queue, 0))
        for kind, count in sorted(census.waits.items()):
            families["waits"].add_metric([kind], count)
        return list(families.values())

    def _families(self) -> dict[str, GaugeMetricFamily]:
        return {
            "store": GaugeMetricFamily("team_store_up", "Whether the database answers."),
            "teams": GaugeMetricFamily("team_active_teams", "Teams with an open turn."),
            "turns": GaugeMetricFamily("team_turns", "Open turns.", labels=("state", "queue")),
            "oldest": GaugeMetricFamily(
                "team_oldest_queued_seconds", "Age of the oldest queued turn.", labels=("queue",)
            ),
            "workers": GaugeMetricFamily("team_workers", "Workers heard of lately.", labels=("queue",)),
            "waits": GaugeMetricFamily("team_waits", "What parked turns wait for.", labels=("kind",)),
        }
