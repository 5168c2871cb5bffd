"""The shipped Prometheus and Grafana configuration asks only for metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from flower.events import get_prometheus_metrics  # pyright: ignore[reportMissingTypeStubs] -- Flower has no types
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from team.dispatch.metrics import Metrics
from team.log.census import Census
from team.log.transaction import Claimed, Effects, Ended
from tests.support.architecture import ROOT
from tests.support.runs import RUN

MONITORING: Final = ROOT / "config" / "monitoring"
PROMETHEUS_OWN: Final = frozenset({"up"})


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def expressions() -> dict[str, str]:
    """Every query by where it stands."""
    found: dict[str, str] = {}
    for group in load(MONITORING / "alerts.yml")["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    dashboard = json.loads((MONITORING / "grafana" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found


def exposed() -> dict[str, set[str]]:
    """The labels of every sample that a coordinator and Flower really expose, by its name."""
    census = Census(turns={("queued", "q"): 1}, teams=1, oldest_queued_seconds={"q": 1.0}, waits={"wait-agent": 1})
    metrics = Metrics(lambda: census, lambda: {"q": 1})
    metrics(
        Effects(claimed=[Claimed(RUN, "w", 1, 1.0)], ended=[Ended(RUN.session_id, RUN.turn_id, RUN, "error", None)])
    )
    metrics.answered("GET", "/", 200, 0.1)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    cast("Any", get_prometheus_metrics)()
    for family in REGISTRY.collect():
        if family.name.startswith("flower_"):
            found.setdefault(family.name, set()).add("worker")
    return found


def test_every_query_asks_for_a_metric_and_labels_that_exist() -> None:
    known = exposed()
    queries = expressions()
    assert len(queries) > 20
    for place, query in queries.items():
        names = set(re.findall(r"\b(?:team|flower)_[a-z_]+", re.sub(r'"[^"]*"', "", query)))
        assert names | (PROMETHEUS_OWN & set(re.findall(r"\w+", query))), place
        assert names <= set(known), (place, names - set(known))
        allowed = {"instance", "job", "le", *(label for name in names for label in known[name])}
        grouped = ",".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", query))
        selected = re.findall(r'(\w+)(?:=|!=|=~|!~)"', query)
        used = {label.strip() for label in grouped.split(",") if label.strip()} | set(selected)
        assert used <= allowed, (place, used - allowed)


def test_every_metric_of_a_coordinator_is_shown_or_watched() -> None:
    queries = " ".join(expressions().values())
    families = {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in exposed() if "team_" in name}
    assert not [name for name in families if name not in queries]


def test_the_dashboard_can_be_provisioned() -> None:
    dashboard = json.loads((MONITORING / "grafana" / "dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${datasource}"}
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    assert load(MONITORING / "grafana" / "dashboards.yml")["providers"][0]["type"] == "file"
    assert load(MONITORING / "grafana" / "datasources.yml")["datasources"][0]["type"] == "prometheus"


def test_prometheus_accepts_its_configuration_and_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for name in ("prometheus.yml", "alerts.yml"):
        (tmp_path / name).write_text((MONITORING / name).read_text().replace("/etc/prometheus/", f"{tmp_path}/"))
    (tmp_path / "team-viewer-token").write_text("token")
    for command in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        checked = subprocess.run(
            [promtool, "check", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
