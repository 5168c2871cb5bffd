"""The fold of turns, steps, calls and the inbox: each event follows from the state before it, or is refused."""

import pytest

from team.model.content import TextBlock
from team.model.errors import LogDamaged
from team.model.events import (
    EndReason,
    Event,
    FileIntended,
    FileObserved,
    InboxClaimed,
    InboxDiscarded,
    RequestHeader,
    SessionCompacted,
    SessionCwd,
    SessionModel,
    StepEnded,
    SubagentDescribed,
    ToolReturned,
    TurnEnded,
    TurnResumed,
    UserMessage,
)
from team.model.fold import apply, replay
from team.model.ids import MessageId, SessionId, TurnId
from team.model.slices import HEAD, FileSlice, HeadSlice, Key, Slice
from team.model.snapshots import RuntimeContextSource, Source
from tests.support.logs import (
    SESSION,
    TURN,
    Log,
    answer,
    called,
    from_member,
    inserted,
    notice,
    parked,
    returned,
    started,
    step,
)


def ended(reason: EndReason = "completed", turn: str = TURN) -> TurnEnded:
    return TurnEnded(turn_id=TurnId(turn), reason=reason)


def step_ended(number: int = 1) -> StepEnded:
    return StepEnded(turn_id=TURN, step=number)


def claimed(message_id: str, number: int = 1) -> InboxClaimed:
    return InboxClaimed(message_id=MessageId(message_id), turn_id=TURN, step=number)


class TestExternalMembers:
    DESCRIBED = SubagentDescribed(mode="continuable", provider="external", label="guest")

    def test_one_has_no_turns_and_claims_its_input_without_one(self) -> None:
        log = Log(self.DESCRIBED, inserted("m"))
        log.refuses(started(), "an external member has no turns")
        log.refuses(InboxClaimed(message_id=MessageId("m"), turn_id=None, step=1), "names a step and no turn")
        assert log.head.pending == 1
        log.add(InboxClaimed(message_id=MessageId("m"), turn_id=None, step=None))
        assert log.head.pending == 0
        log.refuses(InboxClaimed(message_id=MessageId("m"), turn_id=None, step=None), "m")

    def test_nobody_else_claims_input_without_a_turn(self) -> None:
        unclaimed = InboxClaimed(message_id=MessageId("m"), turn_id=None, step=None)
        Log(inserted("m")).refuses(unclaimed, "no external member")
        Log(inserted("m"), started(), step()).refuses(unclaimed, "no external member")


class TestOrder:
    def test_a_gap_is_refused(self) -> None:
        log = Log(started())
        jumped = Event(seq=3, time="t", type="step/start", data=step().to_wire())
        with pytest.raises(LogDamaged, match=f"Session {SESSION}, event 3: the event before it is number 1"):
            replay(log.header, [*log.events, jumped])

    def test_a_repetition_is_refused(self) -> None:
        log = Log(started())
        with pytest.raises(LogDamaged, match=f"Session {SESSION}, event 1: "):
            replay(log.header, [*log.events, *log.events])

    def test_a_log_may_not_start_in_the_middle(self) -> None:
        log = Log(started(), step())
        with pytest.raises(LogDamaged, match="event 2"):
            replay(log.header, log.events[1:])

    @pytest.mark.parametrize(
        ("kind", "data", "why"),
        [
            ("turn/started", {"turnId": "t"}, "unknown type 'turn/started'"),
            ("acme/telemetry", {}, "unknown type 'acme/telemetry'"),
            ("team/member", {"version": 2, "teamId": "t", "member": {}}, "version"),
            ("team/task", {"version": 0, "teamId": "t", "task": {}}, "version"),
            (
                "subagent/descriptor",
                {"version": 2, "mode": "continuable", "provider": "fresh", "label": "x"},
                "version",
            ),
            ("turn/start", {"turnId": "a\x00"}, "NUL"),
            ("turn/start", {}, "turnId"),
        ],
    )
    def test_an_unknown_type_version_or_shape_is_refused_by_number_and_session(
        self, kind: str, data: dict[str, object], why: str
    ) -> None:
        log = Log(inserted("m"))
        bad = Event.model_construct(seq=2, time="t", type=kind, data=data)
        with pytest.raises(LogDamaged) as caught:
            replay(log.header, [*log.events, bad])
        assert str(SESSION) in caught.value.message
        assert "event 2" in caught.value.message
        assert why in caught.value.message

    def test_an_event_changes_only_slices_that_it_read(self) -> None:
        log = Log(inserted("m1"), inserted("m2"), started(), step())
        asked: list[Key] = []

        def lookup(key: Key) -> Slice | None:
            asked.append(key)
            return log.state.get(key)

        changes = apply(log.header, lookup, 5, claimed("m1"))
        assert set(changes) == {HEAD, ("inbox", "m1")}
        assert set(asked) == {HEAD, ("inbox", "m1"), ("turn", TURN)}


