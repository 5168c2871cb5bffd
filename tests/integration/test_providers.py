"""The model layer against a provider that speaks real HTTP."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from config.settings import Settings
from team.model.content import ReasoningBlock, TextBlock, ToolCallBlock, text_of
from team.model.errors import ConfigurationInvalid
from tests.support.provider_replies import FakeCall, Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import SYSTEM, SessionLog, load
from tests.support.waiting import wait_until, wait_until_async
from workers.models import Answer, Conversation, ModelFailure, Models

T = TypeVar("T")

CHAT: Final = "openai-chat:some-model"
ANTHROPIC: Final = "anthropic:claude-opus-5"
BOTH: Final = [CHAT, ANTHROPIC]
COMPATIBLE: Final = ["deepseek:deepseek-chat", "openrouter:some/model", "vllm:qwen3", "ollama:llama3"]
KEY: Final = "key-0123456789abcdef"

READ_A: Final = FakeCall(name="read", arguments='{"path": "a.py"}')
READ_B: Final = FakeCall(name="read", arguments='{"path":"b.py"}')


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


def run(server: ProviderServer, act: Callable[[Models], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """Run ``act`` with the models of a worker that knows the fake provider."""

    async def body() -> T:
        keys = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.anthropic_url, "OPENAI_API_KEY": KEY}
        models = Models(Settings(model_base_url=server.url, **settings), keys)
        try:
            return await act(models)
        finally:
            await models.close()

    return asyncio.run(body())


def ask(server: ProviderServer, model: str, conversation: Conversation, **settings: Any) -> tuple[Answer, list[str]]:
    """One request; returns the answer and the streamed pieces."""
    pieces: list[str] = []

    async def act(models: Models) -> Answer:
        return await models.get(model).answer(conversation, member="lead", on_text=pieces.append)

    return run(server, act, **settings), pieces


def failure(server: ProviderServer, model: str, reply: Reply, **settings: Any) -> ModelFailure:
    """What one request raises that gets ``reply``."""
    server.replies.append(reply)
    with pytest.raises(ModelFailure) as caught:
        ask(server, model, hello().conversation, **settings)
    return caught.value


def hello() -> SessionLog:
    log = SessionLog()
    log.user("hello")
    return log


@pytest.mark.parametrize("model", BOTH)
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


def messages_end(body: bytes) -> int:
    """Where the messages array of a request body ends, its closing bracket not included."""
    text = body.decode()
    start = text.index('"messages":[') + len('"messages":')
    _, end = json.JSONDecoder().raw_decode(text, start)
    return len(text[: end - 1].encode())


def assert_extends(before: bytes, after: bytes) -> None:
    """The later request is the earlier one with messages added to its array: no other byte differs."""
    old_end, new_end = messages_end(before), messages_end(after)
    assert after[:old_end] == before[:old_end]
    assert after[new_end:] == before[old_end:]
    assert new_end > old_end


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


@pytest.mark.parametrize("model", [*BOTH, *COMPATIBLE])
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


RETRYABLE: Final = {
    "429 with Retry-After": (Reply(status=429, headers={"Retry-After": "7"}), "rate-limit"),
    "500": (Reply(status=500), "transient"),
    "503": (Reply(status=503), "transient"),
    "529": (Reply(status=529), "transient"),
    "408": (Reply(status=408), "transient"),
    "cut before the first byte": (Reply(cut="before-first-byte"), "transient"),
    "cut in the text": (Reply(text=["Half an", " ans"], cut="mid-text"), "transient"),
    "cut in a call's arguments": (Reply(calls=[READ_A, READ_B], cut="mid-call"), "transient"),
    "a clean end without a finish reason": (Reply(text=["All of it?"], cut="no-finish"), "transient"),
    "calls and no finish reason": (Reply(calls=[READ_A], cut="no-finish"), "transient"),
    "a page of a proxy": (Reply(html=True), "transient"),
    "200 and nothing": (Reply(empty=True), "transient"),
    "an event that is no JSON": (Reply(malformed=True), "transient"),
}


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("fault", RETRYABLE)
def test_a_fault_of_the_connection_or_server_may_be_retried_and_runs_nothing(
    server: ProviderServer, model: str, fault: str
) -> None:
    """L01: also a partial call is dropped whole, and the library itself does not retry."""
    reply, kind = RETRYABLE[fault]
    raised = failure(server, model, reply)
    assert (raised.kind, raised.retryable) == (kind, True)
    assert raised.retry_after_seconds == (7.0 if "Retry-After" in fault else None)
    assert raised.message.startswith(model)
    assert len(server.requests) == 1


FINAL: Final = {
    "401": (Reply(status=401, message=f"Incorrect API key: {KEY}"), "auth", "auth"),
    "403": (Reply(status=403), "auth", "auth"),
    "404": (Reply(status=404), "not-found", "not-found"),
    "400": (Reply(status=400), "rejected", "provider"),
    "422": (Reply(status=422), "rejected", "provider"),
    "context length": (
        Reply(status=400, message="This model's maximum context length is 8192 tokens."),
        "context-length",
        "context-length",
    ),
    "a provider that says not to retry": (
        Reply(status=500, headers={"x-should-retry": "false"}),
        "transient",
        "provider",
    ),
}


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("fault", FINAL)
def test_a_fault_that_stays_ends_the_turn_with_its_code_and_no_key_in_its_text(
    server: ProviderServer, model: str, fault: str
) -> None:
    """R11: nothing is retried for ever; invariant 8: the key is not repeated."""
    reply, kind, code = FINAL[fault]
    raised = failure(server, model, reply)
    assert (raised.kind, raised.code, raised.retryable) == (kind, code, False)
    assert KEY not in raised.message
    assert len(raised.message.splitlines()) == 1


def test_used_up_credit_is_not_a_rate_limit(server: ProviderServer) -> None:
    raised = failure(server, CHAT, Reply(status=429, code="insufficient_quota"))
    assert (raised.kind, raised.retryable) == ("quota", False)


def test_a_server_that_is_not_there_is_a_transient_fault() -> None:
    with ProviderServer() as server:
        pass
    with pytest.raises(ModelFailure) as caught:
        ask(server, CHAT, hello().conversation)
    assert (caught.value.kind, caught.value.retryable) == ("transient", True)


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("text", [[], ["Some text"]])
def test_a_silent_provider_is_given_up_and_its_connection_closed(
    server: ProviderServer, model: str, text: list[str]
) -> None:
    """L01: a hang ends at the request timeout."""
    raised = failure(server, model, Reply(text=text, hang=True), request_timeout_seconds=0.5)
    assert (raised.kind, raised.retryable) == ("transient", True)
    wait_until(lambda: server.disconnected == 1, "the server to see the connection closed")


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("text", [[], ["Some text"]])
def test_cancelling_a_request_closes_its_connection(server: ProviderServer, model: str, text: list[str]) -> None:
    """W08: an interrupt does not wait for the provider."""

    async def act(models: Models) -> None:
        pieces: list[str] = []
        server.replies.append(Reply(text=text, hang=True))
        request = asyncio.create_task(
            models.get(model).answer(hello().conversation, member="lead", on_text=pieces.append)
        )

        async def under_way() -> bool:
            return len(server.requests) == 1 and pieces == text

        async def closed() -> bool:
            return server.disconnected == 1

        await wait_until_async(under_way, "the request to be under way", 30)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await wait_until_async(closed, "the server to see the connection closed")
        server.replies.append(Reply(text=["Next."]))
        answer = await models.get(model).answer(hello().conversation, member="lead", on_text=pieces.append)
        assert text_of(answer.content) == "Next."

    run(server, act)


@pytest.mark.parametrize("model", BOTH)
def test_an_answer_cut_by_the_length_limit_runs_none_of_its_calls(server: ProviderServer, model: str) -> None:
    log = hello()
    server.replies.append(Reply(text=["I will"], calls=[READ_A], finish="length"))
    answer, _ = ask(server, model, log.conversation)
    assert (answer.finish_reason, answer.content) == ("max-tokens", (TextBlock(text="I will"),))
    log.answer(answer)
    log.user("Go on.")
    ask(server, model, log.conversation)
    assert b"read" not in server.requests[1].body[: messages_end(server.requests[1].body)]


@pytest.mark.parametrize("model", BOTH)
def test_calls_are_run_whatever_the_finish_reason_is_called(server: ProviderServer, model: str) -> None:
    server.replies.append(Reply(calls=[READ_A], finish="stop"))
    answer, _ = ask(server, model, hello().conversation)
    assert answer.finish_reason == "tool-calls"


@pytest.mark.parametrize("model", BOTH)
def test_a_refusal_is_an_answer_and_the_session_goes_on_after_it(server: ProviderServer, model: str) -> None:
    log = hello()
    server.replies.append(Reply(refusal="I will not do that."))
    answer, _ = ask(server, model, log.conversation)
    assert answer.finish_reason == "refusal"
    if model == CHAT:
        assert text_of(answer.content) == "I will not do that."
    assert log.answer(answer) == []
    log.user("Then something else.")
    answer, _ = ask(server, model, log.conversation)
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("model", BOTH)
def test_unstorable_text_is_cleaned_once_and_the_session_goes_on(server: ProviderServer, model: str) -> None:
    """S05, S06: NUL and lone surrogates from a provider do not reach the log or a later request."""
    log = hello()
    reply = Reply(text=["a\x00b", "\ud83d!"], calls=[FakeCall(name="read", arguments='{"path": "\x00"}')])
    server.replies.append(reply)
    answer, _ = ask(server, model, log.conversation)
    assert text_of(answer.content) == "a\N{SYMBOL FOR NULL}b\N{REPLACEMENT CHARACTER}!"
    json.dumps(answer.provider_detail).encode()
    assert answer.provider_detail is not None
    assert "\\u0000" not in answer.provider_detail
    log.results(log.answer(answer), "fine")
    server.replies.append(Reply(text=["ok"]))
    answer, _ = ask(server, model, load(log.dump()))
    assert text_of(answer.content) == "ok"


@pytest.mark.parametrize("model", BOTH)
def test_the_environment_supplies_no_key_url_or_header(
    server: ProviderServer, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B04: what is not in the given keys is not sent."""
    for name in ("API_KEY", "AUTH_TOKEN", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        for provider in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{provider}_{name}", "canary-value")
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_BASE_URL", "http://127.0.0.1:1/canary-value")
        monkeypatch.setenv(f"{provider}_CUSTOM_HEADERS", "X-Canary: canary-value\nAuthorization: Bearer canary-value")

    async def act() -> None:
        models = Models(Settings(model_base_url=server.url), {"ANTHROPIC_BASE_URL": server.anthropic_url})
        try:
            await models.get(model).answer(hello().conversation, member="lead", on_text=lambda _: None)
        finally:
            await models.close()

    asyncio.run(act())
    (request,) = server.requests
    assert "canary" not in json.dumps(request.headers) + request.body.decode()


def test_the_key_of_a_server_of_ones_own_wins_over_the_providers(server: ProviderServer) -> None:
    async def act(keys: dict[str, str]) -> None:
        models = Models(Settings(model_base_url=server.url), keys)
        try:
            await models.get(CHAT).answer(hello().conversation, member="lead", on_text=lambda _: None)
        finally:
            await models.close()

    asyncio.run(act({"OPENAI_API_KEY": "key-of-openai"}))
    asyncio.run(act({"OPENAI_API_KEY": "key-of-openai", "TEAM_MODEL_API_KEY": "key-of-mine"}))
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer key-of-openai", "Bearer key-of-mine"]


def test_requests_of_many_sessions_run_at_once_on_one_model(server: ProviderServer) -> None:
    async def act(models: Models) -> list[Answer]:
        model = models.get(CHAT)
        asked = [model.answer(hello().conversation, member="lead", on_text=lambda _: None) for _ in range(20)]
        return await asyncio.gather(*asked)

    server.replies += [Reply(text=[f"answer {number}"]) for number in range(20)]
    answers = run(server, act)
    assert sorted(text_of(answer.content) for answer in answers) == sorted(f"answer {number}" for number in range(20))


def test_a_wrong_model_name_is_told_before_any_request(server: ProviderServer) -> None:
    async def act(models: Models) -> None:
        for name in ("gpt-5", "unknown:model", "openai-chat:", "google:gemini"):
            with pytest.raises(ConfigurationInvalid):
                models.get(name)

    run(server, act)
    assert server.requests == []
