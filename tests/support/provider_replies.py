"""What the fake provider says: replies, and the bytes of them on each wire that it speaks."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Wire = Literal["chat", "anthropic", "responses"]
Cut = Literal["before-first-byte", "mid-text", "mid-call", "no-finish"]


class FakeCall(BaseModel):
    """One tool call; ``arguments`` is JSON text, whatever it is worth."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: str = "{}"
    id: str | None = None


class Reply(BaseModel):
    """One response. By default a complete answer that streams ``text`` and then ``calls``, their deltas interleaved.

    ``cut`` ends the connection there; ``no-finish`` ends the stream cleanly without a finish reason. ``hang`` sends
    headers and ``text``, then nothing until the client goes away.
    """

    model_config = ConfigDict(extra="forbid")

    text: list[str] = Field(default_factory=list[str])
    reasoning: str | None = None
    calls: list[FakeCall] = Field(default_factory=list[FakeCall])
    finish: str | None = None
    refusal: str | None = None
    cut: Cut | None = None
    hang: bool = False
    status: int = 200
    message: str = "the provider refused"
    code: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    html: bool = False
    empty: bool = False
    malformed: bool = False


@dataclass(frozen=True)
class Part:
    """A piece of a response body, and what is between this one and the next."""

    data: bytes
    then: Literal["go-on", "cut", "hang"] = "go-on"


