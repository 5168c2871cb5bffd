"""What the model layer sends to a provider that speaks real HTTP, and the answers that it accepts."""

import asyncio
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from team.model.content import ReasoningBlock, TextBlock, ToolCallBlock, text_of
from tests.support.asking import (
    ANTHROPIC,
    BOTH,
    CHAT,
    COMPATIBLE,
    READ_A,
    READ_B,
    RESPONSES,
    ask,
    hello,
    run,
)
from tests.support.prefixes import assert_extends
from tests.support.provider_replies import FakeCall, Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import SYSTEM, SessionLog, load
from workers.models import Answer, ModelFailure, Models


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


@pytest.mark.parametrize("model", [*BOTH, RESPONSES])
def test_an_answer_has_its_text_reasoning_calls_and_usage_in_order(server: ProviderServer, model: str) -> None:
    server.replies.append(Reply(reasoning="hmm, hmm", text=["Let me ", "look."], calls=[READ_A, READ_B]))
    answer, pieces = ask(server, model, hello().conversation)
    reasoning, text, first, second = answer.content
    assert reasoning == ReasoningBlock(text="hmm, hmm")
    assert text == TextBlock(text="Let me look.")
    assert isinstance(first, ToolCallBlock)
    assert isinstance(second, ToolCallBlock)
    assert (first.name, first.arguments) == ("read", '{"path": "a.py"}')
    assert (second.name, second.arguments) == ("read", '{"path":"b.py"}')
    assert first.call_id != second.call_id
    assert (answer.model, answer.finish_reason) == (model, "tool-calls")
    assert (answer.usage.input_tokens, answer.usage.cached_tokens, answer.usage.output_tokens) == (100, 64, 20)
    assert pieces == ["Let me ", "look."]


def play_session(server: ProviderServer, model: str, log: SessionLog) -> None:
    """Two turns with parallel calls, errors, an unknown outcome, a failed request and a late message."""
    server.replies += [
        Reply(text=["First."], calls=[READ_A, READ_B]),
        Reply(reasoning="thinking about it", text=["Now."], calls=[READ_A, READ_B, READ_A]),
        Reply(calls=[FakeCall(name="read", arguments='{"path": NaN}'), FakeCall(name="read", arguments="[1]")]),
        Reply(text=["Turn ", "over."]),
        Reply(status=500),
        Reply(reasoning="more", calls=[FakeCall(name="read", arguments='{"path": "\\ud83d", "n": 1}')]),
        Reply(text=["End."]),
        Reply(text=["And again."]),
    ]

    async def act(models: Models) -> None:
        async def step() -> list[ToolCallBlock]:
            return log.answer(await models.get(model).answer(log.conversation, member="lead", on_text=lambda _: None))

        log.identity("[Runtime context. You are the Lead of this Team.]")
        log.user("Please do it.")
        log.results(await step(), "contents of a", "contents of b")
        calls = await step()
        log.result(calls[2], 2, "third")
        log.result(calls[0], 0, '{"error":{"code":"FS_STALE_VERSION","message":"read it again"}}', "error")
        log.result(calls[1], 1, "The outcome is unknown.", "unknown")
        log.message("alice", "I am done.")
        log.results(await step(), '{"error":{"code":"bad"}}', "no object")
        assert await step() == []
        log.user("One more thing.")
        with pytest.raises(ModelFailure):
            await step()
        log.message("bob", "A message that came after the failed request.")
        log.results(await step(), "fine")
        assert await step() == []
        log.user("Good.")
        assert await step() == []

    run(server, act)


@pytest.mark.parametrize("model", [*BOTH, RESPONSES, *COMPATIBLE])
def test_every_request_extends_the_one_before_it_byte_for_byte(server: ProviderServer, model: str) -> None:
    play_session(server, model, SessionLog())
    bodies = [request.body for request in server.requests]
    assert len(bodies) == 8
    for before, after in itertools.pairwise(bodies):
        assert_extends(before, after)


@pytest.mark.parametrize("model", BOTH)
def test_a_reloaded_history_makes_the_same_request_in_another_process(server: ProviderServer, model: str) -> None:
    """S06, L03: what the log holds is enough; nothing that only the first worker knew is in the request."""
    log = SessionLog()
    play_session(server, model, log)
    log.user("Once more.")
    server.replies += [Reply(text=["Here."])]
    ask(server, model, log.conversation)
    command = [sys.executable, "-m", "tests.support.replayed_request", model, server.url, server.anthropic_url]
    root = Path(__file__).parents[2]
    subprocess.run(command, input=log.dump(), cwd=root, check=True, timeout=100)
    first, second = server.requests[-2:]
    assert first.body == second.body


@pytest.mark.parametrize("model", BOTH)
def test_results_go_out_by_call_index_whatever_order_they_were_committed_in(server: ProviderServer, model: str) -> None:
    in_order, reversed_order = hello(), hello()
    for log, order in ((in_order, (0, 1)), (reversed_order, (1, 0))):
        server.replies.append(Reply(calls=[FakeCall(name="read", id="one"), FakeCall(name="read", id="two")]))
        answer, _ = ask(server, model, log.conversation)
        calls = log.answer(answer)
        for index in order:
            log.result(calls[index], index, f"result {index}")
        ask(server, model, log.conversation)
    assert server.requests[1].body == server.requests[3].body


