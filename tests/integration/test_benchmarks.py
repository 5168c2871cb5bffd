"""The measurements work and yield figures of the right shape; nothing here holds them to a speed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.figures import ROWS, Target, figure


def measured(path: Path, *arguments: str) -> dict[str, Any]:
    assert main(["--scale", "tiny", "--output", str(path), *arguments]) == 0
    return json.loads(path.read_text())


def test_every_row_yields_figures_with_spread_load_and_its_limit(tmp_path: Path) -> None:
    report = measured(tmp_path / "report.json", "--database", "sqlite")
    assert report["skipped"] == {}
    assert report["machine"]["cores"] > 0
    assert {item["row"] for item in report["figures"]} == set(ROWS)
    for item in report["figures"]:
        assert 0 < item["low"] <= item["p50"] <= item["p99"] <= item["high"], item
        assert item["n"] >= 1
        assert item["load"] > 0
        if item["targets"]:
            assert item["met"] in (True, False)
            assert item["ratio"] == pytest.approx(item["p50"] / item["limit"])


def test_postgresql_is_measured_too(tmp_path: Path) -> None:
    report = measured(tmp_path / "report.json", "--database", "postgresql", "--rows", "board-mutation")
    assert [item["database"] for item in report["figures"]] == ["postgresql"]


def test_a_figure_tells_median_p99_range_and_whether_each_target_is_met() -> None:
    values = [float(value) for value in range(1, 101)]
    item = figure("r", "w", "ms", values, limit=10.0, targets=(Target(51), Target(99, "p99"), Target(6, "ratio")))
    assert (item.p50, item.p99, item.low, item.high, item.n, item.ratio) == (50.5, 99, 1, 100, 100, 5.05)
    assert item.met is True
    assert figure("r", "w", "ms", values, targets=(Target(51), Target(98, "p99"))).met is False
    assert figure("r", "w", "per s", values, limit=100.0, targets=(Target(0.6, "ratio", "least"),)).met is False
    assert figure("r", "w", "ms", values).met is None


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        figure("r", "w", "ms", [])


def test_a_row_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "nothing"])
    assert "no row nothing" in capsys.readouterr().err
