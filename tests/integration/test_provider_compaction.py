"""Requests around a compaction: the summary's extends the history, and those behind it extend each other."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from team.model.content import text_block, text_of
from team.model.events import KeptMessage
from team.model.history import SummaryEntry
from team.model.snapshots import HumanSource
from tests.support.asking import ANTHROPIC, BOTH, CHAT, READ_A, READ_B, RESPONSES, ask, run
from tests.support.prefixes import assert_extends, messages_end
from tests.support.provider_replies import Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import SessionLog, load
from workers.models import Answer, ModelFailure, Models
from workers.models.conversation import LEFT_OUT, Conversation


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


def summarised(server: ProviderServer, model: str, conversation: Conversation) -> Answer:
    async def act(models: Models) -> Answer:
        return await models.get(model).summarise(conversation, member="lead")

    return run(server, act)


def begun(server: ProviderServer, model: str) -> SessionLog:
    """A Session after its first step, about to make its second request."""
    log = SessionLog()
    log.user("Please do it.")
    server.replies.append(Reply(reasoning="hmm", text=["First."], calls=[READ_A, READ_B]))
    log.results(log.answer(ask(server, model, log.conversation)[0]), "contents of a", "contents of b")
    return log


def compact(log: SessionLog, summary: str) -> None:
    kept = KeptMessage(content=text_block("Please do it."), source=HumanSource())
    log.add(
        SummaryEntry(seq=log.seq + 1, summary=summary, context="[Runtime context. You are the Lead.]", kept=(kept,))
    )


@pytest.mark.parametrize("model", [*BOTH, RESPONSES])
def test_the_request_for_a_summary_extends_the_history_and_runs_no_tool(server: ProviderServer, model: str) -> None:
    log = begun(server, model)
    server.replies += [Reply(text=["What ", "was."], calls=[READ_A]), Reply(text=["on"])]
    answer = summarised(server, model, log.conversation)
    assert text_of(answer.content) == "What was."
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (100, 20)
    before, asked = (request.body for request in server.requests)
    end = messages_end(before)
    assert asked[:end] == before[:end]
    assert b"answer with the summary alone" in asked[end : messages_end(asked)]
    body = json.loads(asked)
    assert body["tools"] == json.loads(before)["tools"], "tools are part of the prefix that is cached"
    assert body["tool_choice"] in ("none", {"type": "none"})
    # The question is no part of the history: the next request does not show it.
    ask(server, model, log.conversation)
    assert b"answer with the summary alone" not in server.requests[-1].body


@pytest.mark.parametrize("model", [*BOTH, RESPONSES])
def test_requests_behind_a_compaction_extend_each_other_and_keep_system_prompt_and_tools(
    server: ProviderServer, model: str
) -> None:
    log = begun(server, model)
    compact(log, "We read a and b.")
    server.replies += [Reply(calls=[READ_A]), Reply(calls=[READ_B]), Reply(text=["done"])]
    for content in ("again a", "again b"):
        log.results(log.answer(ask(server, model, log.conversation)[0]), content)
    log.user("One more thing.")
    ask(server, model, log.conversation)

    before, *behind = (request.body for request in server.requests)
    for earlier, later in itertools.pairwise(behind):
        assert_extends(earlier, later)
    assert behind[0][messages_end(behind[0]) :] == before[messages_end(before) :]
    texts = [behind[0].index(part) for part in (b"We read a and b.", b"You are the Lead", b"Please do it.")]
    assert texts == sorted(texts)
    assert b"contents of a" not in behind[-1]
    ask(server, model, load(log.dump()))
    assert server.requests[-1].body == behind[-1], "another worker makes the same request"


@pytest.mark.parametrize("model", BOTH)
def test_a_summary_without_text_is_asked_for_again(server: ProviderServer, model: str) -> None:
    log = begun(server, model)
    server.replies.append(Reply(calls=[READ_A]))
    with pytest.raises(ModelFailure) as caught:
        summarised(server, model, log.conversation)
    assert caught.value.retryable


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("model", [CHAT, ANTHROPIC])
def test_a_shortened_history_is_one_that_a_provider_accepts(server: ProviderServer, model: str, level: int) -> None:
    log = begun(server, model)
    for number in range(4):
        server.replies.append(Reply(calls=[READ_A]))
        log.results(log.answer(ask(server, model, log.conversation)[0]), f"{number}" * 9_000)
    whole = len(server.requests[-1].body)
    server.replies.append(Reply(text=["What was."]))
    summarised(server, model, log.conversation.shortened(level))
    body = server.requests[-1].json
    messages = [message for message in body["messages"] if message["role"] not in ("system", "developer")]
    assert messages[0]["role"] == "user"
    assert (LEFT_OUT in json.dumps(messages[0])) == (level > 1)
    assert len(server.requests[-1].body) < whole
    assert "characters left out" in json.dumps(body)
    if model == CHAT:
        asked: list[dict[str, Any]] = [call for message in messages for call in message.get("tool_calls", [])]
        calls = [call["id"] for call in asked]
        assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == calls
