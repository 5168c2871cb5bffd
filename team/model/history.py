"""The history builder: what a model is shown of a log. Pure, and stable: more events only ever extend the list."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Discriminator

from team.model.content import ContentBlock
from team.model.events import (
    AssistantMessage,
    EventData,
    KeptMessage,
    Outcome,
    RequestHeader,
    SessionCompacted,
    ToolReturned,
    UserMessage,
)
from team.model.snapshots import Source
from team.model.values import Value


class UserEntry(Value):
    kind: Literal["user"] = "user"
    seq: int
    content: tuple[ContentBlock, ...]
    source: Source


class AssistantEntry(Value):
    """``content`` is authoritative for call ids; ``provider_detail`` for everything a provider must see again.

    ``context_tokens`` is how long the conversation was with this answer, as its provider counted; 0 when it did not.
    """

    kind: Literal["assistant"] = "assistant"
    seq: int
    model: str
    content: tuple[ContentBlock, ...]
    provider_detail: str | None = None
    context_tokens: int = 0


class ToolResultEntry(Value):
    kind: Literal["tool-result"] = "tool-result"
    seq: int
    index: int
    call_id: str
    outcome: Outcome
    content: str


class SummaryEntry(Value):
    """Stands for everything before it: a compaction boundary."""

    kind: Literal["summary"] = "summary"
    seq: int
    summary: str
    context: str = ""
    kept: tuple[KeptMessage, ...] = ()


class HeaderEntry(Value):
    """System prompt and tools of the requests after it."""

    kind: Literal["header"] = "header"
    seq: int
    header: RequestHeader


HistoryEntry = Annotated[
    UserEntry | AssistantEntry | ToolResultEntry | SummaryEntry | HeaderEntry, Discriminator("kind")
]


def entries(events: Iterable[tuple[int, EventData]]) -> list[HistoryEntry]:
    """The visible entries in log order.

    Results of parallel calls keep the order in which they were committed; the model layer sorts the results that
    follow one answer by ``index``, so the order of a finished step never depends on which call ended first.
    """
    visible: list[HistoryEntry] = []
    for seq, data in events:
        match data:
            case UserMessage():
                visible.append(UserEntry(seq=seq, content=data.content, source=data.source))
            case AssistantMessage():
                visible.append(
                    AssistantEntry(
                        seq=seq,
                        model=data.model,
                        content=data.content,
                        provider_detail=data.provider_detail,
                        context_tokens=data.usage.input_tokens + data.usage.output_tokens,
                    )
                )
            case ToolReturned():
                visible.append(
                    ToolResultEntry(
                        seq=seq, index=data.index, call_id=data.call_id, outcome=data.outcome, content=data.content
                    )
                )
            case SessionCompacted():
                visible.append(SummaryEntry(seq=seq, summary=data.summary, context=data.context, kept=data.kept))
            case RequestHeader():
                visible.append(HeaderEntry(seq=seq, header=data))
            case _:
                pass
    return visible
