"""HTTPS of the coordinator, with a certificate authority of the test's own."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from config.exposure import require_certificate
from team.cli.client import Operator
from team.model.errors import ConfigurationInvalid, TeamError
from tests.support.coordinator import OPERATOR_TOKEN, WORKER_TOKEN, CoordinatorProcess
from tests.support.tls_front import Pair, sign
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from workers.client import bearer, tls


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return sign(tmp_path_factory.mktemp("certificates"), "coordinator")


@pytest.fixture(scope="module")
def coordinator(
    pair: Pair, valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    variables = {
        "TEAM_BROKER_URL": valkey_server.url,
        "TEAM_KEY_PREFIX": "tls:",
        "TEAM_TLS_CERT": str(pair.certificate),
        "TEAM_TLS_KEY": str(pair.key),
    }
    process = CoordinatorProcess(tmp_path_factory.mktemp("tls"), "coordinator", variables)
    wait_until(lambda: "coordinator ready" in process.log or process.process.poll() is not None, "the coordinator", 30)
    assert process.process.poll() is None, process.log
    yield process
    assert process.stop() == 0, process.log


def client(coordinator: CoordinatorProcess, context: ssl.SSLContext, scheme: str = "https") -> httpx2.Client:
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    url = f"{scheme}://127.0.0.1:{coordinator.port}"
    return httpx2.Client(base_url=url, headers=headers, verify=context, trust_env=False, timeout=30)


def test_a_client_that_trusts_the_authority_is_served_and_gets_a_secure_cookie(
    coordinator: CoordinatorProcess, pair: Pair
) -> None:
    with client(coordinator, ssl.create_default_context(cafile=pair.certificate)) as trusting:
        assert trusting.get("/healthz").json() == {"status": "ok"}
        assert trusting.get("/v1/sessions").json() == {"sessions": []}
        cookie = trusting.post("/browser-session").headers["set-cookie"]
    assert "Secure" in cookie.split("; ")
    assert "HttpOnly" in cookie.split("; ")


def test_the_command_line_and_a_worker_trust_the_authority_that_they_are_given(
    coordinator: CoordinatorProcess, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://127.0.0.1:{coordinator.port}"
    with Operator(url, OPERATOR_TOKEN) as operator, pytest.raises(TeamError):
        operator.sessions()
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    with Operator(url, OPERATOR_TOKEN) as operator:
        assert operator.sessions() == []
    with httpx2.Client(base_url=url, headers=bearer(WORKER_TOKEN), verify=tls(url), trust_env=False) as worker:
        assert worker.get("/worker/hello").status_code == httpx2.codes.OK


def test_nobody_else_is_served_in_clear_or_under_another_certificate(coordinator: CoordinatorProcess) -> None:
    strangers = ssl.create_default_context()
    with (
        client(coordinator, strangers) as suspicious,
        pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"),
    ):
        suspicious.get("/healthz")
    with client(coordinator, strangers, "http") as plain, pytest.raises(httpx2.TransportError):
        plain.get("/healthz")


def test_a_pair_that_tls_cannot_use_is_refused_at_the_start(pair: Pair, tmp_path: Path) -> None:
    other, locked = sign(tmp_path, "other"), sign(tmp_path, "locked", password="secret-of-a-test")
    require_certificate(None, None)
    require_certificate(pair.certificate, pair.key)
    for certificate, key, reason in (
        (pair.certificate, None, "belong together"),
        (None, pair.key, "belong together"),
        (pair.certificate, other.key, "cannot be used"),
        (tmp_path / "missing.pem", pair.key, "cannot be used"),
        (locked.certificate, locked.key, "password"),
    ):
        with pytest.raises(ConfigurationInvalid, match=reason):
            require_certificate(certificate, key)