def _pieces(text: str) -> list[str]:
    middle = max(len(text) // 2, 1)
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def error_body(reply: Reply, wire: Wire) -> bytes:
    """The JSON body of an error status."""
    error: dict[str, Any] = {"message": reply.message, "type": reply.code or "error"}
    if wire != "anthropic":
        return json.dumps({"error": {**error, "code": reply.code}}).encode()
    return json.dumps({"type": "error", "error": error}).encode()


def chat_stream(reply: Reply, number: int) -> Iterator[Part]:
    """The SSE body of a Chat Completions answer."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "fake-model",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    yield Part(chunk({"role": "assistant", "content": ""}))
    if reply.malformed:
        yield Part(b"data: {not json\n\n")
        return
    for piece in _pieces(reply.reasoning or ""):
        yield Part(chunk({"reasoning_content": piece}))
    for place, piece in enumerate(reply.text):
        last = place + 1 == len(reply.text)
        then: Literal["go-on", "cut", "hang"] = "go-on"
        if last and reply.cut == "mid-text":
            then = "cut"
        elif last and reply.hang:
            then = "hang"
        yield Part(chunk({"content": piece}), then)
    if reply.hang and not reply.text:
        yield Part(b"", "hang")
    for place, call in enumerate(reply.calls):
        start = {"index": place, "id": call.id or f"call_{number}_{place}", "type": "function"}
        yield Part(chunk({"tool_calls": [{**start, "function": {"name": call.name, "arguments": ""}}]}))
    rounds = [_pieces(call.arguments) for call in reply.calls]
    for turn in range(2):
        for place, pieces in enumerate(rounds):
            if turn < len(pieces):
                cut: Literal["go-on", "cut"] = "cut" if reply.cut == "mid-call" else "go-on"
                yield Part(
                    chunk({"tool_calls": [{"index": place, "function": {"arguments": pieces[turn]}}]}),
                    cut,
                )
    if reply.refusal is not None:
        yield Part(chunk({"refusal": reply.refusal}))
    if reply.cut == "no-finish":
        return
    yield Part(chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop")))
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    details = {"prompt_tokens_details": {"cached_tokens": 64}}
    final = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1_700_000_000}
    body: dict[str, Any] = {**final, "model": "fake-model", "choices": [], "usage": {**usage, **details}}
    yield Part(b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n")


def anthropic_stream(reply: Reply, number: int) -> Iterator[Part]:
    """The SSE body of an Anthropic answer."""

    def event(body: dict[str, Any]) -> bytes:
        return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()

    message: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 36, "output_tokens": 1, "cache_read_input_tokens": 64},
    }
    yield Part(event({"type": "message_start", "message": message}))
    if reply.malformed:
        yield Part(b"event: content_block_delta\ndata: {not json\n\n")
        return
    index = 0
    if reply.reasoning is not None:
        block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        yield Part(event({"type": "content_block_start", "index": index, "content_block": block}))
        for piece in _pieces(reply.reasoning):
            delta = {"type": "thinking_delta", "thinking": piece}
            yield Part(event({"type": "content_block_delta", "index": index, "delta": delta}))
        delta = {"type": "signature_delta", "signature": f"sig-{number}"}
        yield Part(event({"type": "content_block_delta", "index": index, "delta": delta}))
        yield Part(event({"type": "content_block_stop", "index": index}))
        index += 1
    if reply.text or reply.hang:
        block = {"type": "text", "text": ""}
        start = event({"type": "content_block_start", "index": index, "content_block": block})
        yield Part(start, "hang" if reply.hang and not reply.text else "go-on")
        for place, piece in enumerate(reply.text):
            last = place + 1 == len(reply.text)
            then: Literal["go-on", "cut", "hang"] = "go-on"
            if last and reply.cut == "mid-text":
                then = "cut"
            elif last and reply.hang:
                then = "hang"
            delta = {"type": "text_delta", "text": piece}
            yield Part(event({"type": "content_block_delta", "index": index, "delta": delta}), then)
        yield Part(event({"type": "content_block_stop", "index": index}))
        index += 1
    for place, call in enumerate(reply.calls):
        block = {"type": "tool_use", "id": call.id or f"toolu_{number}_{place}", "name": call.name, "input": {}}
        yield Part(event({"type": "content_block_start", "index": index, "content_block": block}))
        for piece in _pieces(call.arguments):
            delta = {"type": "input_json_delta", "partial_json": piece}
            cut: Literal["go-on", "cut"] = "cut" if reply.cut == "mid-call" else "go-on"
            yield Part(event({"type": "content_block_delta", "index": index, "delta": delta}), cut)
        yield Part(event({"type": "content_block_stop", "index": index}))
        index += 1
    if reply.cut == "no-finish":
        return
    named = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}
    reason = named[reply.finish] if reply.finish else ("tool_use" if reply.calls else "end_turn")
    final = {"stop_reason": "refusal" if reply.refusal else reason, "stop_sequence": None}
    yield Part(event({"type": "message_delta", "delta": final, "usage": {"output_tokens": 20}}))
    yield Part(event({"type": "message_stop"}))


def responses_stream(reply: Reply, number: int) -> Iterator[Part]:
    """The SSE body of an OpenAI Responses answer: reasoning, text and calls, complete or cut off cleanly."""
    sequence = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(sequence), **fields}
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()

    response: dict[str, Any] = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "fake-model",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    yield Part(event("response.created", response=response))
    output: list[dict[str, Any]] = []
    if reply.reasoning is not None:
        item: dict[str, Any] = {"id": f"rs_{number}", "type": "reasoning", "summary": []}
        yield Part(event("response.output_item.added", output_index=0, item=item))
        summary = {"type": "summary_text", "text": reply.reasoning}
        place = {"item_id": item["id"], "output_index": 0, "summary_index": 0}
        yield Part(event("response.reasoning_summary_part.added", part={**summary, "text": ""}, **place))
        yield Part(event("response.reasoning_summary_text.delta", delta=reply.reasoning, **place))
        output.append({**item, "summary": [summary], "encrypted_content": f"sealed-{number}"})
        yield Part(event("response.output_item.done", output_index=0, item=output[-1]))
    if reply.text:
        index = len(output)
        item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield Part(event("response.output_item.added", output_index=index, item=item))
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        yield Part(event("response.content_part.added", part=part, **place))
        for piece in reply.text:
            yield Part(event("response.output_text.delta", delta=piece, logprobs=[], **place))
        output.append({**item, "status": "completed", "content": [{**part, "text": "".join(reply.text)}]})
        yield Part(event("response.output_item.done", output_index=index, item=output[-1]))
    for call in reply.calls:
        index = len(output)
        call_id = call.id or f"call_{number}_{index}"
        item = {"id": f"fc_{number}_{index}", "type": "function_call", "call_id": call_id, "name": call.name}
        added = {**item, "arguments": "", "status": "in_progress"}
        yield Part(event("response.output_item.added", output_index=index, item=added))
        for piece in _pieces(call.arguments):
            delta = event("response.function_call_arguments.delta", item_id=item["id"], output_index=index, delta=piece)
            yield Part(delta)
        output.append({**item, "arguments": call.arguments, "status": "completed"})
        yield Part(event("response.output_item.done", output_index=index, item=output[-1]))
    if reply.cut == "no-finish":
        return
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
    }
    done = {**response, "status": "completed", "output": output, "usage": usage}
    if reply.finish == "length":
        done = {**done, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        yield Part(event("response.incomplete", response=done))
        return
    yield Part(event("response.completed", response=done))
