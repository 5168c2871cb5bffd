"""Logs written by hand, for tests of the fold."""

from typing import Any, Final

import pytest

from team.model.content import TextBlock, ToolCallBlock
from team.model.errors import LogDamaged
from team.model.events import (
    AssistantMessage,
    Delivery,
    Event,
    EventData,
    FinishReason,
    InboxInserted,
    MemberChanged,
    OpenWait,
    StepStarted,
    TaskChanged,
    ToolCalled,
    ToolReturned,
    TurnParked,
    TurnStarted,
)
from team.model.fold import replay
from team.model.ids import MessageId, SessionId, TaskId, TeamId, TurnId
from team.model.slices import HEAD, HeadSlice, Key, Slice
from team.model.snapshots import (
    ForkOrigin,
    HumanSource,
    MemberSnapshot,
    SessionHeader,
    SettlementSource,
    Source,
    TaskSnapshot,
    TeamMessageSource,
)

SESSION: Final = SessionId("session-1")
TEAM: Final = TeamId(SESSION)
TURN: Final = TurnId("turn-1")


def header(seed_through: int = 0) -> SessionHeader:
    origin = ForkOrigin(session_id=SessionId("ancestor"), through=9) if seed_through else None
    return SessionHeader(
        id=SESSION,
        created_at="2026-01-01T00:00:00.000Z",
        profile="team",
        cwd="/w",
        depth=0,
        root_id=SESSION,
        forked_from=origin,
        seed_through=seed_through,
    )


class Log:
    """A growing log of one Session. ``add`` folds; ``refuses`` asserts that the next event does not fit."""

    def __init__(self, *data: EventData, seed_through: int = 0) -> None:
        self.header = header(seed_through)
        self.events: list[Event] = []
        self.state: dict[Key, Slice] = {}
        self.add(*data)

    def add(self, *data: EventData) -> "Log":
        for item in data:
            self.events.append(self.event(item))
        self.state = replay(self.header, self.events)
        return self

    def event(self, data: EventData) -> Event:
        return Event(seq=len(self.events) + 1, time="t", type=data.event_type, data=data.to_wire())

    def refuses(self, data: EventData, why: str) -> None:
        """The event is refused, the refusal names the Session, the event's number and the reason."""
        with pytest.raises(LogDamaged) as caught:
            replay(self.header, [*self.events, self.event(data)])
        assert f"Session {SESSION}, event {len(self.events) + 1}: " in caught.value.message
        assert why in caught.value.message

    @property
    def head(self) -> HeadSlice:
        head = self.state[HEAD]
        assert isinstance(head, HeadSlice)
        return head

    def slice(self, *key: str) -> Any:
        return self.state[key]


def inserted(message_id: str, delivery: Delivery = "steer", source: Source | None = None) -> InboxInserted:
    return InboxInserted(
        message_id=MessageId(message_id),
        delivery=delivery,
        content=(TextBlock(text="hello"),),
        source=source or HumanSource(),
    )


def from_member(message_id: str = "m") -> TeamMessageSource:
    return TeamMessageSource(
        message_id=MessageId(message_id), sender_id=SessionId("bob-1"), sender_name="bob", sender_turn=TurnId("t")
    )


def notice() -> SettlementSource:
    return SettlementSource(member_id=SessionId("bob-1"), member_name="bob", turn_id=TurnId("t"))


def started(turn: str = TURN) -> TurnStarted:
    return TurnStarted(turn_id=TurnId(turn))


def step(number: int = 1, turn: str = TURN) -> StepStarted:
    return StepStarted(turn_id=TurnId(turn), step=number)


def answer(
    *calls: str, number: int = 1, turn: str = TURN, words: str | None = "words", finish: FinishReason = "stop"
) -> AssistantMessage:
    spoken = (TextBlock(text=words),) if words is not None else ()
    asked = tuple(ToolCallBlock(call_id=call, name="read", arguments="{}") for call in calls)
    return AssistantMessage(
        turn_id=TurnId(turn), step=number, model="m", content=(*spoken, *asked), finish_reason=finish
    )


def called(call_id: str, index: int = 0, number: int = 1, turn: str = TURN) -> ToolCalled:
    return ToolCalled(turn_id=TurnId(turn), step=number, index=index, call_id=call_id, name="read", arguments="{}")


def returned(call_id: str, index: int = 0, number: int = 1, turn: str = TURN) -> ToolReturned:
    return ToolReturned(turn_id=TurnId(turn), step=number, index=index, call_id=call_id, outcome="ok", content="r")


def parked() -> TurnParked:
    return TurnParked(turn_id=TURN, waits=(OpenWait(kind="wait-agent", call_id="c"),))


def member(name: str = "bob", phase: str = "provisioning", team: str = TEAM, **fields: Any) -> MemberChanged:
    values: dict[str, Any] = {
        "id": f"{name}-1",
        "name": name,
        "description": "d",
        "provider": "fresh",
        "context": "fresh",
        "phase": phase,
        **fields,
    }
    return MemberChanged(team_id=TeamId(team), member=MemberSnapshot.model_validate(values))


def task(number: int = 1, revision: int = 1, team: str = TEAM, **fields: Any) -> TaskChanged:
    values: dict[str, Any] = {
        "id": TaskId(f"task-{number}"),
        "revision": revision,
        "subject": "s",
        "description": "d",
        "status": "pending",
        **fields,
    }
    return TaskChanged(team_id=TeamId(team), task=TaskSnapshot.model_validate(values))
