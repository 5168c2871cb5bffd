"""Doubles of the model and the checkout for tests of the step loop alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from team.model.claims import PendingCall
from team.model.content import ContentBlock, TextBlock, ToolCallBlock
from team.model.events import FinishReason, Usage
from team.model.slices import FileSlice
from workers.checkout import CallContext, LocalResult
from workers.models import Answer, Conversation, ModelFailure


def answer(*calls: ToolCallBlock, text: str = "", finish: FinishReason | None = None) -> Answer:
    """A complete answer with these calls."""
    blocks: list[ContentBlock] = [TextBlock(text=text)] if text else []
    return Answer(
        model="test:model",
        content=(*blocks, *calls),
        usage=Usage(),
        finish_reason=finish or ("tool-calls" if calls else "stop"),
        provider_detail=None,
    )


def call(name: str, number: int, arguments: str = "{}") -> ToolCallBlock:
    return ToolCallBlock(call_id=f"call-{number}", name=name, arguments=arguments)


@dataclass
class PlayedModel:
    """Answers in order; a failure is raised, and a coroutine function is awaited for its answer."""

    answers: list[Answer | ModelFailure | Callable[[], Awaitable[Answer]]]
    seen: list[list[int]] = field(default_factory=list[list[int]])
    cancelled: int = 0
    summaries: list[Answer | ModelFailure] = field(default_factory=list[Answer | ModelFailure])
    summarised: list[list[int]] = field(default_factory=list[list[int]])

    def get(self, name: str) -> "PlayedModel":
        return self

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        self.seen.append([entry.seq for entry in conversation.items])
        item = self.answers.pop(0)
        if isinstance(item, ModelFailure):
            raise item
        if isinstance(item, Answer):
            on_text("some text")
            return item
        try:
            return await item()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        self.summarised.append([entry.seq for entry in conversation.items])
        item = self.summaries.pop(0)
        if isinstance(item, ModelFailure):
            raise item
        return item


@dataclass
class PlayedTools:
    """Local tools that run a coroutine function given by name; it gets the context and returns the content."""

    tools: dict[str, Callable[[CallContext], Awaitable[str]]]
    ran: list[str] = field(default_factory=list[str])
    recovered: list[PendingCall] = field(default_factory=list[PendingCall])
    ended: list[str] = field(default_factory=list[str])
    observed: tuple[FileSlice, ...] = ()
    cwd: str | None = None

    async def run(self, name: str, arguments: str, context: CallContext) -> LocalResult:
        self.ran.append(context.call_id)
        content = await self.tools[name](context)
        return LocalResult(outcome="ok", content=content, observed=self.observed, cwd=self.cwd)

    async def end_turn(self, turn_id: str) -> None:
        self.ended.append(turn_id)

    def recover(self, call: PendingCall) -> LocalResult:
        self.recovered.append(call)
        return LocalResult(outcome="unknown", content=f"outcome of {call.name} unknown")


class NoDeltas:
    """Keeps streamed text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def writer(self, claim: Any, step: int, attempt: int) -> Callable[[str], None]:
        return self.texts.append
