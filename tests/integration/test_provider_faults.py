"""Faults of a provider that speaks real HTTP: nothing partial is used, nothing hangs, no key is told."""

import asyncio
import json
from collections.abc import Iterator
from typing import Final

import pytest

from config.settings import Settings
from team.model.content import TextBlock, ToolCallBlock, text_of
from team.model.errors import ConfigurationInvalid
from tests.support.asking import (
    BOTH,
    CHAT,
    KEY,
    READ_A,
    READ_B,
    RESPONSES,
    ask,
    failure,
    hello,
    run,
)
from tests.support.provider_replies import FakeCall, Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import load
from tests.support.waiting import wait_until, wait_until_async
from workers.models import ModelFailure, Models


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


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
def test_l01_a_fault_of_the_connection_or_server_may_be_retried_and_runs_nothing(
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
def test_l01_a_fault_that_stays_ends_the_turn_with_its_code_and_no_key_in_its_text(
    server: ProviderServer, model: str, fault: str
) -> None:
    """R11: nothing is retried for ever; invariant 8: the key is not repeated."""
    reply, kind, code = FINAL[fault]
    raised = failure(server, model, reply)
    assert (raised.kind, raised.code, raised.retryable) == (kind, code, False)
    assert KEY not in raised.message
    assert len(raised.message.splitlines()) == 1


def test_the_responses_api_is_held_to_the_same_completeness(server: ProviderServer) -> None:
    """L01."""
    for reply, kind in ((Reply(text=["All?"], cut="no-finish"), "transient"), (Reply(status=401), "auth")):
        assert failure(server, RESPONSES, reply).kind == kind
    server.replies.append(Reply(text=["I will"], calls=[READ_A], finish="length"))
    answer, _ = ask(server, RESPONSES, hello().conversation)
    assert (answer.finish_reason, text_of(answer.content)) == ("max-tokens", "I will")
    assert not any(isinstance(block, ToolCallBlock) for block in answer.content)


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
def test_l01_a_silent_provider_is_given_up_and_its_connection_closed(
    server: ProviderServer, model: str, text: list[str]
) -> None:
    """L01: a hang ends at the request timeout."""
    raised = failure(server, model, Reply(text=text, hang=True), request_timeout_seconds=0.5)
    assert (raised.kind, raised.retryable) == ("transient", True)
    wait_until(lambda: server.disconnected == 1, "the server to see the connection closed")


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("text", [[], ["Some text"]])
def test_w08_cancelling_a_request_closes_its_connection(server: ProviderServer, model: str, text: list[str]) -> None:
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
def test_l01_an_answer_cut_by_the_length_limit_runs_none_of_its_calls(server: ProviderServer, model: str) -> None:
    log = hello()
    server.replies.append(Reply(text=["I will"], calls=[READ_A], finish="length"))
    answer, _ = ask(server, model, log.conversation)
    assert (answer.finish_reason, answer.content) == ("max-tokens", (TextBlock(text="I will"),))
    log.answer(answer)
    log.user("Go on.")
    ask(server, model, log.conversation)
    assert "read" not in json.dumps(server.requests[1].json["messages"])


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
def test_s05_s06_unstorable_text_is_cleaned_once_and_the_session_goes_on(server: ProviderServer, model: str) -> None:
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


def test_a_wrong_model_name_is_told_before_any_request(server: ProviderServer) -> None:
    async def act(models: Models) -> None:
        for name in ("gpt-5", "unknown:model", "openai-chat:", "google:gemini"):
            with pytest.raises(ConfigurationInvalid):
                models.get(name)

    run(server, act)
    assert server.requests == []
