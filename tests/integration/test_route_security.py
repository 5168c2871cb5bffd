"""Every route of the coordinator by who may call it. A new route fails here until somebody has decided that."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr

from config.settings import Settings
from team.api.coordinator import Coordinator
from tests.support.coordinator import OPERATOR_TOKEN, WORKER_TOKEN, CoordinatorProcess, ManualWorker
from tests.support.valkey import ValkeyProcess

VIEWER_TOKEN: Final = "viewer-token-of-a-test"
Route = tuple[str, str]


class Access(Enum):
    """Who may call a route."""

    ANYBODY = "anybody: it holds no data"
    EXCHANGE = "whoever has a token, or a cookie that was got for one"
    READ = "operator and viewer"
    WRITE = "operator"
    WORKER = "every worker"
    CLAIM = "the worker that holds this claim"
    MEMBER = "the external member that holds this invitation"


ROUTES: Final[dict[Route, Access]] = {
    ("GET", "/"): Access.ANYBODY,
    ("GET", "/healthz"): Access.ANYBODY,
    ("GET", "/openapi.json"): Access.ANYBODY,
    ("GET", "/web/{name:path}"): Access.ANYBODY,
    ("POST", "/browser-session"): Access.EXCHANGE,
    ("GET", "/browser-session"): Access.EXCHANGE,
    ("DELETE", "/browser-session"): Access.ANYBODY,
    ("GET", "/v1/sessions"): Access.READ,
    ("GET", "/v1/sessions/{session_id}"): Access.READ,
    ("GET", "/v1/sessions/{session_id}/events"): Access.READ,
    ("GET", "/v1/sessions/{session_id}/log"): Access.READ,
    ("GET", "/v1/sessions/{session_id}/tail"): Access.READ,
    ("GET", "/v1/teams/{team_id}"): Access.READ,
    ("GET", "/v1/teams/{team_id}/timeline"): Access.READ,
    ("GET", "/v1/teams/{team_id}/usage"): Access.READ,
    ("GET", "/v1/workers"): Access.READ,
    ("GET", "/v1/doctor"): Access.READ,
    ("GET", "/metrics"): Access.READ,
    ("GET", "/v1/stream"): Access.READ,
    ("POST", "/v1/sessions"): Access.WRITE,
    ("POST", "/v1/sessions/{session_id}/messages"): Access.WRITE,
    ("POST", "/v1/sessions/{session_id}/interrupt"): Access.WRITE,
    ("POST", "/v1/sessions/{session_id}/fork"): Access.WRITE,
    ("POST", "/v1/sessions/{session_id}/model"): Access.WRITE,
    ("POST", "/v1/teams/{team_id}/close"): Access.WRITE,
    ("POST", "/v1/teams/{team_id}/members/{target}/tools/{tool}"): Access.WRITE,
    ("POST", "/v1/teams/{team_id}/invites"): Access.WRITE,
    ("DELETE", "/v1/teams/{team_id}/invites/{target}"): Access.WRITE,
    ("POST", "/v1/import"): Access.WRITE,
    ("GET", "/member"): Access.MEMBER,
    ("POST", "/member/tools/{tool}"): Access.MEMBER,
    ("GET", "/worker/hello"): Access.WORKER,
    ("POST", "/worker/claim"): Access.WORKER,
    ("POST", "/worker/heartbeat"): Access.WORKER,
    ("POST", "/worker/turns/{turn_id}/boundary"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/answer"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/compact"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/intent"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/result"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/tool"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/backoff"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/fail"): Access.CLAIM,
    ("POST", "/worker/turns/{turn_id}/release"): Access.CLAIM,
}

WRITES: Final[dict[str, dict[str, Any]]] = {
    "boundary": {"historyAfter": 0},
    "answer": {
        "step": 1,
        "model": "m",
        "content": [{"type": "text", "text": "forged"}],
        "finishReason": "stop",
    },
    "compact": {"step": 1, "summary": "forged", "model": "m", "historyAfter": 0},
    "intent": {"step": 1, "index": 0, "path": "a", "after": "0"},
    "result": {"step": 1, "index": 0, "outcome": "ok", "content": "forged"},
    "tool": {"step": 1, "index": 0},
    "backoff": {"step": 1, "delayMs": 1, "reason": "forged"},
    "fail": {"code": "provider", "message": "forged"},
    "release": {"reason": "forged"},
}
"""A body of each claimed route that would be obeyed if the claim were right."""


def routes_with(*access: Access) -> list[Route]:
    return [route for route, found in ROUTES.items() if found in access]


GUARDED: Final = routes_with(Access.READ, Access.WRITE, Access.WORKER, Access.CLAIM, Access.MEMBER)


@pytest.fixture(scope="module")
def coordinator(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    variables = {
        "TEAM_BROKER_URL": valkey_server.url,
        "TEAM_VIEWER_TOKEN": VIEWER_TOKEN,
        "TEAM_KEY_PREFIX": "routes:",
    }
    process = CoordinatorProcess(tmp_path_factory.mktemp("routes"), "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


@pytest.fixture(scope="module")
def team(coordinator: CoordinatorProcess) -> str:
    return coordinator.lead("begin")


def ask(coordinator: CoordinatorProcess, route: Route, team: str, headers: dict[str, str]) -> httpx2.Response:
    """Call a route about a Team that exists, with these headers and no other authority."""
    method, path = route
    concrete = (
        path.replace("{session_id}", team)
        .replace("{team_id}", team)
        .replace("{target}", "lead")
        .replace("{tool}", "team_task_list")
        .replace("{turn_id}", "turn-of-nobody")
        .replace("{name:path}", "main.js")
    )
    # Not the coordinator's own client: that one sends the operator's token.
    with httpx2.Client(base_url=coordinator.client.base_url, timeout=30, trust_env=False, verify=False) as client:
        body = b"{}" if method == "POST" else None
        return client.request(method, concrete, headers=headers, content=body)


def refusal(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def last_seq(coordinator: CoordinatorProcess, session: str) -> int:
    return coordinator.client.get(f"/v1/sessions/{session}/events").json()["lastSeq"]


def test_every_route_of_the_application_is_listed_with_who_may_call_it(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        workspace_root=tmp_path,
        broker_url="redis://127.0.0.1:1/0",
        operator_token=SecretStr(OPERATOR_TOKEN),
        worker_token=SecretStr(WORKER_TOKEN),
    )
    coordinator = Coordinator(settings)
    try:
        served = {
            (method, str(context.path))
            for context in iter_route_contexts(coordinator.application().routes)
            for method in context.methods or ()
            if method != "HEAD"
        }
    finally:
        coordinator.database.close()
    assert served == set(ROUTES)
    claimed = {path.rpartition("/")[2] for _, path in routes_with(Access.CLAIM)}
    assert claimed == set(WRITES)


@pytest.mark.parametrize("route", GUARDED, ids=" ".join)
def test_a_route_refuses_every_caller_without_its_own_token(
    coordinator: CoordinatorProcess, team: str, route: Route
) -> None:
    is_public = ROUTES[route] in (Access.READ, Access.WRITE)
    wrong = ["wrong", *((WORKER_TOKEN,) if is_public else (OPERATOR_TOKEN, VIEWER_TOKEN))]
    before = last_seq(coordinator, team)
    none = [{}, {"Authorization": "Bearer"}, {"Authorization": f"Basic {OPERATOR_TOKEN}"}]
    for headers in (*none, *map(bearer, wrong)):
        assert refusal(ask(coordinator, route, team, headers)) == (401, "UNAUTHENTICATED"), headers
    cookie = {"Cookie": "team-0=operator.99999999999.0.0"}
    assert refusal(ask(coordinator, route, team, cookie)) == (401, "UNAUTHENTICATED")
    assert last_seq(coordinator, team) == before


@pytest.mark.parametrize("route", routes_with(Access.WRITE), ids=" ".join)
def test_a_viewer_changes_nothing(coordinator: CoordinatorProcess, team: str, route: Route) -> None:
    before = last_seq(coordinator, team)
    assert refusal(ask(coordinator, route, team, bearer(VIEWER_TOKEN))) == (403, "FORBIDDEN")
    assert last_seq(coordinator, team) == before


@pytest.mark.parametrize(
    "route", [route for route in routes_with(Access.READ) if route[1] != "/v1/stream"], ids=" ".join
)
def test_a_viewer_reads_what_an_operator_reads(coordinator: CoordinatorProcess, team: str, route: Route) -> None:
    viewed = ask(coordinator, route, team, bearer(VIEWER_TOKEN))
    assert viewed.status_code == httpx2.codes.OK, viewed.text
    assert ask(coordinator, route, team, bearer(OPERATOR_TOKEN)).status_code == httpx2.codes.OK


@pytest.mark.parametrize("route", list(ROUTES), ids=" ".join)
def test_every_route_refuses_a_forged_host_and_a_forged_origin_whatever_the_token(
    coordinator: CoordinatorProcess, team: str, route: Route
) -> None:
    is_worker_route = ROUTES[route] in (Access.WORKER, Access.CLAIM)
    right = bearer(WORKER_TOKEN if is_worker_route else OPERATOR_TOKEN)
    for forged in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8765"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://127.0.0.1@evil.example"},
    ):
        assert refusal(ask(coordinator, route, team, {**right, **forged})) == (403, "FORBIDDEN"), forged


@pytest.fixture(scope="module")
def invitation(coordinator: CoordinatorProcess, team: str) -> str:
    body = {"name": "guest", "description": "from outside"}
    response = coordinator.client.post(f"/v1/teams/{team}/invites", json=body)
    assert response.status_code == httpx2.codes.CREATED, response.text
    return response.json()["token"]


@pytest.mark.parametrize("route", [route for route in GUARDED if ROUTES[route] is not Access.MEMBER], ids=" ".join)
def test_an_invitation_opens_no_route_but_its_own(
    coordinator: CoordinatorProcess, team: str, invitation: str, route: Route
) -> None:
    before = last_seq(coordinator, team)
    assert refusal(ask(coordinator, route, team, bearer(invitation))) == (401, "UNAUTHENTICATED")
    assert last_seq(coordinator, team) == before


def test_an_invitation_allows_what_its_member_may_do(
    coordinator: CoordinatorProcess, team: str, invitation: str
) -> None:
    for route in routes_with(Access.MEMBER):
        assert ask(coordinator, route, team, bearer(invitation)).status_code == httpx2.codes.OK


def test_the_exchange_gives_a_cookie_for_a_token_of_this_coordinator_only(
    coordinator: CoordinatorProcess, team: str
) -> None:
    exchange = ("POST", "/browser-session")
    for headers in ({}, bearer("wrong"), bearer(WORKER_TOKEN)):
        response = ask(coordinator, exchange, team, headers)
        assert refusal(response) == (401, "UNAUTHENTICATED")
        assert "set-cookie" not in response.headers
    assert refusal(ask(coordinator, ("GET", "/browser-session"), team, {})) == (401, "UNAUTHENTICATED")
    assert ask(coordinator, exchange, team, bearer(VIEWER_TOKEN)).json() == {"role": "viewer"}


def test_a_claim_gives_no_right_to_the_turn_of_another_team(coordinator: CoordinatorProcess) -> None:
    own, other = coordinator.lead("own work"), coordinator.lead("other work")
    mine, theirs = ManualWorker(coordinator, own), ManualWorker(coordinator, other)
    assert (mine.boundary(), theirs.boundary()) == ("step", "step")
    before = last_seq(coordinator, other)
    for _, path in routes_with(Access.CLAIM):
        kind = path.rpartition("/")[2]
        body = {"epoch": theirs.claim["epoch"], "number": 2, **WRITES[kind]}
        for token in (mine.claim["token"], "", "forged", WORKER_TOKEN):
            response = coordinator.worker(f"turns/{theirs.claim['turnId']}/{kind}", body, token)
            assert refusal(response) == (409, "TURN_FENCED"), (kind, token, response.text)
    assert last_seq(coordinator, other) == before
    stolen = {"worker": "manual", "slots": 1, "claims": [{"turnId": theirs.claim["turnId"], "epoch": 99}]}
    beat = coordinator.worker("heartbeat", stolen).json()
    assert beat["renewed"] == []
    theirs.say("done")
    assert theirs.boundary() == "ended"


def test_a_claim_acts_as_its_own_session_and_as_nobody_else(coordinator: CoordinatorProcess) -> None:
    own, other = coordinator.lead("own work"), coordinator.lead()
    assert coordinator.tool(other, "lead", "spawn_teammate", name="bob", description="b", prompt="p").is_success
    worker = ManualWorker(coordinator, own)
    worker.boundary()
    before = last_seq(coordinator, other)
    outcome = worker.call("send_message", f'{{"target": "bob", "message": "hi", "team_id": "{other}"}}')
    assert outcome["entry"]["outcome"] == "error"
    worker.boundary()
    outcome = worker.call("send_message", '{"target": "bob", "message": "hi"}')
    assert "TEAM_MEMBER_NOT_FOUND" in outcome["entry"]["content"]
    assert last_seq(coordinator, other) == before
