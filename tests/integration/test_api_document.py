"""The OpenAPI document against a real coordinator: whatever it is sent, it answers as the document says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.coordinator import OPERATOR_TOKEN, REPOSITORY, CoordinatorProcess
from tests.support.valkey import ValkeyProcess

SECONDS: Final = 20
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
ENDLESS: Final = "/v1/stream"
"""An event stream ends when the reader goes away; tests/integration/test_streams.py reads it."""
KNOWN: Final = {
    "target": ["lead", "bob"],
    "tool": ["send_message", "list_agents", "team_task_create", "team_task_list", "team_task_get", "team_task_update"],
}


@pytest.fixture(scope="module")
def coordinator(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    variables = {"TEAM_BROKER_URL": valkey_server.url, "TEAM_KEY_PREFIX": "document:"}
    process = CoordinatorProcess(tmp_path_factory.mktemp("document"), "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


def test_every_operation_names_what_it_can_answer(coordinator: CoordinatorProcess) -> None:
    document: dict[str, Any] = coordinator.client.get("/openapi.json").json()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 15
    for method, path, operation in operations:
        answers = operation["responses"]
        assert "4XX" in answers, (method, path)
        assert any(code.startswith("2") and answers[code].get("content") for code in answers), (method, path)


def test_no_generated_request_makes_a_server_error_or_an_undocumented_answer(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    team = coordinator.lead("begin")
    assert coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p").is_success
    document: dict[str, Any] = coordinator.client.get("/openapi.json").json()
    # Ids that exist, so that requests get behind the first check.
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", []):
                known = KNOWN.get(parameter["name"], [team] if parameter["name"] in {"session_id", "team_id"} else [])
                if known:
                    parameter["schema"] = {"anyOf": [{"enum": known}, parameter["schema"]]}
    # Lines of JSON, which the generator cannot write: any text will do.
    text = {"text/plain": {"schema": {"type": "string"}}}
    document["paths"]["/v1/import"]["post"]["requestBody"]["content"] = text
    source = tmp_path / "openapi.json"
    source.write_text(json.dumps(document))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(source)),
        *("--url", f"http://127.0.0.1:{coordinator.port}"),
        *("--header", f"Authorization: Bearer {OPERATOR_TOKEN}"),
        *("--exclude-path", ENDLESS, "--checks", ",".join(CHECKS)),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--max-time", str(SECONDS)),
        *("--seed", "1", "--no-shrink", "--continue-on-failure", "--request-timeout", "20"),
        *("--suppress-health-check", "all", "--warnings", "off", "--generation-database", "none", "--no-color"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "NO_PROXY": "*"}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS * 5, check=False
    )
    assert run.returncode == 0, run.stdout[-12_000:] + run.stderr[-2_000:]
    assert coordinator.process.poll() is None
    assert "Traceback" not in coordinator.log, coordinator.log[-8_000:]
    assert coordinator.client.get("/v1/doctor").json()["ok"] is True
