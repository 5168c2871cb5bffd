"""Forks: the conversation of completed turns, and nothing else (DESIGN section 6)."""

from collections.abc import Iterable

from team.model.events import CONVERSATION, Event, EventData


def completed_prefix(events: Iterable[Event]) -> tuple[list[EventData], int]:
    """The conversation events up to the end of the last completed turn, and that turn's seq.

    The turn that is open now is excluded; inbox, turn-state, wait, descriptor and workflow events are never copied.
    """
    kept: list[EventData] = []
    complete, through = 0, 0
    for event in events:
        if event.type in CONVERSATION:
            kept.append(event.decoded())
        elif event.type == "turn/end":
            complete, through = len(kept), event.seq
    return kept[:complete], through