class TestTurns:
    def test_one_turn_is_open_at_a_time(self) -> None:
        log = Log(started())
        assert log.head.open_turn == TURN
        log.refuses(started("turn-2"), "the turn turn-1 is open")

    def test_a_turn_id_is_used_once(self) -> None:
        Log(started(), ended()).refuses(started(), "was here before")

    def test_turns_are_numbered(self) -> None:
        log = Log(started(), ended(), started("turn-2"))
        assert (log.slice("turn", TURN).ordinal, log.slice("turn", "turn-2").ordinal) == (1, 2)
        assert log.head.turns == 2

    @pytest.mark.parametrize("data", [step(), parked(), ended(), TurnResumed(turn_id=TURN)])
    def test_nothing_happens_in_a_turn_that_is_unknown_or_over(self, data: StepEnded) -> None:
        Log().refuses(data, "unknown turn turn-1")
        Log(started(), ended()).refuses(data, "has ended")

    def test_parking_and_resuming_alternate(self) -> None:
        log = Log(started())
        log.refuses(TurnResumed(turn_id=TURN), "is not parked")
        log.add(parked())
        log.refuses(parked(), "is parked already")
        log.add(TurnResumed(turn_id=TURN), parked())
        assert log.slice("turn", TURN).phase == "parked"

    def test_a_parked_turn_can_end(self) -> None:
        log = Log(started(), parked(), ended("aborted"))
        assert log.slice("turn", TURN).phase == "ended"
        assert log.head.open_turn is None

    def test_a_turn_with_an_unanswered_call_cannot_end(self) -> None:
        log = Log(started(), step(), answer("c"), called("c"))
        log.refuses(ended("aborted"), "1 calls have no result")

    def test_an_end_keeps_its_reason_code_and_message(self) -> None:
        log = Log(started(), TurnEnded(turn_id=TURN, reason="error", code="auth", message="no key"))
        turn = log.slice("turn", TURN)
        assert (turn.reason, turn.code, turn.message, turn.end_seq) == ("error", "auth", "no key", 2)


class TestSteps:
    def test_steps_count_up_from_one(self) -> None:
        Log(started()).refuses(step(2), "at step 0")
        log = Log(started(), step(), answer(), step_ended())
        log.refuses(step(1), "at step 1")
        log.refuses(step(3), "at step 1")
        assert log.add(step(2)).slice("turn", TURN).step == 2

    def test_a_step_ends_answered_and_with_all_results(self) -> None:
        log = Log(started(), step())
        log.refuses(step(2), "at step 1")
        log.refuses(step_ended(), "not finished")
        log.add(answer("c"), called("c"))
        log.refuses(step_ended(), "not finished")
        log.refuses(step_ended(2), "at step 1")
        log.add(returned("c"), step_ended())
        log.refuses(step_ended(), "at step 1")

    def test_a_step_has_one_answer(self) -> None:
        Log(started()).refuses(answer(), "has an answer already")
        log = Log(started(), step(), answer())
        log.refuses(answer(), "has an answer already")
        Log(started(), step()).refuses(answer(number=2), "has an answer already")

    def test_the_newest_text_of_a_turn_is_remembered(self) -> None:
        log = Log(started(), step(), answer("c"), called("c"), returned("c"), step_ended(), step(2))
        log.add(answer(number=2, words=None, finish="max-tokens"))
        turn = log.slice("turn", TURN)
        assert (turn.text_seq, turn.finish) == (3, "max-tokens")


