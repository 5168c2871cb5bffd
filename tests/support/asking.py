"""Requests of the model layer to the fake provider, as a worker would make them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import pytest

from config.settings import Settings
from tests.support.provider_replies import FakeCall, Reply
from tests.support.provider_server import ProviderServer
from tests.support.sessions import SessionLog
from workers.models import Answer, Conversation, ModelFailure, Models

T = TypeVar("T")

CHAT: Final = "openai-chat:some-model"
ANTHROPIC: Final = "anthropic:claude-opus-5"
BOTH: Final = [CHAT, ANTHROPIC]
RESPONSES: Final = "openai:gpt-5"
COMPATIBLE: Final = ["deepseek:deepseek-chat", "openrouter:some/model", "vllm:qwen3", "ollama:llama3"]
KEY: Final = "key-0123456789abcdef"

READ_A: Final = FakeCall(name="read", arguments='{"path": "a.py"}')
READ_B: Final = FakeCall(name="read", arguments='{"path":"b.py"}')


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
