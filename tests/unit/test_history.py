"""What a model is shown of a log, and what a fork copies of it."""

from collections.abc import Sequence

from team.model.content import TextBlock
from team.model.events import Event, EventData, RequestHeader, SessionCompacted, StepEnded, TurnEnded, UserMessage
from team.model.history import AssistantEntry, HistoryEntry, ToolResultEntry, UserEntry, entries
from team.model.ids import MessageId, TurnId
from team.model.snapshots import HumanSource
from team.rules.forks import completed_prefix
from tests.support.logs import TURN, answer, called, inserted, member, parked, returned, started, step, task

HEADER = RequestHeader(model="m", system="s", tools=({"name": "read"},), digest="d")


def said(message_id: str = "m") -> UserMessage:
    return UserMessage(message_id=MessageId(message_id), content=(TextBlock(text="hi"),), source=HumanSource())


def shown(data: Sequence[EventData]) -> list[HistoryEntry]:
    return entries(enumerate(data, start=1))


class TestVisible:
    def test_only_what_a_model_sees_is_shown_in_log_order(self) -> None:
        log = [
            inserted("m"),
            started(),
            HEADER,
            step(),
            said(),
            answer("c"),
            called("c"),
            returned("c"),
            task(),
            member(),
        ]
        assert [(entry.kind, entry.seq) for entry in shown(log)] == [
            ("header", 3),
            ("user", 5),
            ("assistant", 6),
            ("tool-result", 8),
        ]

    def test_entries_carry_the_logged_values_unchanged(self) -> None:
        log = [said(), answer("c"), called("c"), returned("c")]
        user, assistant, result = shown(log)
        assert isinstance(user, UserEntry)
        assert isinstance(assistant, AssistantEntry)
        assert isinstance(result, ToolResultEntry)
        assert (user.content, user.source) == (said().content, HumanSource())
        assert assistant.content == answer("c").content
        assert (result.call_id, result.index, result.content) == ("c", 0, "r")

    def test_a_longer_log_only_extends_what_was_shown_before(self) -> None:
        log: list[EventData] = [
            HEADER,
            said("1"),
            answer("a", "b"),
            called("a"),
            called("b", 1),
            returned("b", 1),
            returned("a"),
            said("2"),
        ]
        log.append(SessionCompacted(summary="all of it"))
        whole = shown(log)
        for length in range(len(log) + 1):
            part = shown(log[:length])
            assert whole[: len(part)] == part

    def test_a_compaction_is_shown_where_it_happened(self) -> None:
        assert [entry.kind for entry in shown([said("1"), SessionCompacted(summary="x"), said("2")])] == [
            "user",
            "summary",
            "user",
        ]


class TestCompletedPrefix:
    def events(self, *data: EventData) -> list[Event]:
        return [
            Event(seq=seq, time="t", type=item.event_type, data=item.to_wire())
            for seq, item in enumerate(data, start=1)
        ]

    def turn(self, name: str, *inside: EventData) -> list[EventData]:
        end = TurnEnded(turn_id=TurnId(name), reason="completed")
        return [started(name), step(turn=name), said(name), answer(turn=name), *inside, end]

    def test_the_turn_that_is_open_now_is_left_out(self) -> None:
        log = [*self.turn("t1"), *self.turn("t2")[:-1]]
        prefix, through = completed_prefix(self.events(*log))
        assert prefix == [said("t1"), answer(turn="t1")]
        assert through == 5

    def test_without_a_finished_turn_nothing_is_inherited(self) -> None:
        assert completed_prefix(self.events(*self.turn("t1")[:-1])) == ([], 0)
        assert completed_prefix([]) == ([], 0)

    def test_inbox_turn_and_wait_events_are_never_copied(self) -> None:
        log = [inserted("m"), HEADER, *self.turn("t1", StepEnded(turn_id=TURN, step=1), parked(), member(), task())]
        prefix, _ = completed_prefix(self.events(*log))
        assert [data.event_type for data in prefix] == [
            "request/header",
            "user/message",
            "assistant/message",
            "team/member",
            "team/task",
        ]

    def test_calls_keep_their_results(self) -> None:
        log = self.turn("t1", called("c", turn="t1"), returned("c", turn="t1"))
        prefix, _ = completed_prefix(self.events(*log, *self.turn("t2")[:2], called("d", turn="t2")))
        assert [data for data in prefix if data.event_type.startswith("tool/")] == [
            called("c", turn="t1"),
            returned("c", turn="t1"),
        ]