class TestCalls:
    def test_calls_come_in_order_behind_their_answer(self) -> None:
        Log(started(), step()).refuses(called("c"), "no answer")
        log = Log(started(), step(), answer("a", "b"))
        log.refuses(called("b", 1), "out of order")
        log.refuses(called("a", number=2), "no answer")
        log.add(called("a"), called("b", 1))
        assert log.slice("turn", TURN).open_calls == 2

    def test_a_call_id_is_used_once_in_a_session(self) -> None:
        log = Log(started(), step(), answer("c"), called("c"), returned("c"), step_ended(), step(2))
        log.add(answer("c", number=2))
        log.refuses(called("c", number=2), "was used before")

    def test_a_call_has_one_result_in_its_place(self) -> None:
        log = Log(started(), step(), answer("a", "b"), called("a"), called("b", 1))
        log.refuses(returned("nobody"), "unknown call nobody")
        log.refuses(returned("b", 0), "another place")
        log.refuses(returned("a", number=2), "another place")
        log.refuses(returned("a", turn="turn-2"), "another place")
        log.add(returned("b", 1), returned("a"))
        log.refuses(returned("a"), "has a result already")
        assert log.slice("turn", TURN).open_calls == 0
        assert log.slice("call", "b").result_seq == 6

    def test_an_intent_belongs_to_an_open_call(self) -> None:
        intent = FileIntended(turn_id=TURN, step=1, index=0, path="f", after="h")
        Log(started(), step()).refuses(intent, "no open call")
        Log(started(), step(), answer("c"), called("c")).add(intent)
        Log(started(), step(), answer("c"), called("c"), returned("c")).refuses(intent, "no open call")


class TestInbox:
    def test_a_message_is_inserted_once_and_taken_once(self) -> None:
        log = Log(inserted("m1"), inserted("m2", "turn"))
        assert (log.head.pending_steer, log.head.pending_turn, log.head.pending) == (1, 1, 2)
        log.refuses(inserted("m1"), "is here already")
        log.add(started(), step(), claimed("m2"))
        log.refuses(claimed("m2"), "was taken before")
        log.refuses(inserted("m2"), "is here already")
        log.add(InboxDiscarded(message_id=MessageId("m1"), reason="r"))
        log.refuses(claimed("m1"), "was taken before")
        assert log.head.pending == 0
        assert (log.slice("inbox", "m1").state, log.slice("inbox", "m2").state) == ("discarded", "claimed")

    def test_only_a_step_without_an_answer_takes_input(self) -> None:
        log = Log(inserted("m"))
        log.refuses(claimed("m"), "unknown turn")
        log.add(started())
        log.refuses(claimed("m"), "not taking input")
        log.add(step())
        log.refuses(claimed("m", 2), "not taking input")
        log.refuses(claimed("other"), "unknown inbox other")
        log.add(answer())
        log.refuses(claimed("m"), "not taking input")

    @pytest.mark.parametrize("reason", ["aborted", "error", "max-steps"])
    def test_a_bad_end_holds_the_inbox_until_somebody_speaks(self, reason: EndReason) -> None:
        log = Log(started(), ended(reason))
        assert log.head.held
        assert log.add(inserted("n", source=notice())).head.held
        assert not log.add(inserted("m", source=from_member())).head.held

    @pytest.mark.parametrize("reason", ["completed", "refusal", "max-tokens"])
    def test_a_good_end_holds_nothing(self, reason: EndReason) -> None:
        assert not Log(started(), ended(reason)).head.held

    def test_the_sender_and_its_turn_are_kept_beside_a_message(self) -> None:
        item = Log(inserted("m", source=from_member())).slice("inbox", "m")
        assert (item.source_kind, item.sender_id, item.sender_turn) == ("team-message", "bob-1", "t")


