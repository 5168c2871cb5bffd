"""The fake provider plays a scenario over HTTP as the script model plays it in the worker."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2
import pytest

from config.models import check_model
from config.scenario import parse_scenario
from config.settings import Settings
from team.model.content import ToolCallBlock, text_of
from team.model.ids import SessionId, TurnId
from team.model.slices import HeadSlice
from team.model.snapshots import MemberSnapshot, SessionHeader, SettlementSource
from team.rules import identity
from tests.support.ports import free_port
from tests.support.provider_replies import FakeCall, Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import SessionLog
from tests.support.waiting import wait_until
from workers.models import Answer, Conversation, Model, Models

SCENARIO: Final = """
members:
  lead:
    start: plan
    on_message: thank
    states:
      plan:
        say: 'The task: ${message.text}'
        calls:
          - {tool: team_task_create, as: one, args: {subject: One}}
          - {tool: team_task_create, as: two, args: {subject: Two}}
        next:
          - when: {all: [{call: one, outcome: ok}, {call: two, outcome: error}]}
            save: {id: {call: one, field: id}}
            goto: wait
      wait:
        calls: [{tool: wait_agent, args: {timeout_ms: 10000}}]
        next:
          - when:
              all:
                - {message: {kind: team-message, from: alice, contains: done}}
                - {message: {kind: settlement, from: bob}}
            goto: end
          - {goto: wait}
      end: {say: '${id}: ${message.text} (${message.from})'}
      thank: {say: 'Thanks for ${message.text}'}
  alice:
    start: look
    states:
      look: {say: 'I am ${member}: ${message.text}', on_message: look}
"""


def play(model: Model, member: str, log: SessionLog) -> tuple[str, list[ToolCallBlock]]:
    answer: Answer = asyncio.run(model.answer(log.conversation, member=member, on_text=lambda _: None))
    return text_of(answer.content), log.answer(answer)


def identity_of(name: str | None) -> str:
    """The runtime context as the coordinator writes it for the Lead, or for a teammate."""
    session, team = SessionId("s"), SessionId("t")
    member = None
    if name is not None:
        member = MemberSnapshot(
            id=session, name=name, description="helps", provider="fork", context="fork", phase="active"
        )
    header = SessionHeader(
        id=session if name else team,
        created_at="2026-01-01T00:00:00Z",
        profile="team",
        cwd="/x",
        depth=1 if name else 0,
        root_id=team,
        parent_id=team if name else None,
    )
    return identity.text(header, member, HeadSlice(cwd="/x"), is_team=True)


def lead_session(model: Model) -> list[str]:
    """Everything that the Lead says and calls in two turns."""
    log = SessionLog()
    heard: list[str] = []

    def step() -> list[ToolCallBlock]:
        said, calls = play(model, "lead", log)
        heard.append(said)
        heard.extend(f"{call.name} {call.arguments}" for call in calls)
        return calls

    log.identity(identity_of(None))
    log.user("do it")
    calls = step()
    log.result(calls[1], 1, '{"error":{"code":"TEAM_TASK_LIMIT","message":"too many"}}', "error")
    log.result(calls[0], 0, '{"id":"task-1","revision":1}')
    calls = step()
    log.results(calls, '{"timedOut":true}')
    log.message("bob", "done? not me")
    calls = step()
    log.results(calls, '{"timedOut":false}')
    settled = SettlementSource(member_id=SessionId("b"), member_name="bob", turn_id=TurnId("t"))
    log.user("[Notice: the turn of bob ended: completed. This is no message of the member.]\n…", source=settled)
    log.message("alice", "done")
    assert step() == []
    log.user("the work")
    assert step() == []
    return heard


def models_of(server: ProviderServer) -> Models:
    return Models(
        Settings(model_base_url=server.url), {"ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": server.anthropic_url}
    )


@pytest.mark.parametrize("name", ["openai-chat:any", "anthropic:claude-opus-5"])
def test_a_scenario_over_http_is_answered_like_the_script_model(tmp_path: Path, name: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    local = lead_session(Models(Settings(), {}).get(f"script:{file}"))
    with ProviderServer(script=parse_scenario(SCENARIO, "plan.yaml")) as server:
        distant = lead_session(_Fresh(server, name))
    assert local == distant
    assert local[-2:] == ["task-1: done (alice)", "Thanks for the work"]


class _Fresh:
    """A model with new connections for each request, since each runs in an event loop of its own."""

    def __init__(self, server: ProviderServer, name: str) -> None:
        self.server = server
        self.name = name

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        models = models_of(self.server)
        try:
            return await models.get(self.name).answer(conversation, member=member, on_text=on_text)
        finally:
            await models.close()

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        models = models_of(self.server)
        try:
            return await models.get(self.name).summarise(conversation, member=member)
        finally:
            await models.close()


def test_a_fork_is_played_as_its_own_member() -> None:
    with ProviderServer(script=parse_scenario(SCENARIO, "plan.yaml")) as server:
        log = SessionLog()
        log.identity(identity_of(None))
        log.user("do it")
        play(_Fresh(server, "openai-chat:any"), "lead", log)
        log.results([*_calls(log)], '{"id":"task-1"}', '{"error":{}}')
        log.identity(identity_of("alice"))
        log.user("look here")
        assert play(_Fresh(server, "openai-chat:any"), "alice", log) == ("I am alice: look here", [])


def _calls(log: SessionLog) -> list[ToolCallBlock]:
    newest = log.conversation.newest_answer
    assert newest is not None
    return [block for block in newest.content if isinstance(block, ToolCallBlock)]


def test_the_server_runs_as_a_process_with_scripted_replies_and_a_record(tmp_path: Path) -> None:
    scenario, script = tmp_path / "replies.yaml", tmp_path / "plan.yaml"
    replies = [Reply(status=429, headers={"Retry-After": "1"}), Reply(text=["a"], calls=[FakeCall(name="x")])]
    scenario.write_text(json.dumps([reply.model_dump() for reply in replies]), encoding="utf-8")
    script.write_text(SCENARIO, encoding="utf-8")
    check_model(f"script:{script}", Settings(), {})
    port = free_port()
    command = [sys.executable, "-m", "tests.support.provider_server", "--port", str(port)]
    command += ["--scenario", str(scenario), "--script", str(script)]
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        output = process.stdout
        wait_until(lambda: output.readline().startswith("listening on"), "the server to listen", 30)
        with httpx2.Client(timeout=10) as client:
            first = client.post(f"{url}/v1/chat/completions", json=body)
            assert (first.status_code, first.headers["Retry-After"]) == (429, "1")
            second = client.post(f"{url}/v1/chat/completions", json=body)
            assert '"tool_calls"' in second.text
            third = client.post(f"{url}/v1/chat/completions", json=body)
            assert "The task: go" in "".join(
                json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                for line in third.text.splitlines()
                if line.startswith("data: {") and '"choices": [{' in line
            )
            client.post(f"{url}/replies", json=[{"text": ["added"]}]).raise_for_status()
            assert "added" in client.post(f"{url}/v1/chat/completions", json=body).text
            recorded = client.get(f"{url}/recorded").json()
        assert [json.loads(item["body"]) for item in recorded] == [body] * 4
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
