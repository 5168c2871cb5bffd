"""The event stream: whole views per change, logs without loss or doubling, hints that may be lost."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import redis

from tests.support.coordinator import OPERATOR_TOKEN, CoordinatorProcess, ManualWorker
from tests.support.event_stream import EventStream
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

Start = Callable[..., CoordinatorProcess]


@pytest.fixture
def start(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Start]:
    """Starts coordinators on one SQLite file and one broker."""
    started: list[CoordinatorProcess] = []

    def start(name: str = "coordinator", **variables: str) -> CoordinatorProcess:
        started.append(CoordinatorProcess(tmp_path, name, {"TEAM_BROKER_URL": valkey.url, **variables}))
        return started[-1].ready()

    yield start
    for process in started:
        assert process.stop() == 0, process.log


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared coordinator keeps its store."""
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def coordinator(valkey_server: ValkeyProcess, directory: Path) -> Iterator[CoordinatorProcess]:
    """One coordinator for the tests that leave it as it is."""
    variables = {
        "TEAM_BROKER_URL": valkey_server.url,
        "TEAM_KEY_PREFIX": "streams:",
        "TEAM_VIEWER_TOKEN": "viewer-token",
        "TEAM_SWEEP_SECONDS": "0",
    }
    process = CoordinatorProcess(directory, "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


def follow(
    coordinator: CoordinatorProcess, *parameters: tuple[str, str], headers: dict[str, str] | None = None
) -> EventStream:
    return EventStream(f"http://127.0.0.1:{coordinator.port}", OPERATOR_TOKEN, parameters, headers)


def create_task(coordinator: CoordinatorProcess, team: str, subject: str, **more: Any) -> None:
    response = coordinator.tool(team, "lead", "team_task_create", subject=subject, description="d", **more)
    assert response.is_success, response.text


def last_seq(coordinator: CoordinatorProcess, session: str) -> int:
    return coordinator.client.get(f"/v1/sessions/{session}").json()["lastSeq"]


def test_a_team_event_sends_the_whole_view_and_replaces_only_the_collection_that_it_touched(
    coordinator: CoordinatorProcess,
) -> None:
    team = coordinator.lead()
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.of("team"), "the first view")
        create_task(coordinator, team, "one")
        wait_until(lambda: stream.of("team")[-1]["tasks"], "the task")
        first, second = stream.of("team")[0], stream.of("team")[-1]
        assert [row["target"] for row in second["roster"]] == ["lead"]
        assert second["versions"]["tasks"] != first["versions"]["tasks"]
        assert second["versions"]["roster"] == first["versions"]["roster"]
        coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p")
        wait_until(lambda: [row["phase"] for row in stream.of("team")[-1]["roster"]] == ["active"] * 2, "bob")
        third = stream.of("team")[-1]
        assert third["versions"]["tasks"] == second["versions"]["tasks"]
        assert third["versions"]["roster"] != second["versions"]["roster"]
        assert third["tasks"] == second["tasks"]
        assert "failure" not in third
        assert "error" not in third["roster"][1]
    # Whoever reads it next, another coordinator too, gives equal content the same version, and no other content.
    create_task(coordinator, team, "unseen")
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.of("team"), "the view again")
        fourth = stream.of("team")[0]
        assert fourth["versions"]["roster"] == third["versions"]["roster"]
        assert fourth["versions"]["tasks"] not in {view["versions"]["tasks"] for view in (first, second, third)}


def test_inbox_only_events_publish_no_team_view_and_only_the_status_of_their_session(
    coordinator: CoordinatorProcess,
) -> None:
    team = coordinator.lead()
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.status_of(team), "the status")
        views = len(stream.of("team"))
        for number in range(3):
            coordinator.client.post(f"/v1/sessions/{team}/messages", json={"text": f"m{number}"})
        wait_until(lambda: (stream.status_of(team) or {}).get("pending") == 3, "the pending messages")
        create_task(coordinator, team, "barrier")
        wait_until(lambda: stream.of("team")[-1]["tasks"], "the task")
        assert len(stream.of("team")) == views + 1