class TestSessionFacts:
    def test_the_newest_of_model_directory_and_header_counts(self) -> None:
        log = Log(SessionModel(model="a"), SessionModel(model="b"), SessionCwd(cwd="/w/sub"))
        log.add(RequestHeader(model="b", system="s", tools=(), digest="d"), SessionCompacted(summary="x"))
        head = log.head
        assert (head.model, head.cwd, head.header_digest, head.compacted_seq, head.seq) == ("b", "/w/sub", "d", 5, 5)

    def test_a_new_session_is_in_its_headers_directory(self) -> None:
        assert Log().state == {HEAD: HeadSlice(cwd="/w")}

    def test_a_session_has_one_descriptor(self) -> None:
        described = SubagentDescribed(mode="continuable", provider="fresh", label="bob")
        Log(described).refuses(described, "one descriptor")

    @pytest.mark.parametrize(("session", "known"), [(SESSION, True), ("ancestor", False)])
    def test_only_an_identity_of_its_own_tells_a_session_who_it_is(self, session: str, known: bool) -> None:
        source: Source = RuntimeContextSource(session_id=SessionId(session))
        log = Log(UserMessage(message_id=MessageId("i"), content=(TextBlock(text="x"),), source=source))
        assert log.head.identified is known

    def test_the_last_seen_version_of_each_file_is_kept_and_absence_is_a_version(self) -> None:
        log = Log(FileObserved(path="__proto__", version="1"), FileObserved(path="b", version="2"))
        log.add(FileObserved(path="b"))
        assert log.slice("file", "b") == FileSlice(path="b")
        assert log.slice("file", "__proto__") == FileSlice(path="__proto__", version="1")


class TestSeed:
    def test_a_fork_carries_conversation_without_its_turns(self) -> None:
        log = Log(
            UserMessage(
                message_id=MessageId("m"),
                content=(TextBlock(text="x"),),
                source=RuntimeContextSource(session_id=SessionId("ancestor")),
            ),
            answer("c", turn="theirs"),
            called("c", turn="theirs"),
            returned("c", turn="theirs"),
            seed_through=4,
        )
        assert log.head.open_turn is None
        assert not log.head.identified
        assert log.slice("call", "c").result_seq == 4
        log.add(started(), step(), answer("c2"), called("c2"))
        log.refuses(called("c", 1), "was used before")

    @pytest.mark.parametrize(
        "data",
        [
            inserted("m"),
            started(),
            SessionCwd(cwd="/x"),
            SessionModel(model="m"),
            FileObserved(path="p", version="v"),
            FileIntended(turn_id=TURN, step=1, index=0, path="p", after="a"),
        ],
    )
    def test_a_fork_cannot_carry_what_is_no_conversation(self, data: FileObserved) -> None:
        with pytest.raises(LogDamaged, match="a fork cannot carry"):
            Log(answer(turn="theirs"), data, seed_through=2)

    def test_the_descriptor_comes_first_in_a_seeded_log(self) -> None:
        described = SubagentDescribed(mode="continuable", provider="fork", label="bob")
        assert Log(described, answer(turn="theirs"), seed_through=2).head.descriptor == described
        with pytest.raises(LogDamaged, match="a fork cannot carry"):
            Log(answer(turn="theirs"), described, seed_through=2)

    def test_an_inherited_result_without_its_call_is_refused(self) -> None:
        result = ToolReturned(turn_id=TURN, step=1, index=0, call_id="c", outcome="ok", content="")
        with pytest.raises(LogDamaged, match="unknown call c"):
            Log(result, seed_through=1)
