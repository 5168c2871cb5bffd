"""The client of the command line: retries that repeat nothing, errors by their code, pages of events."""

from typing import Any

import pytest

from team.cli.client import Operator
from team.cli.faults import StackFailed
from team.model.errors import CoordinatorUnreachable, SessionNotFound, TaskStaleRevision, TeamError
from tests.support.http import Answer, Asked, RecordingServer
from tests.support.ports import free_port


def event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "time": "2026-01-01T00:00:00Z", "type": "step/start", "data": {"turnId": "t", "step": 1}}


def test_a_post_is_retried_under_one_key_while_the_coordinator_restarts() -> None:
    answers: list[Answer] = [(503, {"error": {"code": "STORE_UNAVAILABLE", "message": "later"}}), (200, {"id": "s-1"})]
    with RecordingServer(lambda _: answers.pop(0)) as server, Operator(server.url, "token") as operator:
        assert operator.create_session(cwd="/w", profile="team", model=None, prompt="Go.") == "s-1"
    keys = [request.headers["idempotency-key"] for request in server.asked]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert server.asked[0].body == {"cwd": "/w", "profile": "team", "prompt": "Go."}
    assert server.asked[0].headers["authorization"] == "Bearer token"


def test_two_posts_have_two_keys() -> None:
    with RecordingServer(lambda _: (200, {"messageId": "m"})) as server, Operator(server.url, "token") as operator:
        operator.send("s-1", "one")
        operator.send("s-1", "two", "steer")
    assert len({request.headers["idempotency-key"] for request in server.asked}) == 2
    assert server.asked[1].body == {"text": "two", "delivery": "steer"}


def test_an_error_is_raised_by_its_code() -> None:
    answer = (404, {"error": {"code": "SESSION_NOT_FOUND", "message": "There is no Session x."}})
    with (
        RecordingServer(lambda _: answer) as server,
        Operator(server.url, "token") as operator,
        pytest.raises(SessionNotFound, match="no Session x"),
    ):
        operator.session("x")


@pytest.mark.parametrize("answer", [(500, b"<html>oops</html>"), (200, b"[1]"), (200, b"{"), (418, {"detail": "no"})])
def test_something_else_than_a_coordinator_is_named_as_such(answer: Answer) -> None:
    with (
        RecordingServer(lambda _: answer) as server,
        Operator(server.url, "token") as operator,
        pytest.raises(TeamError, match="is it a coordinator"),
    ):
        operator.interrupt("x")


def test_nobody_at_the_address_is_one_sentence() -> None:
    with (
        Operator(f"http://127.0.0.1:{free_port()}", "token", patience_seconds=0) as operator,
        pytest.raises(CoordinatorUnreachable, match="team up"),
    ):
        operator.sessions()


def test_a_call_ends_with_what_made_the_stack_fail_and_not_with_silence_at_its_address() -> None:
    failures: list[TeamError] = []

    def check() -> None:
        if failures:
            raise failures[0]
        failures.append(StackFailed("worker-1 could not start: no locks"))

    with (
        Operator(f"http://127.0.0.1:{free_port()}", "token", check=check) as operator,
        pytest.raises(StackFailed, match="worker-1 could not start"),
    ):
        operator.sessions()


def test_events_are_read_page_by_page() -> None:
    def answer(request: Asked) -> Answer:
        after = int(request.path.split("after=")[1].split("&")[0])
        return 200, {"events": [event(seq) for seq in range(after + 1, min(after + 3, 6))], "lastSeq": 5}

    with RecordingServer(answer) as server, Operator(server.url, "token") as operator:
        assert [item.seq for item in operator.events("s-1")] == [1, 2, 3, 4, 5]
        assert [item.seq for item in operator.events("s-1", after=4)] == [5]
        assert list(operator.events("s-1", after=5)) == []


def test_names_in_a_path_cannot_change_it() -> None:
    with RecordingServer(lambda _: (200, {"result": {}})) as server, Operator(server.url, "token") as operator:
        operator.tool("../x", "a/b", "t?c=d", {}, wait=5)
    assert server.asked[0].path == "/v1/teams/..%2Fx/members/a%2Fb/tools/t%3Fc%3Dd"


def test_a_tool_error_comes_back_unjudged() -> None:
    body = {"error": {"code": TaskStaleRevision.code, "message": "read it again"}}
    with RecordingServer(lambda _: (409, body)) as server, Operator(server.url, "token") as operator:
        answer = operator.tool("t", "lead", "team_task_update", {"task_id": "task-1"}, wait=5)
    assert (answer.status, answer.body) == (409, body)


def test_closing_a_team_tells_who_was_interrupted() -> None:
    body = {"closed": True, "interrupted": ["bob"]}
    with RecordingServer(lambda _: (200, body)) as server, Operator(server.url, "x") as operator:
        assert operator.close_team("t") == body
    assert server.asked[0].path == "/v1/teams/t/close"
