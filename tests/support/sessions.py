"""The visible history of one Session, written as the coordinator would, for tests of the model layer."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from team.model.content import ContentBlock, TextBlock, ToolCallBlock
from team.model.events import Outcome, RequestHeader
from team.model.history import (
    AssistantEntry,
    HeaderEntry,
    HistoryEntry,
    SummaryEntry,
    ToolResultEntry,
    UserEntry,
)
from team.model.ids import MessageId, SessionId
from team.model.snapshots import HumanSource, RuntimeContextSource, Source, TeamMessageSource
from team.rules.inbox import frame
from workers.models import Answer, Conversation

ENTRIES: Final[TypeAdapter[list[HistoryEntry]]] = TypeAdapter(list[HistoryEntry])

READ_TOOL: Final[dict[str, Any]] = {
    "name": "read",
    "description": "Read a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "minLength": 1}, "mode": {"enum": ["text", "bytes"]}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "side": "worker",
}
SYSTEM: Final = "You are a member of a team. Work on the checkout."


class SessionLog:
    """Entries with growing seqs. ``conversation`` is kept up to date as a worker's is: from the entries alone."""

    def __init__(self, system: str = SYSTEM, tools: Sequence[dict[str, Any]] = (READ_TOOL,)) -> None:
        self.entries: list[HistoryEntry] = []
        self.conversation = Conversation()
        self.used: set[str] = set()
        self.header(system, tools)

    @property
    def seq(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def add(self, entry: HistoryEntry) -> HistoryEntry:
        self.entries.append(entry)
        self.conversation.extend([entry])
        return entry

    def header(self, system: str, tools: Sequence[dict[str, Any]] = (READ_TOOL,), model: str = "m") -> None:
        header = RequestHeader(model=model, system=system, tools=tuple(tools), digest=f"digest of {system}")
        self.add(HeaderEntry(seq=self.seq + 1, header=header))

    def user(self, *texts: str, source: Source | None = None) -> None:
        content: tuple[ContentBlock, ...] = tuple(TextBlock(text=text) for text in texts)
        self.add(UserEntry(seq=self.seq + 1, content=content, source=source or HumanSource()))

    def identity(self, text: str) -> None:
        self.user(text, source=RuntimeContextSource(session_id=SessionId("s")))

    def message(self, sender: str, text: str) -> None:
        """A team message with its frame."""
        number = MessageId(f"msg-{self.seq}")
        source = TeamMessageSource(message_id=number, sender_id=SessionId(f"id of {sender}"), sender_name=sender)
        heading, body = frame(number, sender, (TextBlock(text=text),))
        assert isinstance(heading, TextBlock)
        assert isinstance(body, TextBlock)
        self.user(heading.text, body.text, source=source)

    def answer(self, answer: Answer) -> list[ToolCallBlock]:
        """Append an answer, rewriting call ids that were used before; returns its calls."""
        content: list[ContentBlock] = []
        for block in answer.content:
            if isinstance(block, ToolCallBlock):
                call_id = block.call_id
                while call_id in self.used:
                    call_id += "-again"
                self.used.add(call_id)
                content.append(block.model_copy(update={"call_id": call_id}))
            else:
                content.append(block)
        entry = AssistantEntry(
            seq=self.seq + 1,
            model=answer.model,
            content=tuple(content),
            provider_detail=answer.provider_detail,
        )
        self.add(entry)
        return [block for block in content if isinstance(block, ToolCallBlock)]

    def result(self, call: ToolCallBlock, index: int, content: str, outcome: Outcome = "ok") -> None:
        self.add(ToolResultEntry(seq=self.seq + 1, index=index, call_id=call.call_id, outcome=outcome, content=content))

    def results(self, calls: Sequence[ToolCallBlock], *contents: str) -> None:
        for index, (call, content) in enumerate(zip(calls, contents, strict=True)):
            self.result(call, index, content)

    def compact(self, summary: str) -> None:
        self.add(SummaryEntry(seq=self.seq + 1, summary=summary))

    def dump(self) -> bytes:
        """The entries as JSON, as a claim carries them."""
        return ENTRIES.dump_json(self.entries, by_alias=True, exclude_none=True)


def load(dump: bytes) -> Conversation:
    """A fresh conversation from dumped entries."""
    conversation = Conversation()
    conversation.extend(ENTRIES.validate_json(dump))
    return conversation
