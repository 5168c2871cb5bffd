"""The history of one Session as a worker holds it between steps and turns."""

from collections.abc import Sequence

from team.model.content import ToolCallBlock
from team.model.events import RequestHeader
from team.model.history import (
    AssistantEntry,
    HeaderEntry,
    HistoryEntry,
    SummaryEntry,
    ToolResultEntry,
    UserEntry,
)

Item = UserEntry | AssistantEntry | ToolResultEntry


class Conversation:
    """What requests of one Session are built from, extended entry by entry.

    ``items`` are the visible entries after the newest compaction, whose ``summary`` stands for everything before
    them; ``generation`` counts compactions. ``newest_answer`` and what came ``since`` survive a compaction: the
    script model goes on from them. ``renderings`` is where request builders keep what they have decoded already.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.header: RequestHeader | None = None
        self.summary: str | None = None
        self.items: list[Item] = []
        self.generation = 0
        self.newest_answer: AssistantEntry | None = None
        self.since: list[UserEntry | ToolResultEntry] = []
        self.renderings: dict[str, object] = {}
        self._call_ids: set[str] = set()

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
            case SummaryEntry():
                self.summary = entry.summary
                self.items = []
                self.generation += 1
                self.renderings = {}
            case AssistantEntry():
                self.items.append(entry)
                self.newest_answer = entry
                self.since = []
                self._call_ids.update(block.call_id for block in entry.content if isinstance(block, ToolCallBlock))
            case UserEntry() | ToolResultEntry():
                self.items.append(entry)
                self.since.append(entry)
