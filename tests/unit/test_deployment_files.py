"""The files of a deployment agree with the product: variables, locks, what is published."""

import re
from typing import Any, Final

import yaml

from config.settings import Settings
from team.model import errors
from tests.support.architecture import ROOT

COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OF_COMPOSE_ITSELF: Final = frozenset({"TEAM_IMAGE", "TEAM_WORKSPACE", "TEAM_MODEL_API_KEY"})
"""Variables of the compose file and of a provider, which are no settings."""

ERROR_CODES: Final = frozenset(
    str(getattr(error, "code", "")) for error in vars(errors).values() if isinstance(error, type)
)

VARIABLE: Final = re.compile(r"\bTEAM_[A-Z0-9_]+")


def settings_variables() -> set[str]:
    return {f"TEAM_{name.upper()}" for name in Settings.model_fields}


def pins(name: str) -> dict[str, str]:
    """Version by package of a lock."""
    text = (ROOT / name).read_text()
    return dict(re.findall(r"^([a-zA-Z0-9_.-]+)(?:\[[^]]*\])?==([^ ;\\]+)", text, re.MULTILINE))


def test_every_variable_of_the_deployment_files_is_a_setting() -> None:
    for name in ("docker-compose.yml", ".env.example"):
        used = set(VARIABLE.findall((ROOT / name).read_text()))
        assert len(used) > 5
        assert used - settings_variables() <= OF_COMPOSE_ITSELF, name


def test_every_variable_of_the_documentation_is_a_setting() -> None:
    for page in ("deployment.md", "security.md"):
        used = set(VARIABLE.findall((ROOT / "docs" / page).read_text()))
        codes = {name for name in used if name in ERROR_CODES}
        assert used - codes - settings_variables() <= OF_COMPOSE_ITSELF, page


def test_compose_asks_for_nothing_that_the_example_leaves_out() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    required = set(re.findall(r"\$\{([A-Z_]+):\?", text))
    assert required
    assert {name for name in required if not example.get(name)} == set()
    secrets = {name: value for name, value in example.items() if re.search(r"PASSWORD|_TOKEN$", name) and value}
    # As long as they begin like this, nothing starts that is published; `make env` replaces exactly these.
    assert {name for name, value in secrets.items() if not re.fullmatch(r"example-[a-z-]+-secret", value)} == set()


def test_d01_compose_publishes_the_coordinator_and_flower_alone_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert set(published) == {"coordinator", "flower"}
    for ports in published.values():
        assert all(port.startswith("${PUBLISH_ADDRESS:-127.0.0.1}:") for port in ports)
    assert not [name for name, service in COMPOSE["services"].items() if service.get("network_mode") == "host"]
    assert not [name for name, service in COMPOSE["services"].items() if service.get("privileged")]


def test_d01_the_database_and_the_broker_are_on_networks_without_a_way_out() -> None:
    networks, services = COMPOSE["networks"], COMPOSE["services"]
    assert networks["data"]["internal"] is True
    assert networks["broker"]["internal"] is True
    assert services["db"]["networks"] == ["data"]
    assert services["redis"]["networks"] == ["broker"]
    assert "data" not in services["worker"]["networks"] + services["flower"]["networks"]
    assert "--requirepass" in services["redis"]["command"][-1]


def test_d02_flower_is_a_bounded_view_and_nothing_waits_for_it() -> None:
    services = COMPOSE["services"]
    assert not [name for name, service in services.items() if "flower" in service.get("depends_on", {})]
    assert services["flower"]["mem_limit"]
    assert services["flower"]["restart"] == "unless-stopped"


def test_d03_the_broker_of_compose_evicts_nothing_and_keeps_nothing() -> None:
    command = COMPOSE["services"]["redis"]["command"][-1]
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly no" in command
    assert '--save ""' in command


def test_d04_every_service_that_stays_has_a_health_check_a_restart_policy_and_healthy_dependencies() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["mem_limit"], name
        if name == "migrate":
            continue
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
        for dependency, wanted in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if dependency == "migrate" else "service_healthy"
            assert wanted["condition"] == expected, (name, dependency)


def test_c09_the_process_itself_gets_the_signal_and_has_longer_than_its_drain() -> None:
    worker = COMPOSE["services"]["worker"]
    assert worker["entrypoint"] == ["python", "-m", "workers"]
    grace = int(re.fullmatch(r"\$\{WORKER_GRACE:-(\d+)s\}", worker["stop_grace_period"]).group(1))  # pyright: ignore[reportOptionalMemberAccess] -- a missing match fails the test
    drain = int(re.fullmatch(r"\$\{TEAM_DRAIN_SECONDS:-(\d+)\}", worker["environment"]["TEAM_DRAIN_SECONDS"]).group(1))  # pyright: ignore[reportOptionalMemberAccess] -- the same
    assert grace > drain


def test_the_runtime_lock_is_a_part_of_the_whole_lock() -> None:
    whole, runtime = pins("requirements.lock"), pins("requirements-runtime.lock")
    assert len(runtime) > 30
    assert {name: version for name, version in runtime.items() if whole.get(name) != version} == {}
    assert not {"pytest", "ruff", "schemathesis", "playwright"} & set(runtime)
    declared = re.findall(
        r'^ {4}"([a-zA-Z0-9-]+)', (ROOT / "pyproject.toml").read_text().split("[project.optional")[0], re.MULTILINE
    )
    assert {name.lower() for name in declared} <= {name.lower() for name in runtime}
