"""What the fake provider says: replies, and the bytes of them on the Chat Completions and Anthropic wires."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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


def error_body(reply: Reply, wire: Literal["chat", "anthropic"]) -> bytes:
    """The JSON body of an error status."""
    error: dict[str, Any] = {"message": reply.message, "type": reply.code or "error"}
    if wire == "chat":
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
