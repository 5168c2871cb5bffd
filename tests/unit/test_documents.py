"""What the documents point at is there: tests, files, functions, other documents."""

import re
from pathlib import Path

import pytest

from tests.support.architecture import ROOT, tracked_files

DOCUMENTS = [path for path in tracked_files(".md") if path.startswith("docs/") or "/" not in path]
TEST = re.compile(r"`(test_\w+)`")
PLACE = re.compile(r"`((?:config|team|workers|tests|examples|docs|benchmarks)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
ROW = re.compile(r"`(?P<path>(?:team|workers|config)/[\w/]+\.py)` ((?:`[\w.]+`(?:, )?)+)")


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def missing_tests(text: str, existing: set[str]) -> list[str]:
    return sorted({name for name in TEST.findall(text) if name not in existing})


def missing_places(text: str) -> list[str]:
    return sorted({place for place in PLACE.findall(text) if not (ROOT / place).exists()})


def missing_links(path: str, text: str) -> list[str]:
    folder = (ROOT / path).parent
    return sorted({link for link in LINK.findall(text) if not (folder / link).exists()})


def missing_names(text: str) -> list[str]:
    """Functions and classes that a table names behind a file which does not define them."""
    missing: list[str] = []
    for match in ROW.finditer(text):
        path = ROOT / match["path"]
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        missing += [
            f"{match['path']} {name}"
            for name in re.findall(r"`([\w.]+)`", match[2])
            if not all(re.search(rf"\b{re.escape(part)}\b", source) for part in name.split("."))
        ]
    return missing


@pytest.fixture(scope="module")
def existing_tests() -> set[str]:
    found: set[str] = set()
    for path in Path(ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_document_points_at_what_exists(path: str, existing_tests: set[str]) -> None:
    text = text_of(path)
    assert missing_tests(text, existing_tests) == []
    assert missing_places(text) == []
    assert missing_links(path, text) == []
    assert missing_names(text) == []


def test_every_row_of_the_coverage_says_where_and_how_it_is_held() -> None:
    rows = [line for line in text_of("docs/spec-coverage.md").splitlines() if line.startswith("| ")]
    statements = [row.strip("|").split(" | ") for row in rows if not row.startswith(("| statement", "| --- ", "| in "))]
    assert len(statements) > 90
    for cells in statements:
        assert all(cell.strip() for cell in cells[:2]), cells
        excused = len(cells) < 3 or "not yet" in cells[1] or "nothing of the kind" in cells[1]
        assert excused or cells[2].strip(), cells


def test_every_decision_is_in_the_index() -> None:
    index = text_of("docs/decisions/README.md")
    notes = [Path(path).name for path in tracked_files(".md") if path.startswith("docs/decisions/")]
    assert [name for name in notes if name != "README.md" and f"({name})" not in index] == []


def test_each_check_can_fail() -> None:
    assert missing_tests("`test_of_nothing`", set()) == ["test_of_nothing"]
    assert missing_places("see `team/model/nothing.py` and `team/model/fold.py`") == ["team/model/nothing.py"]
    assert missing_links("docs/x.md", "[a](nowhere.md) [b](cli.md#part) [c](https://example.org)") == ["nowhere.md"]
    table = "| x | `team/model/fold.py` `apply`, `nothing_here` | |"
    assert missing_names(table) == ["team/model/fold.py nothing_here"]
