"""The coordinator as a process: its public API, its security, its worker API over HTTP."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def coordinator(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess(tmp_path_factory.mktemp("api"), "coordinator", {"TEAM_BROKER_URL": valkey_server.url})
    yield process.ready()
    assert process.stop() == 0, process.log


def error_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_prompted_session_has_a_queued_turn_and_a_log(coordinator: CoordinatorProcess) -> None:
    session = coordinator.lead("do it")
    view = coordinator.client.get(f"/v1/sessions/{session}").json()
    assert (view["status"], view["turn"]["state"], view["pending"]) == ("running", "queued", 1)
    page = coordinator.client.get(f"/v1/sessions/{session}/events").json()
    assert [event["type"] for event in page["events"]] == ["agent/inbox/inserted", "turn/start"]
    assert page["lastSeq"] == 2
    rest = coordinator.client.get(f"/v1/sessions/{session}/events", params={"after": 1}).json()
    assert [event["seq"] for event in rest["events"]] == [2]
    assert session in [row["id"] for row in coordinator.client.get("/v1/sessions").json()["sessions"]]


def test_sessions_are_listed_in_pages_in_order_of_creation(coordinator: CoordinatorProcess) -> None:
    made = [coordinator.lead() for _ in range(5)]
    cursor: str | None = None
    seen: list[str] = []
    while True:
        page = coordinator.client.get("/v1/sessions", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        rows = [row["id"] for row in page.json()["sessions"]]
        assert 1 <= len(rows) <= 2
        seen += rows
        cursor = page.json().get("nextCursor")
        if cursor is None:
            break
        if len(seen) == 2:
            made.append(coordinator.lead())
    assert seen[-6:] == made
    assert len(set(seen)) == len(seen)
    assert error_of(coordinator.client.get("/v1/sessions", params={"cursor": "nobody"})) == (404, "SESSION_NOT_FOUND")
    for limit in ("0", "-1", "1001", "x", "1.5"):
        assert error_of(coordinator.client.get("/v1/sessions", params={"limit": limit})) == (422, "REQUEST_INVALID")


def test_every_public_post_is_done_once_for_its_key(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    other = coordinator.lead()
    key = {"Idempotency-Key": f"every-post-{team}"}

    def twice(name: str, path: str, **body: Any) -> dict[str, Any]:
        headers = {"Idempotency-Key": f"{name}-{team}"}
        first = coordinator.client.post(path, json=body, headers=headers)
        assert first.is_success, first.text
        again = coordinator.client.post(path, json=body, headers=headers)
        assert (again.status_code, again.json()) == (first.status_code, first.json()), name
        return first.json()

    def log(session: str) -> list[str]:
        page = coordinator.client.get(f"/v1/sessions/{session}/events").json()
        return [event["type"] for event in page["events"]]

    twice("model", f"/v1/sessions/{team}/model", model="script:other")
    assert log(team).count("session/model") == 1
    assert twice("interrupt", f"/v1/sessions/{team}/interrupt") == {"previousStatus": "running"}
    coordinator.client.post(f"/v1/sessions/{team}/messages", json={"text": "again"})
    assert coordinator.client.post(f"/v1/sessions/{team}/interrupt", headers={"Idempotency-Key": f"interrupt-{team}"})
    assert log(team).count("turn/end") == 1
    assert twice("close", f"/v1/teams/{team}/close")["interrupted"] == ["lead"]
    coordinator.client.post(f"/v1/sessions/{team}/messages", json={"text": "open again"})
    headers = {"Idempotency-Key": f"close-{team}"}
    assert coordinator.client.post(f"/v1/teams/{team}/close", headers=headers).json()["interrupted"] == ["lead"]
    assert log(team).count("turn/end") == 2
    assert coordinator.member(team, "lead")["status"] == "running"
    coordinator.client.post(f"/v1/sessions/{other}/interrupt", headers=key)
    clash = coordinator.client.post(f"/v1/teams/{other}/close", headers=key)
    assert error_of(clash) == (409, "IDEMPOTENCY_CONFLICT")


def test_an_interrupt_ends_the_turn_and_keeps_the_prompt_for_the_next_one(coordinator: CoordinatorProcess) -> None:
    session = coordinator.lead("do it")
    response = coordinator.client.post(f"/v1/sessions/{session}/interrupt")
    assert response.json() == {"previousStatus": "running"}
    view = coordinator.client.get(f"/v1/sessions/{session}").json()
    assert (view["status"], view["lastEnd"]["reason"], view["pending"], view["held"]) == (
        "inactive",
        "aborted",
        1,
        True,
    )
    sent = coordinator.client.post(f"/v1/sessions/{session}/messages", json={"text": "go on"}).json()
    assert sent["status"] == "accepted"
    view = coordinator.client.get(f"/v1/sessions/{session}").json()
    assert (view["status"], view["pending"], view["held"]) == ("running", 2, False)


def test_a_repeated_idempotency_key_is_accepted_once(coordinator: CoordinatorProcess) -> None:
    session = coordinator.lead()
    key = {"Idempotency-Key": "key-1"}
    path = f"/v1/sessions/{session}/messages"
    first = coordinator.client.post(path, json={"text": "once"}, headers=key)
    again = coordinator.client.post(path, json={"text": "once"}, headers=key)
    assert first.json() == again.json()
    other = coordinator.client.post(path, json={"text": "twice"}, headers=key)
    assert error_of(other) == (409, "IDEMPOTENCY_CONFLICT")
    assert coordinator.client.get(f"/v1/sessions/{session}").json()["pending"] == 1


def test_a_tool_with_a_repeated_key_changes_the_board_once(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    path = f"/v1/teams/{team}/members/lead/tools/team_task_create"
    body, key = {"subject": "a", "description": "b"}, {"Idempotency-Key": "task-key"}
    first = coordinator.client.post(path, json=body, headers=key).json()
    assert coordinator.client.post(path, json=body, headers=key).json() == first
    assert len(coordinator.client.get(f"/v1/teams/{team}").json()["tasks"]) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v1/sessions/nobody", None, (404, "SESSION_NOT_FOUND")),
        ("GET", "/v1/sessions/nobody/events", None, (404, "SESSION_NOT_FOUND")),
        ("GET", "/v1/teams/nobody", None, (404, "SESSION_NOT_FOUND")),
        ("POST", "/v1/sessions/nobody/messages", {"text": "x"}, (404, "SESSION_NOT_FOUND")),
        ("POST", "/v1/sessions/nobody/interrupt", {}, (404, "SESSION_NOT_FOUND")),
        ("POST", "/v1/sessions", {"cwd": "/", "profile": "team"}, (403, "FS_OUTSIDE_WORKSPACE")),
        ("POST", "/v1/sessions", {"cwd": ".", "profile": "nope"}, (422, "PROFILE_UNKNOWN")),
        ("POST", "/v1/sessions", {"cwd": "missing", "profile": "team"}, (422, "REQUEST_INVALID")),
        ("POST", "/v1/sessions", {"cwd": ".", "surplus": 1}, (422, "REQUEST_INVALID")),
        ("POST", "/v1/sessions", {"cwd": ".", "profile": "team", "prompt": "a\0b"}, (422, "REQUEST_INVALID")),
        ("GET", "/v1/nowhere", None, (404, "REQUEST_INVALID")),
    ],
)
def test_bad_requests_are_refused_with_a_code_and_change_nothing(
    coordinator: CoordinatorProcess, method: str, path: str, body: dict[str, Any] | None, expected: tuple[int, str]
) -> None:
    before = len(coordinator.client.get("/v1/sessions").json()["sessions"])
    assert error_of(coordinator.client.request(method, path, json=body)) == expected
    assert len(coordinator.client.get("/v1/sessions").json()["sessions"]) == before


@pytest.mark.parametrize(
    "raw",
    [b"{", b'{"cwd": NaN}', b'{"cwd": "\\ud83d"}', b"[" * 100 + b"]" * 100, b"\xff", b'{"cwd": ".", "cwd": ".."}'],
)
def test_a_body_that_is_no_sound_json_is_refused(coordinator: CoordinatorProcess, raw: bytes) -> None:
    assert error_of(coordinator.client.post("/v1/sessions", content=raw)) == (422, "REQUEST_INVALID")


def test_an_endless_body_is_refused_at_its_limit(coordinator: CoordinatorProcess) -> None:
    body = b'{"cwd": "' + b"x" * 2_000_000 + b'"}'
    assert error_of(coordinator.client.post("/v1/sessions", content=body)) == (422, "REQUEST_INVALID")


def test_every_route_refuses_a_caller_without_its_token(coordinator: CoordinatorProcess) -> None:
    paths = coordinator.client.get("/openapi.json").json()["paths"]
    checked = 0
    for path, operations in paths.items():
        for method in operations:
            concrete = path.replace("{", "").replace("}", "")
            for token in ("", "Bearer wrong", "Bearer worker-token-of-a-test", "Basic b3A6b3A="):
                response = coordinator.client.request(method.upper(), concrete, headers={"Authorization": token})
                assert error_of(response) == (401, "UNAUTHENTICATED"), (method, path, token)
                checked += 1
    assert checked >= 4 * 10


def test_worker_routes_refuse_the_operator_token(coordinator: CoordinatorProcess) -> None:
    for path in ("claim", "heartbeat", "turns/t/boundary", "turns/t/tool"):
        assert error_of(coordinator.client.post(f"/worker/{path}", json={})) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_a_foreign_host_or_origin_is_refused(coordinator: CoordinatorProcess, headers: dict[str, str]) -> None:
    assert error_of(coordinator.client.get("/v1/sessions", headers=headers)) == (403, "FORBIDDEN")


def test_a_blocking_wait_returns_at_the_next_edge_and_at_its_timeout(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    assert coordinator.tool(team, "lead", "wait_agent").json()["result"]["noProgress"]["reason"] == "no-active-peer"
    assert coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p").is_success
    results: list[Any] = []
    waiter = threading.Thread(
        target=lambda: results.append(coordinator.tool(team, "lead", "wait_agent", timeout_ms=30_000).json())
    )
    waiter.start()
    # Any number of edges before the registration is not replayed, so one is raised until the waiter has one.
    wait_until(
        lambda: (
            coordinator.tool(team, "bob", "team_task_create", subject="s", description="d").is_success
            and not waiter.is_alive()
        ),
        "the wait to return",
        20,
        every=0.2,
    )
    assert results == [{"result": {"timedOut": False}}]
    assert error_of(coordinator.tool(team, "lead", "wait_agent", timeout_ms=10)) == (422, "TEAM_INVALID_TIMEOUT")


def test_operators_act_as_the_named_member_and_the_log_says_who_acted(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p")
    coordinator.tool(team, "bob", "send_message", target="lead", message="hi")
    page = coordinator.client.get(f"/v1/sessions/{team}/events").json()["events"]
    inserted = [event["data"] for event in page if event["type"] == "agent/inbox/inserted"]
    assert inserted[0]["source"]["senderName"] == "bob"
    assert inserted[0]["source"]["actor"] == "operator"
    assert not [event for event in page if event["type"].startswith("tool/")]
    assert error_of(coordinator.tool(team, "nobody", "list_agents")) == (404, "TEAM_MEMBER_NOT_FOUND")
    assert error_of(coordinator.tool(team, "lead", "read", path="x")) == (404, "TOOL_UNKNOWN")


def test_a_turn_played_over_http_is_fenced_idempotent_and_recorded(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    worker = ManualWorker(coordinator, team)
    assert worker.claim["sessionId"] == team
    assert worker.boundary() == "step"
    created = worker.call("team_task_create", json.dumps({"subject": "s", "description": "d"}))
    repeated = worker.repeat("tool", step=worker.step, index=0).json()
    assert repeated == created
    assert len(coordinator.client.get(f"/v1/teams/{team}").json()["tasks"]) == 1
    stale = {**worker.claim, "token": "forged"}
    forged = coordinator.worker(
        f"turns/{stale['turnId']}/boundary", {"epoch": 1, "number": 99, "historyAfter": 0}, "forged"
    )
    assert error_of(forged) == (409, "TURN_FENCED")
    assert worker.boundary() == "step"
    worker.say("done")
    assert worker.boundary() == "ended"
    assert error_of(worker.write("boundary", historyAfter=0)) == (409, "TURN_FENCED")
    assert coordinator.client.get("/v1/doctor").json()["ok"] is True


def test_an_exported_team_is_imported_whole_elsewhere_and_once(
    coordinator: CoordinatorProcess, valkey_server: ValkeyProcess, tmp_path: Path
) -> None:
    team = coordinator.lead("begin")
    coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p")
    coordinator.tool(team, "bob", "send_message", target="lead", message="hi")
    exported = coordinator.client.get(f"/v1/sessions/{team}/log")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    variables = {
        "TEAM_BROKER_URL": valkey_server.url,
        "TEAM_KEY_PREFIX": "other:",
        "TEAM_WORKSPACE_ROOT": str(coordinator.workspace),
    }
    other = CoordinatorProcess(tmp_path, "other", variables)
    other.ready()
    imported = other.client.post("/v1/import", content=exported.content)
    assert imported.status_code == 201, imported.text
    assert len(imported.json()["sessions"]) == 2
    assert other.client.get(f"/v1/sessions/{team}/log").content == exported.content
    assert other.member(team, "bob")["turn"]["state"] == "queued"
    assert error_of(other.client.post("/v1/import", content=exported.content)) == (409, "SESSION_EXISTS")
    fork = other.client.post(f"/v1/sessions/{team}/fork", json={}).json()["id"]
    forked = other.client.get(f"/v1/sessions/{fork}/log").content.replace(fork.encode(), b"00000000-again")
    key = {"Idempotency-Key": "import-1"}
    first = other.client.post("/v1/import", content=forked, headers=key)
    assert first.status_code == 201, first.text
    assert other.client.post("/v1/import", content=forked, headers=key).json() == first.json()
    assert error_of(other.client.post("/v1/import", content=exported.content, headers=key)) == (
        409,
        "IDEMPOTENCY_CONFLICT",
    )
    assert error_of(other.client.post("/v1/import", content=b"\xff\xfe")) == (422, "REQUEST_INVALID")
    damaged = exported.content.replace(b'"seq":2,', b'"seq":7,', 1)
    assert error_of(other.client.post("/v1/import", content=damaged)) == (422, "LOG_DAMAGED")
    assert other.client.get("/v1/doctor").json()["ok"] is True
    assert other.stop() == 0, other.log


def test_a_fork_is_a_new_root_and_a_chosen_model_is_kept(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    worker = ManualWorker(coordinator, team)
    worker.boundary()
    worker.say("done")
    assert worker.boundary() == "ended"
    forked = coordinator.client.post(f"/v1/sessions/{team}/fork", json={"model": "script:other"})
    assert forked.status_code == 201
    view = coordinator.client.get(f"/v1/sessions/{forked.json()['id']}").json()
    assert (view["rootId"], view["model"], view["status"]) == (view["id"], "script:other", "inactive")
    chosen = coordinator.client.post(f"/v1/sessions/{team}/model", json={"model": "script:third"}).json()
    assert chosen["model"] == "script:third"
    assert coordinator.member(team, "lead")["model"] == "script:third"
    assert error_of(coordinator.client.post(f"/v1/sessions/{team}/model", json={"model": " "}))[0] == 422


def test_a_closed_team_stops_its_turns_and_a_prompt_opens_it_again(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p")
    closed = coordinator.client.post(f"/v1/teams/{team}/close").json()
    assert sorted(closed["interrupted"]) == ["bob", "lead"]
    view = coordinator.client.get(f"/v1/teams/{team}").json()
    assert (view["closed"], {member["status"] for member in view["members"]}) == (True, {"inactive"})
    refused = coordinator.tool(team, "lead", "send_message", target="bob", message="x")
    assert error_of(refused) == (410, "TEAM_DISPOSED")
    coordinator.client.post(f"/v1/sessions/{team}/messages", json={"text": "again"})
    assert coordinator.tool(team, "lead", "send_message", target="bob", message="x").is_success


def test_closing_names_a_worker_that_does_not_stop(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    ManualWorker(coordinator, team)
    response = coordinator.client.post(f"/v1/teams/{team}/close")
    assert error_of(response) == (504, "TEAM_DISPOSAL_TIMEOUT")
    assert team in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"TEAM_OPERATOR_TOKEN": ""}, "TEAM_OPERATOR_TOKEN"),
        ({"TEAM_WORKER_TOKEN": " "}, "TEAM_WORKER_TOKEN"),
        ({"TEAM_BROKER_URL": "http://127.0.0.1"}, "TEAM_BROKER_URL"),
        ({"TEAM_WORKSPACE_ROOT": "/proc/none"}, "workspace"),
    ],
)
def test_a_coordinator_that_cannot_work_says_so_in_one_sentence_and_exits_2(
    tmp_path: Path, valkey: ValkeyProcess, variables: dict[str, str], word: str
) -> None:
    process = CoordinatorProcess(tmp_path, "bad", {"TEAM_BROKER_URL": valkey.url, **variables})
    assert process.process.wait(30) == 2
    lines = process.log.strip().splitlines()
    assert len(lines) == 1, process.log
    assert word in lines[0]
    process.client.close()


def test_a_coordinator_waits_for_its_database_and_then_leaves_it_to_its_supervisor(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    variables = {
        "TEAM_BROKER_URL": valkey.url,
        "TEAM_DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/none",
        "TEAM_DATABASE_WAIT_SECONDS": "1",
    }
    process = CoordinatorProcess(tmp_path, "early", variables)
    assert process.process.wait(30) == 1
    waiting, said = process.log.strip().splitlines()
    assert "waiting for the database" in waiting
    assert "TEAM_DATABASE_URL" in said
    process.client.close()


def test_a_port_in_use_is_named(tmp_path: Path, valkey: ValkeyProcess) -> None:
    variables = {"TEAM_BROKER_URL": valkey.url}
    first = CoordinatorProcess(tmp_path, "first", variables).ready()
    second = CoordinatorProcess(tmp_path, "second", {**variables, "TEAM_PORT": str(first.port)})
    assert second.process.wait(30) == 2
    assert "TEAM_PORT" in second.log
    second.client.close()
    assert first.stop() == 0
