"""A client that goes away in the middle of its request does nothing, and is no error of the coordinator."""

import socket
from pathlib import Path

from tests.support.coordinator import OPERATOR_TOKEN, CoordinatorProcess
from tests.support.valkey import ValkeyProcess


def test_a_request_that_is_cut_off_in_its_body_does_nothing_and_leaves_no_trace(
    tmp_path: Path, sqlite_url: str, valkey: ValkeyProcess
) -> None:
    variables = {"TEAM_DATABASE_URL": sqlite_url, "TEAM_BROKER_URL": valkey.url}
    coordinator = CoordinatorProcess(tmp_path, "coordinator", variables).ready()
    try:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", coordinator.port)) as client:
                client.sendall(
                    f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{coordinator.port}\r\n"
                    f"Authorization: Bearer {OPERATOR_TOKEN}\r\nContent-Type: application/json\r\n"
                    'Content-Length: 1000\r\n\r\n{"cwd": "."'.encode()
                )
        # A whole request over another connection is served after what the others began.
        assert coordinator.lead()
        assert len(coordinator.client.get("/v1/sessions").json()["sessions"]) == 1
    finally:
        assert coordinator.stop() == 0, coordinator.log
    assert "Traceback" not in coordinator.log
    assert "Exception" not in coordinator.log