def test_an_absent_value_stays_absent_until_something_supplies_it(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    with follow(coordinator, ("team", team)) as stream:
        status = wait_until(lambda: stream.status_of(team), "the status")
        assert status is not None
        assert not {"model", "turn", "lastEnd", "fault", "parentId"} & set(status)
        coordinator.client.post(f"/v1/sessions/{team}/model", json={"model": "script:other"})
        wait_until(lambda: (stream.status_of(team) or {}).get("model") == "script:other", "the chosen model")


def test_claim_and_park_are_no_edges_and_yet_viewers_see_them_at_once(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    coordinator.tool(team, "lead", "spawn_teammate", name="bob", description="b", prompt="p")
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.status_of(team), "the status")
        counter = coordinator.client.get(f"/v1/teams/{team}").json()["edgeCounter"]
        worker = ManualWorker(coordinator, team)
        wait_until(lambda: (stream.status_of(team) or {})["turn"]["state"] == "running", "the claim", 3)
        assert (stream.status_of(team) or {})["turn"]["worker"] == "manual"
        worker.boundary()
        worker.call("wait_agent", '{"timeout_ms":600000}')
        assert worker.boundary() == "parked"
        wait_until(lambda: (stream.status_of(team) or {})["turn"]["state"] == "parked", "the park", 3)
        waits = (stream.status_of(team) or {})["turn"]["waits"]
        assert [wait["kind"] for wait in waits] == ["wait-agent"]
        assert coordinator.client.get(f"/v1/teams/{team}").json()["edgeCounter"] == counter


def test_v01_a_reader_that_reconnects_with_its_cursor_gets_each_event_once(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    seen = list[int]()
    cursor: dict[str, str] = {}
    for round_ in range(3):
        with follow(coordinator, ("session", f"{team}:0"), headers=cursor) as stream:
            for number in range(40):
                create_task(coordinator, team, f"{round_}-{number}")
            newest = last_seq(coordinator, team)
            wait_until(lambda: stream.seqs(team) and stream.seqs(team)[-1] >= newest, "the log to arrive")  # noqa: B023
            seen += stream.seqs(team)
            cursor = {"Last-Event-ID": stream.cursor or ""}
        for number in range(5):
            create_task(coordinator, team, f"unseen {round_}-{number}")
    with follow(coordinator, ("session", f"{team}:0"), headers=cursor) as stream:
        newest = last_seq(coordinator, team)
        wait_until(lambda: stream.seqs(team) and stream.seqs(team)[-1] >= newest, "the rest")
        seen += stream.seqs(team)
    assert seen == list(range(1, newest + 1))


def test_v01_a_stream_goes_on_over_a_restart_and_through_another_coordinator(
    start: Start, tmp_path: Path, valkey: ValkeyProcess, postgres_url: str
) -> None:
    shared = {"TEAM_DATABASE_URL": postgres_url}
    first, second = start("first", **shared), start("second", **shared)
    team = first.lead()
    with follow(first, ("session", f"{team}:0"), ("team", team)) as stream:
        create_task(second, team, "through the other")
        wait_until(lambda: stream.seqs(team), "the event of the other coordinator")
        cursor = {"Last-Event-ID": stream.cursor or ""}
        seen = stream.seqs(team)
        assert first.stop() == 0, first.log
        wait_until(lambda: not stream.is_open, "the stream to end with its coordinator")
    create_task(second, team, "while away")
    with follow(second, ("session", f"{team}:0"), ("team", team), headers=cursor) as stream:
        create_task(second, team, "after")
        newest = last_seq(second, team)
        wait_until(lambda: stream.seqs(team) and stream.seqs(team)[-1] == newest, "the rest")
        assert seen + stream.seqs(team) == list(range(1, newest + 1))
        assert len(stream.of("team")[-1]["tasks"]) == 3


@pytest.mark.parametrize("cursor", ["{team}:999999", "nonsense", "{team}:-1"])
def test_v01_a_cursor_of_another_store_is_one_resync_and_the_log_from_the_first_event(
    coordinator: CoordinatorProcess, cursor: str
) -> None:
    team = coordinator.lead()
    create_task(coordinator, team, "one")
    given = {"Last-Event-ID": cursor.format(team=team)}
    with follow(coordinator, ("session", f"{team}:0"), headers=given) as stream:
        newest = last_seq(coordinator, team)
        wait_until(lambda: stream.seqs(team) and stream.seqs(team)[-1] == newest, "the log")
        assert stream.of("resync") == [{"sessions": [team]}]
        assert stream.seqs(team) == list(range(1, newest + 1))
        again = {"Last-Event-ID": stream.cursor or ""}
    with follow(coordinator, ("session", f"{team}:0"), headers=again) as stream:
        create_task(coordinator, team, "two")
        wait_until(lambda: stream.seqs(team), "the next event")
        assert stream.of("resync") == []


def test_p01_a_lost_publication_delays_a_view_and_never_loses_it(start: Start) -> None:
    deaf = start("deaf", TEAM_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    team = deaf.lead()
    with follow(deaf, ("team", team), ("session", f"{team}:0")) as stream:
        wait_until(lambda: stream.of("team"), "the first view")
        create_task(deaf, team, "unheard")
        wait_until(lambda: stream.of("team")[-1]["tasks"], "the view without any hint", 10)
        wait_until(lambda: len(stream.seqs(team)) == last_seq(deaf, team), "the log without any hint", 10)


def test_a_quiet_stream_is_kept_alive_by_comments(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.comments, "a heartbeat", 20)


def test_text_deltas_come_through_and_older_attempts_are_dropped(
    coordinator: CoordinatorProcess, valkey_server: ValkeyProcess
) -> None:
    team = coordinator.lead()
    client: redis.Redis = redis.Redis.from_url(valkey_server.url)  # pyright: ignore[reportUnknownMemberType]  # untyped library

    def publish(epoch: int, attempt: int, offset: int, text: str) -> int:
        delta = {"turnId": "t", "epoch": epoch, "step": 1, "attempt": attempt, "offset": offset, "text": text}
        return cast("int", client.execute_command("PUBLISH", f"streams:delta:{team}", json.dumps(delta)))  # pyright: ignore[reportUnknownMemberType]  # untyped library

    with follow(coordinator, ("session", f"{team}:0")) as stream:
        wait_until(lambda: publish(1, 1, 0, "a"), "the subscription")
        publish(2, 1, 0, "b")
        publish(1, 1, 1, "late")
        publish(2, 1, 1, "c")
        client.execute_command("PUBLISH", f"streams:delta:{team}", "not json")  # pyright: ignore[reportUnknownMemberType]  # untyped library
        publish(2, 2, 0, "d")
        wait_until(lambda: stream.of("delta") and stream.of("delta")[-1]["text"] == "d", "the newest text")
        assert [delta["text"] for delta in stream.of("delta")] == ["a", "b", "c", "d"]
    client.close()


def test_a_damaged_log_is_a_fault_of_its_session_and_of_nobody_else(
    coordinator: CoordinatorProcess, directory: Path
) -> None:
    team, healthy = coordinator.lead(), coordinator.lead()
    for subject in ("one", "two", "three"):
        create_task(coordinator, team, subject)
        create_task(coordinator, healthy, subject)
    damage(directory, "UPDATE event SET data = '{' WHERE session_id = ? AND seq = 2", team)
    with follow(coordinator, ("session", f"{team}:0"), ("session", f"{healthy}:0")) as stream:
        wait_until(lambda: stream.of("fault") and stream.seqs(healthy) == [1, 2, 3], "the fault and the healthy log")
        assert stream.seqs(team) == [1]
        assert stream.of("fault")[0]["sessionId"] == team
        assert "event 2" in stream.of("fault")[0]["message"]
        create_task(coordinator, healthy, "four")
        wait_until(lambda: stream.seqs(healthy) == [1, 2, 3, 4], "the healthy log to go on")
        assert len(stream.of("fault")) == 1


def test_a_failure_stands_beside_the_last_valid_state(coordinator: CoordinatorProcess, directory: Path) -> None:
    team = coordinator.lead()
    create_task(coordinator, team, "kept")
    create_task(coordinator, team, "lost")
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.of("team") and len(stream.of("team")[-1]["tasks"]) == 2, "the board")
        damage(directory, "UPDATE event SET data = '{' WHERE session_id = ? AND seq = 2", team)
        damage(directory, "UPDATE task SET data = '{' WHERE session_id = ? AND number = 2", team)
        wait_until(lambda: "failure" in stream.of("team")[-1], "the failure", 15)
        view = stream.of("team")[-1]
    assert "event 2" in view["failure"]
    assert [task["subject"] for task in view["tasks"]] == ["kept"]
    shown = coordinator.client.get(f"/v1/teams/{team}").json()
    assert (shown["failure"], shown["tasks"]) == (view["failure"], view["tasks"])


def test_the_list_of_teams_follows_what_happens(coordinator: CoordinatorProcess) -> None:
    with follow(coordinator, ("teams", "true")) as stream:
        wait_until(lambda: stream.of("teams"), "the list")
        team = coordinator.lead("build   it\nnow")
        wait_until(lambda: [row["teamId"] for row in stream.of("teams")[-1]["teams"]][:1] == [team], "the new Team")
        row = stream.of("teams")[-1]["teams"][0]
        assert (row["teamId"], row["title"], row["status"], row["running"]) == (team, "build it now", "running", 1)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([("team", "nobody")], (404, "SESSION_NOT_FOUND")),
        ([("session", "nobody:0")], (404, "SESSION_NOT_FOUND")),
        ([("session", "nobody")], (422, "REQUEST_INVALID")),
        ([("session", "x:99999999999999999999")], (422, "REQUEST_INVALID")),
    ],
)
def test_a_stream_of_nothing_is_a_typed_error(
    coordinator: CoordinatorProcess, parameters: list[tuple[str, str]], expected: tuple[int, str]
) -> None:
    response = coordinator.client.get("/v1/stream", params=dict(parameters))
    assert (response.status_code, response.json()["error"]["code"]) == expected


