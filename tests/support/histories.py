"""What must hold of every log, whatever was killed meanwhile."""

from collections import Counter
from collections.abc import Mapping, Sequence

from team.model.events import (
    Event,
    InboxClaimed,
    TaskChanged,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    UserMessage,
)


def assert_sound(logs: Mapping[str, Sequence[Event]]) -> None:
    """Each log is contiguous; each call has one result; no message is seen twice; revisions have no gap."""
    for session_id, events in logs.items():
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), session_id
        decoded = [event.decoded() for event in events]
        calls = Counter(item.call_id for item in decoded if isinstance(item, ToolCalled))
        results = Counter(item.call_id for item in decoded if isinstance(item, ToolReturned))
        assert calls == results, session_id
        assert set(calls.values()) <= {1}, session_id
        seen = Counter(item.message_id for item in decoded if isinstance(item, UserMessage))
        assert set(seen.values()) <= {1}, session_id
        starts = [item.turn_id for item in decoded if isinstance(item, TurnStarted)]
        ends = [item.turn_id for item in decoded if isinstance(item, TurnEnded)]
        assert len(set(starts)) == len(starts), session_id
        assert ends == starts[: len(ends)], session_id
        revisions: dict[str, list[int]] = {}
        for item in decoded:
            if isinstance(item, TaskChanged):
                revisions.setdefault(item.task.id, []).append(item.task.revision)
        for task, numbers in revisions.items():
            assert numbers == list(range(1, len(numbers) + 1)), f"{session_id} {task}"


def messages_in_mid_turn(events: Sequence[Event]) -> list[str]:
    """Messages of teammates that a turn claimed after its first step: they reached it while it was open."""
    decoded = [event.decoded() for event in events]
    senders = {
        item.message_id: item.source.sender_name
        for item in decoded
        if isinstance(item, UserMessage) and item.source.kind == "team-message"
    }
    return [
        senders[item.message_id]
        for item in decoded
        if isinstance(item, InboxClaimed) and (item.step or 0) > 1 and item.message_id in senders
    ]
