"""What a measurement yields: figures with their spread, the limit of the same run, and the target."""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from benchmarks.bench import Bench

Scale = Literal["tiny", "quick", "full"]
Sense = Literal["most", "least"]


@dataclass(frozen=True)
class Target:
    """A bound of a figure's median, of its p99, or of its ratio to the limit. ``most`` bounds from above."""

    bound: float
    of: Literal["p50", "p99", "ratio"] = "p50"
    sense: Sense = "most"

    def met(self, value: float) -> bool:
        return value <= self.bound if self.sense == "most" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.of} {'≤' if self.sense == 'most' else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    ``limit`` is what the machine itself gives for the same thing, ``ratio`` the median divided by it. ``load`` is the
    highest one-minute load average that was seen while it was measured: on a shared machine it says what to trust.
    """

    row: str
    what: str
    unit: str
    n: int
    p50: float
    p99: float
    low: float
    high: float
    database: str = "-"
    size: int | None = None
    limit_of: str = ""
    limit: float | None = None
    ratio: float | None = None
    targets: tuple[Target, ...] = ()
    load: float = 0.0
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether every target is met; None without one."""
        if not self.targets:
            return None
        values = {"p50": self.p50, "p99": self.p99, "ratio": self.ratio}
        return all(value is not None and target.met(value) for target in self.targets for value in [values[target.of]])

    def to_json(self) -> dict[str, Any]:
        """Plain values; targets as text."""
        return {**asdict(self), "targets": [str(target) for target in self.targets], "met": self.met}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def figure(row: str, what: str, unit: str, values: Sequence[float], **more: Any) -> Figure:
    """Median and spread of ``values``, of which there must be one; see ``Figure`` for ``more``."""
    if not values:
        raise ValueError(f"{row}: nothing was measured of {what!r}")
    ordered = sorted(values)
    middle = statistics.median(ordered)
    limit = more.get("limit")
    return Figure(
        row=row,
        what=what,
        unit=unit,
        n=len(ordered),
        p50=middle,
        p99=quantile(ordered, 0.99),
        low=ordered[0],
        high=ordered[-1],
        ratio=more.pop("ratio", None if not limit else middle / limit),
        **more,
    )


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


@dataclass(frozen=True)
class Row:
    """One measurement: its name, what it tells, and the function that takes it.

    With ``databases`` the function runs once for each database, otherwise once with the name ``-``.
    """

    name: str
    title: str
    measure: "Callable[[Bench, str], Iterator[Figure]]"
    databases: tuple[str, ...]


ROWS: Final[dict[str, Row]] = {}
DATABASES: Final = ("sqlite", "postgresql")
_Measure = Callable[["Bench", str], Iterator[Figure]]


def row(name: str, title: str, databases: tuple[str, ...] = DATABASES) -> Callable[[_Measure], _Measure]:
    """Register a measurement under ``name``."""

    def register(measure: _Measure) -> _Measure:
        ROWS[name] = Row(name, title, measure, databases)
        return measure

    return register


@dataclass
class Report:
    """All figures of a run and the reasons of rows that could not be measured."""

    machine: dict[str, Any]
    scale: Scale
    figures: list[Figure] = field(default_factory=list[Figure])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """What ``benchmarks/results/*.json`` holds."""
        return {
            "machine": self.machine,
            "scale": self.scale,
            "figures": [item.to_json() for item in self.figures],
            "skipped": self.skipped,
        }