def test_a_stopped_coordinator_ends_its_streams_at_once(start: Start) -> None:
    coordinator = start()
    team = coordinator.lead()
    with follow(coordinator, ("team", team)) as stream:
        wait_until(lambda: stream.of("team"), "the first view")
        coordinator.process.terminate()
        assert coordinator.process.wait(4) == 0


def test_a_browser_exchanges_its_token_for_a_cookie_that_only_the_panel_can_use(
    coordinator: CoordinatorProcess,
) -> None:
    url = f"http://127.0.0.1:{coordinator.port}"
    with httpx2.Client(base_url=url, trust_env=False) as browser:
        assert browser.get("/v1/sessions").status_code == httpx2.codes.UNAUTHORIZED
        wrong = browser.post("/browser-session", headers={"Authorization": "Bearer wrong"})
        assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)
        signed = browser.post("/browser-session", headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"})
        assert signed.json() == {"role": "operator"}
        cookie = signed.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert OPERATOR_TOKEN not in cookie
        assert browser.get("/v1/sessions").status_code == httpx2.codes.OK
        body = {"cwd": ".", "profile": "team"}
        refused = [
            browser.post("/v1/sessions", json=body),
            browser.post("/v1/sessions", json=body, headers={"Team-Panel": "1", "Origin": "http://127.0.0.1:1"}),
            browser.post("/v1/sessions", json=body, headers={"Origin": url}),
        ]
        assert [response.status_code for response in refused] == [403, 403, 403]
        accepted = browser.post("/v1/sessions", json=body, headers={"Team-Panel": "1", "Origin": url})
        assert accepted.status_code == httpx2.codes.CREATED
        forged = next(iter(browser.cookies.jar))
        value = str(forged.value)
        for bad in (value[:-1] + ("0" if value[-1] != "0" else "1"), value.replace("operator", "viewer", 1), "", "..."):
            lied = {"Cookie": f"{forged.name}={bad}"}
            assert httpx2.get(f"{url}/v1/sessions", headers=lied, trust_env=False).status_code == 401
        assert browser.delete("/browser-session", headers={"Team-Panel": "1"}).status_code == 204
        assert browser.get("/v1/sessions").status_code == httpx2.codes.UNAUTHORIZED
        browser.post("/browser-session", headers={"Authorization": "Bearer viewer-token"})
        looked = browser.post("/v1/sessions", json=body, headers={"Team-Panel": "1", "Origin": url})
        assert (browser.get("/v1/sessions").status_code, looked.status_code) == (200, 403)


def damage(directory: Path, statement: str, session: str) -> None:
    """Overwrite something in the stored log."""
    connection = sqlite3.connect(directory / "data" / "team.db", timeout=15)
    with connection:
        assert connection.execute(statement, (session,)).rowcount == 1
    connection.close()