@pytest.mark.parametrize("model", BOTH)
def test_a_rewritten_call_id_is_the_one_that_the_provider_sees_again(server: ProviderServer, model: str) -> None:
    log = hello()
    for _ in range(2):
        server.replies.append(Reply(reasoning="so", calls=[FakeCall(name="read", id="same")]))
        answer, _ = ask(server, model, log.conversation)
        log.results(log.answer(answer), "ok")
    ask(server, model, log.conversation)
    body = server.requests[-1].body.decode()
    assert body.count('"same"') == 2
    assert body.count('"same-again"') == 2


@pytest.mark.parametrize("model", BOTH)
def test_tool_schemas_reach_the_provider_unchanged(server: ProviderServer, model: str) -> None:
    ask(server, model, hello().conversation)
    (tool,) = server.requests[0].json["tools"]
    schema = tool["function"]["parameters"] if model == CHAT else tool["input_schema"]
    assert schema == {
        "type": "object",
        "properties": {"path": {"type": "string", "minLength": 1}, "mode": {"enum": ["text", "bytes"]}},
        "required": ["path"],
        "additionalProperties": False,
    }
    assert "strict" not in json.dumps(tool)


def test_failed_results_are_marked_for_anthropic_and_told_in_the_text_elsewhere(server: ProviderServer) -> None:
    told = '{"error":{"code":"FS_STALE_VERSION","message":"read it again"}}'
    for model in BOTH:
        log = hello()
        server.replies.append(Reply(calls=[READ_A, READ_B]))
        answer, _ = ask(server, model, log.conversation)
        calls = log.answer(answer)
        log.result(calls[0], 0, told, "error")
        log.result(calls[1], 1, "The outcome is unknown.", "unknown")
        ask(server, model, log.conversation)
    chat = [message["content"] for message in server.requests[1].json["messages"] if message["role"] == "tool"]
    assert chat == [told, '{"error":"The outcome is unknown."}']
    first, second = server.requests[3].json["messages"][-1]["content"]
    assert (first["is_error"], second["is_error"]) == (True, True)
    assert first["content"] == [{"type": "text", "text": told}]
    assert second["content"] == [{"type": "text", "text": "The outcome is unknown."}]


def test_another_providers_answers_are_resent_without_its_reasoning(server: ProviderServer) -> None:
    log = hello()
    server.replies.append(Reply(reasoning="private", text=["Said."], calls=[READ_A]))
    answer, _ = ask(server, ANTHROPIC, log.conversation)
    log.results(log.answer(answer), "contents")
    log.header(SYSTEM, model=CHAT)
    server.replies.append(Reply(reasoning="also private", text=["Also said."], calls=[READ_B]))
    answer, _ = ask(server, CHAT, log.conversation)
    log.results(log.answer(answer), "more contents")
    log.header(SYSTEM, model=ANTHROPIC)
    ask(server, ANTHROPIC, log.conversation)
    to_chat, to_anthropic = server.requests[1].body.decode(), server.requests[2].body.decode()
    assert "private" not in to_chat
    assert "Said." in to_chat
    assert "also private" not in to_anthropic
    assert '"thinking":"private"' in to_anthropic
    assert '"signature":"sig-1"' in to_anthropic
    assert "Also said." in to_anthropic
    assert "more contents" in to_anthropic


@pytest.mark.parametrize("model", BOTH)
def test_a_compaction_replaces_everything_before_it_and_keeps_the_system_prompt(
    server: ProviderServer, model: str
) -> None:
    log = SessionLog(system="The system prompt.")
    log.user("an old request")
    server.replies.append(Reply(calls=[READ_A]))
    answer, _ = ask(server, model, log.conversation)
    log.results(log.answer(answer), "old contents")
    log.compact("We read a.py.")
    log.user("a new request")
    ask(server, model, log.conversation)
    ask(server, model, load(log.dump()))
    body = server.requests[1].body
    assert server.requests[2].body == body
    for gone in (b"an old request", b"old contents", b"a.py\\"):
        assert gone not in body
    for kept in (b"The system prompt.", b"We read a.py.", b"a new request"):
        assert kept in body


def test_a_request_is_built_without_a_walk_over_every_message(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's typed walk costs a millisecond of the event loop per message; a long history would stall it."""
    completions: Any = importlib.import_module("openai.resources.chat.completions.completions")
    walk = completions.async_maybe_transform
    walked: list[Any] = []

    async def recording(data: Any, expected: Any) -> Any:
        walked.append(data["messages"])
        return await walk(data, expected)

    monkeypatch.setattr(completions, "async_maybe_transform", recording)
    log = SessionLog()
    for number in range(50):
        log.user(f"message {number}")
    ask(server, CHAT, log.conversation)
    assert walked == [[]]
    assert len(server.requests[0].json["messages"]) == 51


def test_requests_of_many_sessions_run_at_once_on_one_model(server: ProviderServer) -> None:
    async def act(models: Models) -> list[Answer]:
        model = models.get(CHAT)
        asked = [model.answer(hello().conversation, member="lead", on_text=lambda _: None) for _ in range(20)]
        return await asyncio.gather(*asked)

    server.replies += [Reply(text=[f"answer {number}"]) for number in range(20)]
    answers = run(server, act)
    assert sorted(text_of(answer.content) for answer in answers) == sorted(f"answer {number}" for number in range(20))
