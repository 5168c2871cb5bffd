"""``python -m benchmarks``: measure the rows that are asked for, print them, store them as JSON."""

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import cast

from rich.console import Console

from benchmarks import board, latency
from benchmarks.bench import Bench
from benchmarks.figures import ROWS, Report, Scale, load_average
from benchmarks.report import machine, save, show

RESULTS = Path(__file__).parent / "results"
MODULES = (latency, board)
"""Importing them registers their rows."""


def measure(names: list[str], scale: Scale, databases: tuple[str, ...], console: Console) -> Report:
    """Measure rows one after the other; one that fails is named in ``skipped`` and the rest goes on."""
    report = Report(machine(), scale)
    with Bench(scale) as bench:
        for name in names:
            row = ROWS[name]
            for database in row.databases:
                if database != "-" and database not in databases:
                    continue
                started = time.monotonic()
                first = len(report.figures)
                try:
                    report.figures.extend(row.measure(bench, database))
                except Exception as error:  # noqa: BLE001  # told in the report; the other rows are measured
                    report.skipped[f"{name} {database}"] = f"{type(error).__name__}: {error}"
                console.rule(
                    f"{row.title} · {database} · {time.monotonic() - started:.0f} s · load {load_average():.1f}"
                )
                show(report.figures[first:], console)
    return report


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)


def main(arguments: list[str]) -> int:
    """Exit code 0; 1 when a row could not be measured. A missed target is no error: it is printed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rows", default="", help=f"comma-separated: {', '.join(ROWS)}")
    parser.add_argument("--scale", choices=("tiny", "quick", "full"), default="quick")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--output", type=Path, default=None, help="default: benchmarks/results/TIME.json")
    options = parser.parse_args(arguments)
    names = [name for name in options.rows.split(",") if name] or list(ROWS)
    unknown = sorted(set(names) - set(ROWS))
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    databases = ("sqlite", "postgresql") if options.database == "both" else (cast("str", options.database),)
    # An orderly end: every process that was started ends with the run.
    signal.signal(signal.SIGTERM, _leave)
    console = Console(width=180)
    report = measure(names, options.scale, databases, console)
    path = options.output or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    save(report, path)
    for name, reason in report.skipped.items():
        console.print(f"not measured: {name}: {reason}", markup=False)
    console.print(f"{len(report.figures)} figures in {path}")
    return 1 if report.skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
