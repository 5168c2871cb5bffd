"""Flower from outside: nothing without its password, whatever its environment says."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from config.flower import MISCONFIGURED, SHORTEST_PASSWORD
from tests.support.coordinator import REPOSITORY
from tests.support.ports import free_port
from tests.support.processes import MARKER
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

PASSWORD: Final = "flower-password-of-a-test"


def environment(valkey: ValkeyProcess, **variables: str) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if key == MARKER or not key.startswith(("TEAM_", "FLOWER_"))
    }
    path = os.pathsep.join(filter(None, (str(REPOSITORY), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "TEAM_BROKER_URL": valkey.url, "TEAM_KEY_PREFIX": "flower:", **variables}


@pytest.fixture(scope="module")
def flower(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client without a password of a Flower whose environment asks it to be open."""
    port, directory = free_port(), tmp_path_factory.mktemp("flower")
    variables = environment(
        valkey_server,
        TEAM_PORT=str(port),
        TEAM_FLOWER_PASSWORD=PASSWORD,
        FLOWER_UNAUTHENTICATED_API="1",
        FLOWER_BASIC_AUTH="",
        FLOWER_ADDRESS="0.0.0.0",
    )
    log_path = directory / "flower.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "config.flower"], cwd=directory, env=variables, stdout=log, stderr=log
        )
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:

        def answers() -> bool:
            assert process.poll() is None, log_path.read_text()
            try:
                return client.get("/healthcheck").is_success
            except httpx2.TransportError:
                return False

        wait_until(answers, "Flower", 40)
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, log_path.read_text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/task/async-apply/team.turn"),
        ("POST", "/api/task/apply/team.turn"),
        ("POST", "/api/task/send-task/team.turn"),
        ("POST", "/api/task/revoke/some-task"),
        ("POST", "/api/task/abort/some-task"),
        ("POST", "/api/worker/shutdown/celery@host"),
        ("POST", "/api/worker/pool/restart/celery@host"),
        ("POST", "/api/worker/queue/add-consumer/celery@host"),
        ("GET", "/api/workers"),
        ("GET", "/api/tasks"),
        ("GET", "/"),
        ("GET", "/workers"),
        ("GET", "/broker"),
    ],
)
def test_d01_flower_refuses_whoever_has_no_password(flower: httpx2.Client, method: str, path: str) -> None:
    body = {"args": ["turn-1"]} if method == "POST" else None
    for headers in ({}, {"Origin": "https://evil.example"}, {"Authorization": "Basic b3BlcmF0b3I6"}):
        response = flower.request(method, path, json=body, headers=headers)
        assert response.status_code in {401, 403}, (response.status_code, headers)
    form = flower.request(method, path, data={"args": "x"} if method == "POST" else None)
    assert form.status_code in {401, 403}


def test_d01_flower_is_open_to_its_password_and_listens_on_loopback_alone(flower: httpx2.Client) -> None:
    assert flower.get("/api/tasks", auth=("operator", PASSWORD)).json() == {}
    assert flower.get("/api/tasks", auth=("operator", PASSWORD + "x")).status_code == httpx2.codes.UNAUTHORIZED
    port = f"{flower.base_url.port:04X}"
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, "TEAM_FLOWER_PASSWORD"),
        ({"TEAM_FLOWER_PASSWORD": ""}, "TEAM_FLOWER_PASSWORD"),
        ({"TEAM_FLOWER_PASSWORD": "x" * (SHORTEST_PASSWORD - 1)}, "too short"),
        ({"TEAM_FLOWER_PASSWORD": PASSWORD, "TEAM_FLOWER_USER": "a:b"}, "TEAM_FLOWER_USER"),
        ({"TEAM_FLOWER_PASSWORD": "example-flower-secret", "TEAM_HOST": "0.0.0.0"}, "not loopback"),
        ({"TEAM_FLOWER_PASSWORD": "example-flower-secret", "TEAM_PUBLISHED_ON": "10.0.0.1"}, "not loopback"),
    ],
)
def test_d01_flower_does_not_start_with_a_password_that_is_none(
    valkey_server: ValkeyProcess, tmp_path: Path, variables: dict[str, str], reason: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "config.flower"],
        cwd=tmp_path,
        env=environment(valkey_server, TEAM_PORT=str(free_port()), **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == MISCONFIGURED
    assert reason in run.stderr
    assert "Traceback" not in run.stderr
    assert PASSWORD not in run.stderr
