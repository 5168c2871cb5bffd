"""One request to a model provider, taken whole or not at all."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from team.model.content import ContentBlock, ReasoningBlock, TextBlock, ToolCallBlock, text_of
from team.model.events import FinishReason, Usage
from team.model.values import clean_text
from workers.models.answer import Answer
from workers.models.clients import Client
from workers.models.conversation import Conversation
from workers.models.failure import FailureKind, ModelFailure
from workers.models.request import (
    arguments_text,
    dumped,
    messages_of,
    parameters_of,
    storable,
    summary_messages_of,
)

SILENCE_SECONDS: Final = 120.0
"""How long a provider may send nothing, before its first byte as between two: reasoning models think that long."""

_KINDS: Final[tuple[tuple[type[Exception], FailureKind], ...]] = (
    (exceptions.ModelContextWindowExceededError, "context-length"),
    (exceptions.ModelAuthenticationError, "auth"),
    (exceptions.ModelNotFoundError, "not-found"),
    (exceptions.ModelQuotaExceededError, "quota"),
    (exceptions.ModelRateLimitError, "rate-limit"),
    (exceptions.ModelRequestRejectedError, "rejected"),
    (exceptions.UserError, "rejected"),
    (exceptions.ModelAPIError, "transient"),
    (exceptions.UnexpectedModelBehavior, "transient"),
)
"""Subclasses before their bases."""

_TOO_EARLY: Final = frozenset({408, 409, 425})
"""Statuses below 500 that ask for the same request again."""

_TOO_LONG: Final = re.compile(
    r"maximum context|context (?:length|window|size)|(?:prompt|input) is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
"""How compatible servers say it; only some send a code for it."""

_SHORTEST_SECRET: Final = 8
"""What is shorter is a placeholder, and would be found inside ordinary words."""

_ADVICE: Final[dict[FailureKind, str]] = {
    "auth": "Check the provider's API key and what it may use.",
    "not-found": "Check the model's name and the base URL.",
    "quota": "The account's quota or credit is used up.",
    "context-length": "The conversation is longer than the model's context window.",
}


class ProviderModel:
    """``Model`` over one provider client."""

    def __init__(self, name: str, client: Client, request_timeout_seconds: float, secrets: tuple[str, ...]) -> None:
        self.name = name
        self._client = client
        self._secrets = secrets
        silence = min(SILENCE_SECONDS, request_timeout_seconds)
        self._settings: ModelSettings = {
            **client.settings,
            "timeout": silence,
            "first_event_timeout": silence,
            "request_timeout": request_timeout_seconds,
        }

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        """See ``Model.answer``."""
        del member  # identity is part of the conversation
        messages = messages_of(conversation, self._client.dialect)
        return await self._request(messages, parameters_of(conversation), self._settings, on_text)

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        """See ``Model.summarise``. The tools stay in the request: it extends the history that the provider has cached.

        A provider that offers calls all the same gets none of them run.
        """
        del member
        messages = summary_messages_of(conversation, self._client.dialect)
        parameters = parameters_of(conversation)
        settings: ModelSettings = (
            {**self._settings, "tool_choice": "none"} if parameters.function_tools else self._settings
        )
        answer = await self._request(messages, parameters, settings, lambda _text: None)
        if not text_of(answer.content).strip():
            raise ModelFailure("transient", f"{self.name}: the provider gave no summary of the conversation.")
        return answer

    async def _request(
        self,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        settings: ModelSettings,
        on_text: Callable[[str], None],
    ) -> Answer:
        try:
            async with model_request_stream(
                self._client.model, messages, model_settings=settings, model_request_parameters=parameters
            ) as stream:
                async for event in stream:
                    if isinstance(event, PartStartEvent):
                        text = event.part.content if isinstance(event.part, TextPart) else ""
                    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                        text = event.delta.content_delta
                    else:
                        continue
                    if text:
                        on_text(clean_text(text))
                response = stream.get()
        except (exceptions.AgentRunError, exceptions.UserError) as error:
            raise self._failure(error) from error
        return self._complete(response)

    def _complete(self, response: ModelResponse) -> Answer:
        details: Mapping[str, Any] = response.provider_details or {}
        refusal = details.get("refusal")
        if response.state != "complete" or not (details.get("finish_reason") or refusal):
            raise ModelFailure("transient", f"{self.name}: the answer was cut off before it was complete.")
        if response.finish_reason == "error":
            raise ModelFailure("transient", f"{self.name}: the provider failed while it answered.")
        cut = response.finish_reason in {"length", "content_filter"}
        # What a length limit or a filter cut may be half a call: none of it is run.
        kept = storable(response, keep_call=lambda _: not cut)
        content = _content(kept, response)
        if isinstance(refusal, str) and not any(isinstance(block, TextBlock) for block in content):
            content = (*content, TextBlock(text=clean_text(refusal)))
        return Answer(
            model=self.name,
            content=content,
            usage=Usage(
                input_tokens=max(response.usage.input_tokens, 0),
                cached_tokens=max(response.usage.cache_read_tokens, 0),
                output_tokens=max(response.usage.output_tokens, 0),
            ),
            finish_reason=_finish_reason(kept),
            provider_detail=dumped(kept),
        )

    def _failure(self, error: Exception) -> ModelFailure:
        kind = _kind(error)
        reported = _reported(error)
        if kind == "rejected" and _TOO_LONG.search(reported):
            kind = "context-length"
        retryable: bool | None = None
        if isinstance(error, exceptions.ModelHTTPError):
            if kind in {"transient", "rejected"} and error.status_code < 500:
                kind = "transient" if error.status_code in _TOO_EARLY else "rejected"
            if kind in {"transient", "rate-limit"} and error.provider_retry_hint is False:
                retryable = False
        wait = error.retry_after if isinstance(error, exceptions.ModelAPIError) else None
        return ModelFailure(kind, self._text(error, reported, kind), retry_after_seconds=wait, retryable=retryable)

    def _text(self, error: Exception, reported: str, kind: FailureKind) -> str:
        """One line: the model, what was reported without keys or line breaks, and what to do."""
        status = f" (HTTP {error.status_code})" if isinstance(error, exceptions.ModelHTTPError) else ""
        reported = clean_text(reported)
        for secret in self._secrets:
            if len(secret) >= _SHORTEST_SECRET:
                reported = reported.replace(secret, "[key]")
        reported = " ".join(reported.split())[:400].rstrip(". ")
        advice = _ADVICE.get(kind)
        return f"{self.name}{status}: {reported}." + (f" {advice}" if advice else "")


def _kind(error: Exception) -> FailureKind:
    for cls, kind in _KINDS:
        if isinstance(error, cls):
            return kind
    return "rejected"


def _reported(error: Exception) -> str:
    """The provider's own words where it has any, else what the library says."""
    body: object = error.body if isinstance(error, exceptions.ModelAPIError) else None
    while isinstance(body, dict):
        part = cast("dict[str, object]", body)
        message = part.get("message")
        if isinstance(message, str) and message:
            return message
        body = part.get("error")
    return str(error) or type(error).__name__


def _content(kept: ModelResponse, original: ModelResponse) -> tuple[ContentBlock, ...]:
    """Blocks in the model's order. Call arguments are the model's own text, however wrong."""
    blocks: list[ContentBlock] = []
    arguments = iter([arguments_text(part) for part in original.parts if isinstance(part, ToolCallPart)])
    for part in kept.parts:
        if isinstance(part, TextPart):
            if part.content:
                blocks.append(TextBlock(text=part.content))
        elif isinstance(part, ThinkingPart):
            if part.content:
                blocks.append(ReasoningBlock(text=part.content))
        elif isinstance(part, ToolCallPart):
            blocks.append(ToolCallBlock(call_id=part.tool_call_id, name=part.tool_name, arguments=next(arguments)))
    return tuple(blocks)


def _finish_reason(response: ModelResponse) -> FinishReason:
    """Calls decide, not what the provider calls its reason: some say stop and mean their calls."""
    if response.finish_reason == "length":
        return "max-tokens"
    if response.finish_reason == "content_filter":
        return "refusal"
    return "tool-calls" if any(isinstance(part, ToolCallPart) for part in response.parts) else "stop"
