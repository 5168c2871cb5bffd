"""The table of the specification's coverage names what exists: every path, function and test, and no cell is empty."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "docs" / "spec-coverage.md"
PLACES: Final = ("team", "workers", "config", "tests", "examples", "docs", "benchmarks")

_TEST = re.compile(r"^(?:async )?def (test_\w+)|^    (?:async )?def (test_\w+)", re.MULTILINE)


@dataclass(frozen=True)
class RowOfTable:
    section: str
    statement: str
    cells: tuple[str, ...]


def rows() -> list[RowOfTable]:
    """Every row of every table, without the headings."""
    found: list[RowOfTable] = []
    section = ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and not re.fullmatch(r"[|\s-]+", line):
            cells = [cell.strip() for cell in line.strip("|\n ").split("|")]
            found.append(RowOfTable(section, cells[0], tuple(cells[1:])))
    return [row for row in found if row.statement not in ("statement", "in the specification", "rule")]


def tokens(cell: str) -> list[str]:
    """What a cell names in code quotes, in order."""
    return re.findall(r"`([^`]+)`", cell)


def there_are() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= {one or other for one, other in _TEST.findall(path.read_text(encoding="utf-8"))}
    return found


def unknown_names(cell: str) -> list[str]:
    """Paths that are not there, and names that the file before them does not define."""
    faults: list[str] = []
    text = ""
    for token in tokens(cell):
        if token.split("/")[0] in PLACES and ("/" in token or token.endswith((".py", ".toml"))):
            path = ROOT / token
            if not path.exists():
                faults.append(token)
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
        elif text and re.fullmatch(r"[A-Za-z_][\w.]*", token):
            defined = [
                re.search(rf"\b(?:def|class) {name}\b|^\s*{name}\s*[:=]", text, re.MULTILINE)
                for name in token.split(".")
            ]
            faults += [] if all(defined) else [token]
    return faults


def test_every_cell_says_something() -> None:
    table = rows()
    assert len(table) > 100
    assert [row.statement for row in table if not all(row.cells)] == []
    assert [row.statement for row in table if any("not yet" in cell.lower() for cell in row.cells)] == []


def test_every_row_names_a_test_or_a_decision() -> None:
    bare = [
        row.statement
        for row in rows()
        if row.section != "Statements that mean something else here"
        and not any(token.startswith("test_") for cell in row.cells for token in tokens(cell))
        and not any("decision" in cell for cell in row.cells)
    ]
    assert bare == []


def test_every_test_that_is_named_exists() -> None:
    there = there_are()
    named = {token for row in rows() for cell in row.cells for token in tokens(cell) if token.startswith("test_")}
    assert len(named) > 100
    assert sorted(named - there) == []


def test_every_place_that_is_named_exists() -> None:
    faults = {row.statement: unknown_names(cell) for row in rows() for cell in row.cells}
    assert {statement: names for statement, names in faults.items() if names} == {}


def test_no_source_runs_a_version_control_program() -> None:
    # The command line asks git where the workspace begins; whoever works for a Team does not.
    places = [
        ROOT / "workers",
        *(ROOT / "team" / name for name in ("model", "log", "rules", "service", "tools", "api")),
    ]
    sources = [path for place in places for path in place.rglob("*.py")]
    assert len(sources) > 80
    command = re.compile(r"""["'](?:git|hg|svn|jj)["'\s]""")
    assert [str(path) for path in sources if command.search(path.read_text(encoding="utf-8"))] == []
