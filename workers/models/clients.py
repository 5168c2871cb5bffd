"""Provider clients of pydantic-ai, built from a resolved endpoint and nothing else: no environment, no config files."""

from dataclasses import dataclass
from typing import Any, Final, cast

import httpx2
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import create_async_httpx2_client
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.settings import ModelSettings

from config.models import Endpoint
from workers.models.request import Dialect

NO_KEY: Final = "none"
"""Sent to a server that needs no key; the libraries insist on one, and would otherwise search for it."""

REASONING_FIELDS: Final = {"vllm": "reasoning", "ollama": "reasoning", "openrouter": "reasoning"}
"""Message field in which a server takes its reasoning back, where it is not ``reasoning_content``."""


@dataclass(frozen=True)
class Client:
    """One model, ready for requests, with what it needs of every one of them."""

    model: ProviderModel[Any]
    dialect: Dialect
    settings: ModelSettings
    http: httpx2.AsyncClient


def open_client(endpoint: Endpoint, organization: str | None = None, project: str | None = None) -> Client:
    """Load the provider's library and build a client. Slow the first time (seconds of imports): not for an event loop.

    The connection pool opens on the first request, in the loop that makes it. No client retries: the step loop does,
    where the wait is visible, can be cancelled, and can park the turn. That is set on the client itself, since as a
    request setting it copies the client, and the copy reads the environment again.
    """
    prefix = endpoint.provider.prefix
    http = create_async_httpx2_client()
    settings = ModelSettings()
    match prefix:
        case "anthropic":
            model = _anthropic(endpoint, http)
            # Breakpoints on the system prompt and the tools, and one that the server moves itself: it changes no
            # message, so the prefix stays.
            settings = ModelSettings(cache=True)
        case "google":
            model = _google(endpoint, http)
            settings = ModelSettings(max_retries=0)
        case _:
            model = _openai(endpoint, http, organization, project)
    return Client(model, Dialect(family=prefix, marks_errors=prefix in {"anthropic", "google"}), settings, http)


def _anthropic(endpoint: Endpoint, http: httpx2.AsyncClient) -> ProviderModel[Any]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415  # a second of import that only this provider costs
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415  # beside its library

    client = AsyncAnthropic(
        api_key=endpoint.api_key or NO_KEY,
        base_url=endpoint.base_url,
        http_client=http,
        max_retries=0,
        webhook_key="",
        open_telemetry=False,
    )
    _forget_ambient_headers(client)
    return AnthropicModel(endpoint.model, provider=AnthropicProvider(anthropic_client=client))


def _google(endpoint: Endpoint, http: httpx2.AsyncClient) -> ProviderModel[Any]:
    from pydantic_ai.models.google import GoogleModel  # noqa: PLC0415  # an optional extra
    from pydantic_ai.providers.google import GoogleProvider  # noqa: PLC0415  # an optional extra

    provider = GoogleProvider(
        api_key=endpoint.api_key or NO_KEY,
        http_client=http,
        base_url=endpoint.base_url if endpoint.custom else None,
    )
    return GoogleModel(endpoint.model, provider=provider)


def _openai(
    endpoint: Endpoint, http: httpx2.AsyncClient, organization: str | None, project: str | None
) -> ProviderModel[Any]:
    from openai import AsyncOpenAI  # noqa: PLC0415  # half a second of import that only these providers cost

    prefix = endpoint.provider.prefix
    client = AsyncOpenAI(
        api_key=endpoint.api_key or NO_KEY,
        base_url=endpoint.base_url,
        http_client=http,
        max_retries=0,
        # Not None: that would search the environment.
        organization="",
        project="",
        admin_api_key="",
        webhook_secret="",
    )
    client.organization, client.project = None, None
    if prefix in {"openai", "openai-chat"} and not endpoint.custom:
        client.organization, client.project = organization, project
    client.admin_api_key = None
    client.webhook_secret = None
    _forget_ambient_headers(client)
    _send_as_built(client.chat.completions, "messages")
    _send_as_built(client.responses, "input")
    return _openai_model(endpoint, client, _chat_profile(prefix))


def _openai_model(endpoint: Endpoint, client: Any, profile: ModelProfile) -> ProviderModel[Any]:
    from pydantic_ai.models.ollama import OllamaModel  # noqa: PLC0415  # beside its library
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: PLC0415  # beside its library
    from pydantic_ai.models.openrouter import OpenRouterModel  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.deepseek import DeepSeekProvider  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.ollama import OllamaProvider  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.openrouter import OpenRouterProvider  # noqa: PLC0415  # beside its library
    from pydantic_ai.providers.vllm import VLLMProvider  # noqa: PLC0415  # beside its library

    name = endpoint.model
    # A server of one's own is not OpenAI: it gets no data that only OpenAI can read back, and no parameter that
    # only OpenAI knows.
    shared = OpenAICompatibleProvider("openai-compatible", openai_client=client)
    match endpoint.provider.prefix:
        case "openai":
            return OpenAIResponsesModel(
                name, provider=shared if endpoint.custom else OpenAIProvider(openai_client=client)
            )
        case "openai-chat":
            provider = shared if endpoint.custom else OpenAIProvider(openai_client=client)
            return OpenAIChatModel(name, provider=provider, profile=profile)
        case "deepseek":
            return OpenAIChatModel(name, provider=DeepSeekProvider(openai_client=client), profile=profile)
        case "openrouter":
            return OpenRouterModel(name, provider=OpenRouterProvider(openai_client=client), profile=profile)
        case "ollama":
            return OllamaModel(name, provider=OllamaProvider(openai_client=client), profile=profile)
        case prefix:
            assert prefix == "vllm", f"no client for {prefix}"
            return OpenAIChatModel(name, provider=VLLMProvider(openai_client=client), profile=profile)


def _chat_profile(prefix: str) -> ModelProfile:
    """What every Chat Completions server must do here, whatever its provider's defaults are.

    The default way of sending reasoning back adds an empty field to some messages and takes it away again in a later
    request, which changes the prefix; in a field of its own it stays.
    """
    return OpenAIModelProfile(
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_thinking_field=REASONING_FIELDS.get(prefix, "reasoning_content"),
        openai_chat_send_back_thinking_parts="field",
    )


def _send_as_built(resource: Any, parameter: str) -> None:
    """Let ``resource.create`` send one parameter as pydantic-ai built it.

    The library walks it with its type annotations first, to rename keys that are named like the API's already: a
    millisecond of the event loop for each message of the history, in every request. ``extra_body`` takes the place of
    the empty value without that; the bytes are the same.
    """
    create = resource.create

    async def create_as_built(*, extra_body: dict[str, Any] | None = None, **parameters: Any) -> Any:
        body = {**(extra_body or {}), parameter: parameters[parameter]}
        return await create(extra_body=body, **{**parameters, parameter: []})

    resource.create = create_as_built


def _forget_ambient_headers(client: Any) -> None:
    """Drop headers that the library took from OPENAI_CUSTOM_HEADERS or ANTHROPIC_CUSTOM_HEADERS."""
    cast("dict[str, str]", client._custom_headers).clear()  # noqa: SLF001  # no public way; a test holds it
