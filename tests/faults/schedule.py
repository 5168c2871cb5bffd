"""Which fault strikes whom, and when: a pure function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Victim = Literal["worker", "coordinator", "broker", "database", "checkout", "everything"]

BOTH: Final = frozenset({"sqlite", "postgres"})
SQLITE: Final = frozenset({"sqlite"})
POSTGRES: Final = frozenset({"postgres"})


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: Stable; docs/faults.md describes it under this name.
        victim: What it strikes.
        seconds: Shortest and longest duration, in seconds; zero for what happens in an instant.
        point: The named point of ``config.faults`` at which the victim kills itself.
        databases: Where it is possible.
    """

    name: str
    victim: Victim
    seconds: tuple[float, float] = (0.0, 0.0)
    point: str | None = None
    databases: frozenset[str] = BOTH


KINDS: Final = (
    Kind("worker-kill", "worker"),
    Kind("worker-kill-at-claim", "worker", point="after-claim"),
    Kind("worker-kill-before-answer", "worker", point="before-answer-post"),
    Kind("worker-kill-after-answer", "worker", point="after-answer-post"),
    Kind("worker-kill-in-tool", "worker", point="in-tool"),
    Kind("worker-kill-after-intent", "worker", point="after-intent"),
    Kind("worker-kill-before-result", "worker", point="before-result-post"),
    Kind("worker-kill-before-boundary", "worker", point="before-boundary"),
    Kind("worker-kill-after-boundary", "worker", point="after-boundary"),
    Kind("worker-kill-at-turn-end", "worker", point="at-turn-end"),
    Kind("worker-term", "worker"),
    Kind("worker-freeze", "worker", (4.0, 7.0)),
    Kind("worker-clock", "worker"),
    Kind("link-cut", "worker", (1.0, 6.0)),
    Kind("link-slow", "worker", (2.0, 6.0)),
    Kind("link-silent", "worker", (2.0, 6.0)),
    Kind("coordinator-kill", "coordinator"),
    Kind("coordinator-kill-before-commit", "coordinator", point="before-commit"),
    Kind("coordinator-kill-after-commit", "coordinator", point="after-commit"),
    Kind("coordinator-kill-before-publish", "coordinator", point="before-publish"),
    Kind("coordinator-kill-after-publish", "coordinator", point="after-publish"),
    Kind("coordinator-term", "coordinator"),
    Kind("coordinator-freeze", "coordinator", (2.0, 5.0)),
    Kind("coordinator-clock", "coordinator"),
    Kind("broker-flush", "broker"),
    Kind("broker-kill", "broker", (0.0, 3.0)),
    Kind("broker-pause", "broker", (1.0, 4.0)),
    Kind("broker-freeze", "broker", (2.0, 7.0)),
    Kind("broker-drop-clients", "broker"),
    Kind("broker-drop-subscribers", "broker"),
    Kind("database-busy", "database", (1.0, 5.0), databases=SQLITE),
    Kind("database-restart", "database", databases=POSTGRES),
    Kind("database-kill", "database", databases=POSTGRES),
    Kind("database-drop-connections", "database", databases=POSTGRES),
    Kind("disk-full", "checkout", (1.0, 4.0)),
    Kind("everything-kill", "everything"),
)
"""Every kind, in a fixed order: the schedule depends on it."""

CLOCK_STEPS: Final = (-3600.0, -20.0, 20.0, 3600.0)


@dataclass(frozen=True)
class Fault:
    """One planned fault. Whoever reaches a named point first is its victim; others are known before."""

    number: int
    at_seconds: float
    kind: Kind
    victim: int
    seconds: float
    step_seconds: float


def kinds_for(database: str, *, disk: bool = True, names: Sequence[str] | None = None) -> tuple[Kind, ...]:
    """The kinds that are possible with this database.

    Args:
        database: ``sqlite`` or ``postgres``.
        disk: Whether the checkout lies on a small file system of its own.
        names: Only these kinds.

    Raises:
        ValueError: A name is unknown.
    """
    unknown = set(names or ()) - {kind.name for kind in KINDS}
    if unknown:
        raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")
    return tuple(
        kind
        for kind in KINDS
        if database in kind.databases and (disk or kind.name != "disk-full") and (names is None or kind.name in names)
    )


def schedule(
    seed: int,
    kinds: Sequence[Kind],
    *,
    until_seconds: float,
    workers: int,
    coordinators: int,
    gap_seconds: tuple[float, float] = (2.0, 4.0),
) -> tuple[Fault, ...]:
    """Faults in order of time, each kind once before any a second time.

    Durations, victims and gaps are drawn for each fault whether its kind needs them or not, so a fault does not depend
    on what its predecessors were.
    """
    draw = random.Random(f"faults/{seed}")
    counts = {"worker": workers, "coordinator": coordinators}
    planned: list[Fault] = []
    bag: list[Kind] = []
    at = 0.0
    while True:
        at += draw.uniform(*gap_seconds)
        if at > until_seconds:
            return tuple(planned)
        if not bag:
            bag = draw.sample(list(kinds), len(kinds))
        kind, share, place, step = bag.pop(), draw.random(), draw.random(), draw.choice(CLOCK_STEPS)
        low, high = kind.seconds
        planned.append(
            Fault(
                number=len(planned) + 1,
                at_seconds=round(at, 3),
                kind=kind,
                victim=0 if kind.point is not None else int(place * counts.get(kind.victim, 1)),
                seconds=round(low + share * (high - low), 3),
                step_seconds=step,
            )
        )
