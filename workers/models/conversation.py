"""The history of one Session as a worker holds it between steps and turns."""

import json
from collections.abc import Sequence
from typing import Final

from team.model.content import ContentBlock, TextBlock, ToolCallBlock, text_block
from team.model.events import RequestHeader
from team.model.history import (
    AssistantEntry,
    HeaderEntry,
    HistoryEntry,
    SummaryEntry,
    ToolResultEntry,
    UserEntry,
)
from team.model.snapshots import HumanSource

Item = UserEntry | AssistantEntry | ToolResultEntry

BYTES_PER_TOKEN: Final = 3
"""Cautious for code and for English; of other texts a token takes more bytes still."""

LEFT_OUT: Final = "[What came before is left out here.]"
SHORTENED_RESULT: Final = 2_000
"""Characters that a shortened history keeps of a tool's result."""


class Conversation:
    """What requests of one Session are built from, extended entry by entry.

    ``items`` are the visible entries after the newest compaction, whose ``summary`` stands for everything before
    them; ``generation`` counts compactions. ``context_floor`` is how many tokens the newest compaction left.
    ``newest_answer`` and what came ``since`` survive a compaction: the script model goes on from them. ``renderings``
    is where request builders keep what they have decoded already.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.header: RequestHeader | None = None
        self.summary: SummaryEntry | None = None
        self.items: list[Item] = []
        self.generation = 0
        self.newest_answer: AssistantEntry | None = None
        self.since: list[UserEntry | ToolResultEntry] = []
        self.renderings: dict[str, object] = {}
        self.context_floor = 0
        self._call_ids: set[str] = set()
        self._counted = 0
        self._added = 0
        self._answers = 0

    @property
    def context_tokens(self) -> int:
        """How long the next request is: what the newest answer's provider counted, and an estimate of the rest."""
        return self._counted + self._added // BYTES_PER_TOKEN

    @property
    def has_answers(self) -> bool:
        """Whether any answer came after the newest compaction: without one a summary would have nothing to gain."""
        return self._answers > 0

    @property
    def call_ids(self) -> set[str]:
        """Every call id that an answer of this history has used, compacted ones included."""
        return set(self._call_ids)

    def extend(self, entries: Sequence[HistoryEntry]) -> None:
        """Add entries in log order. Idempotent: what the conversation already includes is left out."""
        for entry in entries:
            if entry.seq <= self.seq:
                continue
            self._add(entry)
            self.seq = entry.seq

    def _add(self, entry: HistoryEntry) -> None:
        match entry:
            case HeaderEntry():
                self.header = entry.header
                self._added += _size(entry.header)
            case SummaryEntry():
                self.summary = entry
                self.items = []
                self.generation += 1
                self.renderings = {}
                self._counted, self._answers = 0, 0
                self._added = _size(self.header) + _size(entry)
                self.context_floor = self.context_tokens
            case AssistantEntry():
                self.items.append(entry)
                self._answers += 1
                self._count(entry)
                self.newest_answer = entry
                self.since = []
                self._call_ids.update(block.call_id for block in entry.content if isinstance(block, ToolCallBlock))
            case UserEntry() | ToolResultEntry():
                self.items.append(entry)
                self.since.append(entry)
                self._added += _size(entry)

    def _count(self, answer: AssistantEntry) -> None:
        if not answer.context_tokens:
            self._added += _size(answer)
            return
        if self._answers == 1 and self.summary is not None:
            # The first count after a compaction: it says what the estimate of the floor could not.
            self.context_floor = answer.context_tokens
        self._counted, self._added = answer.context_tokens, 0

    def shortened(self, level: int) -> "Conversation":
        """For a summary of what is too long itself: long results are cut, and older entries left out.

        Args:
            level: 0 for the conversation as it is, 1 for cut results, and with each further one half of the entries.
        """
        if level == 0:
            return self
        short = Conversation()
        short.header, short.summary = self.header, self.summary
        left_out = len(self.items) - max(1, len(self.items) >> (level - 1))
        short.items = [_cut(item) for item in self.items[left_out:]]
        if left_out:
            # Providers want a user's message first.
            short.items.insert(0, UserEntry(seq=self.seq, content=text_block(LEFT_OUT), source=HumanSource()))
        short.newest_answer, short.since = self.newest_answer, self.since
        short.seq = self.seq
        return short


def _size(entry: RequestHeader | SummaryEntry | Item | None) -> int:
    """Bytes of what a request shows of an entry."""
    match entry:
        case None:
            return 0
        case RequestHeader():
            return len(entry.system.encode()) + len(json.dumps(entry.tools))
        case SummaryEntry():
            kept = sum(_texts(message.content) for message in entry.kept)
            return len(entry.summary.encode()) + len(entry.context.encode()) + kept
        case ToolResultEntry():
            return len(entry.content.encode())
        case AssistantEntry() | UserEntry():
            return _texts(entry.content)


def _texts(content: Sequence[ContentBlock]) -> int:
    texts = sum(len(block.text.encode()) for block in content if isinstance(block, TextBlock))
    return texts + sum(len(block.arguments.encode()) for block in content if isinstance(block, ToolCallBlock))


def _cut(item: Item) -> Item:
    if not isinstance(item, ToolResultEntry) or len(item.content) <= SHORTENED_RESULT:
        return item
    half = SHORTENED_RESULT // 2
    left_out = len(item.content) - 2 * half
    content = f"{item.content[:half]}\n[{left_out} characters left out]\n{item.content[-half:]}"
    return item.model_copy(update={"content": content})
