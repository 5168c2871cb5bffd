"""Broker and database over TLS, the broker as an ACL user with the rights that the documentation gives it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.architecture import ROOT
from tests.support.coordinator import WORKER_TOKEN, CoordinatorProcess
from tests.support.tls_front import Pair, TlsFront, sign
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

PASSWORD: Final = "broker-canary-of-a-test"
SCRIPT: Final = """
members:
  lead:
    start: say
    states: {say: {say: Heard.}}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return sign(tmp_path_factory.mktemp("certificates"), "stores")


@pytest.fixture
def front(pair: Pair) -> Iterator[Callable[..., TlsFront]]:
    made: list[TlsFront] = []

    def start(*arguments: Any) -> TlsFront:
        made.append(TlsFront(*arguments))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """A server with one more user, who may do what docs/deployment.md says that it needs."""
    server = ValkeyProcess(tmp_path)
    server.start()
    (rules,) = re.findall(r"an ACL user needs `([^`]+)`", (ROOT / "docs" / "deployment.md").read_text())
    command(server, "ACL", "SETUSER", "worker", "on", f">{PASSWORD}", *rules.split())
    yield server
    server.stop()


def command(server: ValkeyProcess, *arguments: str) -> Any:
    client: Any = server.client()
    try:
        return client.execute_command(*arguments)
    finally:
        client.close()


def broker_url(front: TlsFront, options: str = "") -> str:
    return f"rediss://worker:{PASSWORD}@127.0.0.1:{front.port}/0{options}"


class Place:
    """A coordinator and a worker with the same broker, in one directory."""

    def __init__(self, directory: Path, url: str, **variables: str) -> None:
        (directory / "script.yaml").write_text(SCRIPT)
        shared = {"TEAM_BROKER_URL": url, "TEAM_KEY_PREFIX": "team:", **variables}
        model = {"TEAM_MODEL": f"script:{directory / 'script.yaml'}"}
        self.coordinator = CoordinatorProcess(directory, "coordinator", {**shared, **model}).ready()
        settings = {
            "TEAM_COORDINATOR_URL": f"http://127.0.0.1:{self.coordinator.port}",
            "TEAM_WORKER_TOKEN": WORKER_TOKEN,
            "TEAM_WORKSPACE_ROOT": str(self.coordinator.workspace),
            "TEAM_SANDBOX": "off",
        }
        self.worker = WorkerProcess("one", directory, {**shared, **settings})

    def stop(self) -> None:
        self.worker.process.terminate()
        assert self.worker.code() == 0, self.worker.log
        assert self.coordinator.stop() == 0, self.coordinator.log


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def start(url: str, **variables: str) -> Place:
        made.append(Place(tmp_path, url, **variables))
        return made[-1]

    yield start
    for each in made:
        each.worker.kill()
        each.coordinator.process.kill()
        each.coordinator.process.wait()
        each.coordinator.client.close()


def test_a_turn_over_rediss_as_a_user_with_the_documented_rights_and_nothing_that_it_may_not(
    broker: ValkeyProcess, pair: Pair, front: Callable[..., TlsFront], place: Callable[..., Place]
) -> None:
    url = broker_url(
        front(("127.0.0.1", broker.port), pair), f"?ssl_cert_reqs=required&ssl_ca_certs={pair.certificate}"
    )
    running = place(url)
    running.worker.ready()
    lead = running.coordinator.lead("go")
    wait_until(lambda: ended(running.coordinator, lead), "the turn to end", 30)
    running.stop()

    assert command(broker, "ACL", "LOG") == []
    # Everything went through the user: whoever else is there is this test.
    assert PASSWORD not in running.worker.log + running.coordinator.log


def test_a_broker_whose_certificate_nobody_vouches_for_gets_no_password_and_the_worker_says_what_it_waits_for(
    broker: ValkeyProcess, pair: Pair, front: Callable[..., TlsFront], place: Callable[..., Place]
) -> None:
    """Also where the URL does not ask for the check: work waits in SQL until somebody is who it says."""
    stranger = front(("127.0.0.1", broker.port), pair)
    command(broker, "CONFIG", "RESETSTAT")
    running = place(broker_url(stranger))
    lead = running.coordinator.lead("go")
    wait_until(lambda: "waiting for the broker" in running.worker.log, "the worker to say so", 30)
    wait_until(lambda: "broker unreachable" in running.coordinator.log, "the coordinator to say so", 30)
    assert running.worker.process.poll() is None
    assert not ended(running.coordinator, lead)
    assert stranger.refused > 0
    assert "cmdstat_auth" not in str(command(broker, "INFO", "commandstats"))
    assert PASSWORD not in running.worker.log + running.coordinator.log


@pytest.fixture
def database(postgres_url: str, pair: Pair, front: Callable[..., TlsFront]) -> str:
    """The URL of a database over TCP with TLS, its options to be added."""
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        socket = Path(connection.info.host) / f".s.PGSQL.{connection.info.port}"
        user = connection.info.user
    place = f"localhost:{front(socket, pair, 'postgresql').port}"
    return f"postgresql+psycopg://{user}:postgres@{place}{urlsplit(postgres_url).path}"


def test_a_database_over_tls_is_checked_against_the_authority_that_the_url_names(
    tmp_path: Path, database: str, pair: Pair, valkey: ValkeyProcess
) -> None:
    url = f"{database}?sslmode=verify-full&sslrootcert={pair.certificate}"
    variables = {"TEAM_DATABASE_URL": url, "TEAM_BROKER_URL": valkey.url}
    coordinator = CoordinatorProcess(tmp_path, "coordinator", variables).ready()
    assert coordinator.client.get(f"/v1/sessions/{coordinator.lead()}").is_success
    assert coordinator.stop() == 0, coordinator.log


@pytest.mark.parametrize("options", ["sslmode=verify-full&sslrootcert={other}", "sslmode=disable"])
def test_a_database_under_another_certificate_or_in_clear_is_not_used(
    tmp_path: Path, database: str, valkey: ValkeyProcess, options: str
) -> None:
    other = sign(tmp_path, "other")
    variables = {
        "TEAM_DATABASE_URL": f"{database}?{options.format(other=other.certificate)}",
        "TEAM_BROKER_URL": valkey.url,
        "TEAM_DATABASE_WAIT_SECONDS": "0",
    }
    coordinator = CoordinatorProcess(tmp_path, "coordinator", variables)
    assert coordinator.process.wait(30) == 1
    coordinator.client.close()
    assert "database cannot be reached" in coordinator.log
    assert "Traceback" not in coordinator.log


def ended(coordinator: CoordinatorProcess, session: str) -> bool:
    view: dict[str, Any] = coordinator.client.get(f"/v1/sessions/{session}").json()
    last: dict[str, Any] = view.get("lastEnd") or {}
    return view.get("turn") is None and last.get("reason") == "completed"
