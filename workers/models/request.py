"""From a conversation to the messages of one provider request. Each request extends the one before it."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import structlog
from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from team.model.content import ContentBlock, TextBlock, ToolCallBlock
from team.model.history import AssistantEntry, ToolResultEntry, UserEntry
from team.model.values import clean_text, decode_json
from workers.models.conversation import Conversation
from workers.models.failure import ModelFailure

_log = structlog.stdlib.get_logger(__name__)

SUMMARY_HEADING: Final = "Summary of the conversation before this point:"
SUMMARY_INSTRUCTION: Final = (
    "[Notice: this conversation has become too long and is about to be replaced by a summary. Do not go on with the "
    "work and do not call a tool: answer with the summary alone. You will go on from it without seeing anything of the "
    "above, so write down what you need: what you were asked to do, by whom, and in which words that matter; what is "
    "done, and how it was verified; what you learned, with the paths, names, commands and results that count; what "
    "failed, and why; decisions and their reasons; what is in progress, and the next step. Your identity, your Team, "
    "the open tasks and the messages of this turn are told you again anyway.]"
)
INVALID_ARGUMENTS: Final = "INVALID_JSON"
"""Key under which a provider sees arguments again that were not a JSON object."""


@dataclass(frozen=True)
class Dialect:
    """How one provider wants its history.

    ``family`` is the prefix of the model names whose ``provider_detail`` it can replay; answers of other families are
    rebuilt from their content, without reasoning. ``marks_errors``: it has a field of its own for a failed result;
    elsewhere the text must say it.
    """

    family: str
    marks_errors: bool


@dataclass
class _Rendering:
    """Messages up to and with the newest answer, and how many items they stand for."""

    generation: int
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    items: int = 0
    answer: AssistantEntry | None = None


def parameters_of(conversation: Conversation) -> ModelRequestParameters:
    """The tools of the newest header, unchanged by strict-mode rewriting."""
    header = conversation.header
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=str(tool["name"]),
                description=str(tool.get("description", "")),
                parameters_json_schema=cast("dict[str, Any]", tool.get("parameters", {"type": "object"})),
                strict=False,
            )
            for tool in (header.tools if header is not None else ())
        ]
    )


def messages_of(conversation: Conversation, dialect: Dialect) -> list[ModelMessage]:
    """The messages of the next request; what earlier requests held is decoded once and never changes.

    Raises:
        ModelFailure: A call has no result, so no provider would accept the history.
    """
    cached = conversation.renderings.get(dialect.family)
    if not isinstance(cached, _Rendering) or cached.generation != conversation.generation:
        cached = _Rendering(conversation.generation)
        conversation.renderings[dialect.family] = cached
    items = conversation.items
    tail: list[UserEntry | ToolResultEntry] = []
    for place in range(cached.items, len(items)):
        item = items[place]
        if not isinstance(item, AssistantEntry):
            tail.append(item)
            continue
        cached.messages += _between(cached.answer, tail, dialect)
        cached.messages.append(_response(item, dialect))
        cached.items, cached.answer, tail = place + 1, item, []
    return [*_head(conversation), *cached.messages, *_between(cached.answer, tail, dialect)]


def summary_messages_of(conversation: Conversation, dialect: Dialect) -> list[ModelMessage]:
    """The messages of a request for a summary: the history, and what is asked for instead of an answer to it."""
    return [*messages_of(conversation, dialect), ModelRequest(parts=[UserPromptPart(content=SUMMARY_INSTRUCTION)])]


def _head(conversation: Conversation) -> list[ModelMessage]:
    head: list[ModelMessage] = []
    if conversation.header is not None and conversation.header.system:
        head.append(ModelRequest(parts=[SystemPromptPart(content=conversation.header.system)]))
    summary = conversation.summary
    if summary is not None:
        text = f"{SUMMARY_HEADING}\n\n{summary.summary}"
        head.append(ModelRequest(parts=[UserPromptPart(content=text)]))
        if summary.context:
            head.append(ModelRequest(parts=[UserPromptPart(content=summary.context)]))
        head += _user_messages([message.content for message in summary.kept])
    return head


def _between(
    answer: AssistantEntry | None, entries: Sequence[UserEntry | ToolResultEntry], dialect: Dialect
) -> list[ModelMessage]:
    """What stands between two answers: the results of the first by call index, then each user message.

    A user message is a request part of its own even beside another one, so that one which arrives after a request
    failed extends that request instead of changing its last message.
    """
    messages: list[ModelMessage] = []
    results = _results(answer, [entry for entry in entries if isinstance(entry, ToolResultEntry)], dialect)
    if results:
        messages.append(ModelRequest(parts=results))
    messages += _user_messages([entry.content for entry in entries if isinstance(entry, UserEntry)])
    return messages


def _user_messages(contents: Sequence[tuple[ContentBlock, ...]]) -> list[ModelMessage]:
    messages: list[ModelMessage] = []
    for blocks in contents:
        texts = [block.text for block in blocks if isinstance(block, TextBlock) and block.text]
        if texts:
            content: str | list[UserContent] = texts[0] if len(texts) == 1 else [*texts]
            messages.append(ModelRequest(parts=[UserPromptPart(content=content)]))
    return messages


def _results(
    answer: AssistantEntry | None, entries: Sequence[ToolResultEntry], dialect: Dialect
) -> list[ToolReturnPart]:
    calls = [block for block in answer.content if isinstance(block, ToolCallBlock)] if answer is not None else []
    # A result whose call a compaction has replaced has nothing to answer; the summary stands for both.
    by_id = {entry.call_id: entry for entry in entries}
    missing = [call.call_id for call in calls if call.call_id not in by_id]
    if missing:
        raise ModelFailure(
            "rejected",
            f"The log lacks a result for the call {missing[0]!r}; no provider accepts such a history. "
            "'team doctor' names the Session's damage.",
        )
    return [_result(call, by_id[call.call_id], dialect) for call in calls]


def _result(call: ToolCallBlock, entry: ToolResultEntry, dialect: Dialect) -> ToolReturnPart:
    failed = entry.outcome != "ok" and (dialect.marks_errors or not _tells_error(entry.content))
    return ToolReturnPart(
        tool_name=call.name,
        content=entry.content,
        tool_call_id=call.call_id,
        outcome="failed" if failed else "success",
    )


def _tells_error(content: str) -> bool:
    """Whether a result says itself that it is an error; wrapping it once more would only escape it."""
    if not content.startswith("{"):
        return False
    try:
        decoded: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(decoded, dict) and "error" in decoded


def _response(entry: AssistantEntry, dialect: Dialect) -> ModelResponse:
    calls = [block for block in entry.content if isinstance(block, ToolCallBlock)]
    if entry.provider_detail is not None and entry.model.partition(":")[0] == dialect.family:
        response = _decoded(entry)
        if response is not None and sum(isinstance(part, ToolCallPart) for part in response.parts) == len(calls):
            return _with_call_ids(response, calls)
        _log.warning("an answer's provider detail cannot be used, it is rebuilt from its content", seq=entry.seq)
    return _rebuilt(entry)


def _decoded(entry: AssistantEntry) -> ModelResponse | None:
    assert entry.provider_detail is not None
    try:
        messages = ModelMessagesTypeAdapter.validate_json(entry.provider_detail)
    except ValidationError:
        return None
    if len(messages) != 1 or not isinstance(messages[0], ModelResponse):
        return None
    return messages[0]


def _with_call_ids(response: ModelResponse, calls: Sequence[ToolCallBlock]) -> ModelResponse:
    """The same answer with the ids of the log: the coordinator rewrites those that were used before."""
    ids = iter([call.call_id for call in calls])
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            call_id = next(ids)
            parts.append(part if part.tool_call_id == call_id else replace(part, tool_call_id=call_id))
        else:
            parts.append(part)
    return replace(response, parts=parts)


def _rebuilt(entry: AssistantEntry) -> ModelResponse:
    """An answer of another provider, or of an imported log: what was said and called, nothing private to it."""
    parts: list[ModelResponsePart] = []
    for block in entry.content:
        if isinstance(block, TextBlock):
            parts.append(TextPart(content=block.text))
        elif isinstance(block, ToolCallBlock):
            arguments = replayable_arguments(block.arguments)
            parts.append(ToolCallPart(tool_name=block.name, args=arguments, tool_call_id=block.call_id))
    return ModelResponse(parts=parts)


def replayable_arguments(text: str) -> str | dict[str, Any]:
    """Arguments that every provider accepts again: the text itself, or what was no JSON object inside one.

    Providers that take arguments as JSON, not as text, refuse a whole history for one call with NaN, a lone surrogate
    or half an object in it.
    """
    if not text.strip():
        return {}
    try:
        decoded = decode_json(text)
    except ValueError:
        return {INVALID_ARGUMENTS: text}
    return text if isinstance(decoded, dict) else {INVALID_ARGUMENTS: text}


def storable(response: ModelResponse, *, keep_call: Callable[[ToolCallPart], bool]) -> ModelResponse:
    """The answer as it is kept: texts without NUL or lone surrogates, arguments that can be sent again."""
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            if keep_call(part):
                arguments = replayable_arguments(arguments_text(part))
                parts.append(
                    replace(
                        part,
                        tool_name=clean_text(part.tool_name),
                        tool_call_id=clean_text(part.tool_call_id) or f"call_{secrets.token_hex(12)}",
                        args=arguments,
                    )
                )
        elif isinstance(part, TextPart):
            parts.append(replace(part, content=clean_text(part.content)))
        elif isinstance(part, ThinkingPart):
            cleaned = clean_text(part.content)
            # A signature is over the text: a changed one would be refused.
            signature = part.signature if cleaned == part.content else None
            parts.append(replace(part, content=cleaned, signature=signature))
        else:
            parts.append(part)
    return replace(response, parts=parts)


def arguments_text(part: ToolCallPart) -> str:
    """The model's own argument text, storable; an empty one is an empty object."""
    text = part.args if isinstance(part.args, str) else json.dumps(part.args or {}, ensure_ascii=False)
    return clean_text(text) or "{}"


def dumped(response: ModelResponse) -> str:
    """``provider_detail`` of an answer."""
    return ModelMessagesTypeAdapter.dump_json([response]).decode()
