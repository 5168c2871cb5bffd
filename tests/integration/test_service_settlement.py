"""Settlement notices: no teammate's work ends unseen, and nothing is told twice."""

import pytest

from team.model.claims import FailRequest
from team.model.content import TextBlock, ToolCallBlock
from team.model.events import FinishReason, InboxInserted
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, words_of


def teammate(core: Core) -> tuple[str, Agent]:
    lead = core.lead()
    return lead, core.agent(core.spawn(lead, "alice"))


def report(agent: Agent, text: str = "report") -> None:
    agent.call("send_message", target="lead", message=text)


class TestSilent:
    def test_m06_a_turn_that_told_the_lead_nothing_is_told_by_a_notice(self, core: Core) -> None:
        lead, alice = teammate(core)
        alice.finish("RESULT 385")
        assert core.notices(lead) == [
            (
                "[Notice: the turn of alice ended: completed. This is no message of the member.]\n"
                "Open tasks it owns: none.\n"
                "Its last text is the next 10 bytes, to the end of this message:\nRESULT 385"
            )
        ]
        assert core.run(lead) is not None

    def test_a_turn_that_reported_and_completed_gives_none(self, core: Core) -> None:
        lead, alice = teammate(core)
        report(alice)
        alice.finish("")
        assert core.notices(lead) == []

    def test_a_report_of_an_earlier_turn_does_not_count(self, core: Core) -> None:
        lead, alice = teammate(core)
        report(alice)
        alice.finish()
        core.act(lead, "send_message", target="alice", message="more")
        core.agent(alice.claim.session_id).finish("more done")
        assert len(core.notices(lead)) == 1

    def test_a_message_to_somebody_else_does_not_count(self, core: Core) -> None:
        lead, alice = teammate(core)
        core.idle(lead, "bob")
        before = len(core.notices(lead))
        alice.call("send_message", target="bob", message="m")
        alice.finish()
        assert len(core.notices(lead)) == before + 1

    def test_an_operators_message_as_the_member_does_not_count(self, core: Core) -> None:
        lead, alice = teammate(core)
        core.act(alice.claim.session_id, "send_message", target="lead", message="m")
        alice.finish()
        assert len(core.notices(lead)) == 1

    def test_a_bad_end_is_told_even_after_a_report(self, core: Core) -> None:
        lead, alice = teammate(core)
        report(alice)
        core.turns.fail(alice.ref, FailRequest(**alice.numbered(), code="auth", message="wrong key"))
        assert "ended: error (auth: wrong key)" in core.notices(lead)[0]

    @pytest.mark.parametrize("finish", ["max-tokens", "refusal"])
    def test_m06_an_end_without_words_says_so_and_why(self, core: Core, finish: FinishReason) -> None:
        lead, alice = teammate(core)
        alice.answer(finish=finish)
        alice.boundary()
        assert f"ended: {finish}" in core.notices(lead)[0]
        assert "It said nothing in this turn." in core.notices(lead)[0]

    def test_the_last_text_is_that_of_the_turn_cut_at_its_limit(self, core: Core) -> None:
        lead, alice = teammate(core)
        alice.answer(
            TextBlock(text="x" * 5_000), ToolCallBlock(call_id="c", name="read", arguments="{}"), finish="tool-calls"
        )
        alice.local_result()
        alice.begin()
        alice.answer()
        alice.boundary()
        assert "x" * 4_000 + " [cut]" in core.notices(lead)[0]
        assert "x" * 4_001 not in core.notices(lead)[0]

    def test_open_tasks_of_the_member_are_named(self, core: Core) -> None:
        lead, alice = teammate(core)
        for _ in range(3):
            core.act(lead, "team_task_create", subject="s", description="d")
        alice.call("team_task_update", task_id="task-1", expected_revision=1, action="claim")
        alice.call("team_task_update", task_id="task-2", expected_revision=1, action="claim")
        alice.call("team_task_update", task_id="task-2", expected_revision=2, action="complete")
        alice.finish()
        assert "\nOpen tasks it owns: task-1 (in_progress).\n" in core.notices(lead)[0]

    def test_an_interrupt_by_the_lead_is_not_told_to_the_lead(self, core: Core) -> None:
        lead, _ = teammate(core)
        core.act(lead, "interrupt_agent", target="alice")
        assert core.notices(lead) == []

    def test_an_interrupt_by_an_operator_is(self, core: Core) -> None:
        lead, alice = teammate(core)
        core.sessions.interrupt(alice.claim.session_id, actor="me")
        assert "ended: aborted (interrupted by me)" in core.notices(lead)[0]

    def test_the_leads_own_turns_give_none(self, core: Core) -> None:
        lead = core.lead("go")
        core.agent(lead).finish()
        assert core.notices(lead) == []
        assert core.run(lead) is None


class TestOrder:
    def test_m04_the_notice_follows_the_turns_own_messages(self, make_core: MakeCore) -> None:
        core = make_core(settlement="always")
        lead, alice = teammate(core)
        report(alice, "first")
        report(alice, "second")
        alice.finish("last")
        first, second, notice = core.agent(lead).begin()
        assert (first.rsplit("\n", 1)[-1], second.rsplit("\n", 1)[-1]) == ("first", "second")
        assert "last" in notice

    def test_m16_a_busy_lead_reads_it_at_its_next_step(self, core: Core) -> None:
        lead = core.lead("go")
        boss = core.agent(lead)
        boss.begin()
        core.agent(core.spawn(lead, "alice")).finish("report")
        boss.ask(("read", {"path": "f"}))
        boss.local_result()
        assert "report" in boss.begin()[0]

    def test_there_is_one_notice_per_turn(self, make_core: MakeCore) -> None:
        core = make_core(settlement="always")
        lead, alice = teammate(core)
        bob = core.idle(lead, "bob")
        before = len(core.notices(lead))
        alice.begin()
        core.act(bob, "send_message", target="alice", message="at the end")
        assert alice.finish().action == "step"
        assert len(core.notices(lead)) == before
        alice.finish()
        assert len(core.notices(lead)) == before + 1

    def test_notices_pass_a_full_inbox(self, make_core: MakeCore) -> None:
        core = make_core(max_inbox=1)
        lead, alice = teammate(core)
        bob = core.spawn(lead, "bob")
        core.prompt(lead, "fills it")
        alice.finish()
        core.agent(bob).finish()
        assert core.head(lead).pending == 3

    def test_the_notice_names_its_member_and_turn(self, core: Core) -> None:
        lead, alice = teammate(core)
        alice.finish("said")
        accepted = [data for event in core.log(lead) if isinstance(data := event.decoded(), InboxInserted)]
        assert accepted[-1].source.to_wire() == {
            "kind": "settlement",
            "memberId": alice.claim.session_id,
            "memberName": "alice",
            "turnId": alice.ref.turn_id,
        }
        assert alice.claim.session_id not in words_of(accepted[-1].content)


class TestSettings:
    def test_off_tells_nothing_whatever_happens(self, make_core: MakeCore) -> None:
        core = make_core(settlement="off")
        lead, alice = teammate(core)
        alice.finish()
        core.act(lead, "send_message", target="alice", message="m")
        agent = core.agent(alice.claim.session_id)
        core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="auth", message="m"))
        assert core.notices(lead) == []

    def test_always_tells_of_every_turn(self, make_core: MakeCore) -> None:
        core = make_core(settlement="always")
        lead, alice = teammate(core)
        report(alice)
        alice.finish()
        assert len(core.notices(lead)) == 1
