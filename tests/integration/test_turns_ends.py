"""How turns end, are lost, handed over, put off and interrupted, and what then becomes of their input."""

import json
from typing import Any

import pytest

from team.model.claims import BackoffRequest, FailRequest, HeartbeatRequest, Held, ReleaseRequest
from team.model.content import TextBlock
from team.model.errors import DisposalTimeout, TurnFenced
from team.model.events import FinishReason, ToolReturned, TurnEnded
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, together

READ = ("read", {"path": "f"})


def last_end(core: Core, session_id: str) -> TurnEnded:
    ends = [data for event in core.log(session_id) if isinstance(data := event.decoded(), TurnEnded)]
    return ends[-1]


def results(core: Core, session_id: str) -> list[tuple[str, str]]:
    """(call name or id, outcome) of every result in the log."""
    found = [data for event in core.log(session_id) if isinstance(data := event.decoded(), ToolReturned)]
    return [(data.call_id, data.outcome) for data in found]


def confirm(core: Core, agent: Agent) -> None:
    """The worker of an ended claim says that its processes are gone."""
    held = Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch)
    core.turns.heartbeat(HeartbeatRequest(worker=agent.claim.model, claims=(), stopped=(held,), slots=1))


class TestInput:
    def test_turn_items_are_turns_of_their_own_in_order(self, core: Core) -> None:
        lead = core.lead("one")
        core.prompt(lead, "two")
        core.prompt(lead, "three")
        seen: list[list[str]] = []
        while core.run(lead):
            agent = core.agent(lead)
            seen.append(agent.begin())
            agent.finish()
        assert seen == [["one"], ["two"], ["three"]]

    def test_steer_input_joins_the_running_turn_at_its_next_step(self, core: Core) -> None:
        lead = core.lead("one")
        agent = core.agent(lead)
        assert agent.begin() == ["one"]
        core.prompt(lead, "queued")
        core.prompt(lead, "now", steer=True)
        agent.ask(READ)
        agent.local_result()
        assert agent.begin() == ["now"]
        agent.finish()
        assert core.agent(lead).begin() == ["queued"]

    def test_steer_input_keeps_a_turn_going_that_was_about_to_end(self, core: Core) -> None:
        lead = core.lead("one")
        agent = core.agent(lead)
        agent.begin()
        core.prompt(lead, "wait", steer=True)
        assert agent.finish().action == "step"
        assert [entry.kind for entry in agent.history][-1] == "user"
        assert agent.finish().action == "ended"

    @pytest.mark.parametrize(
        ("finish", "reason"), [("stop", "completed"), ("max-tokens", "max-tokens"), ("refusal", "refusal")]
    )
    def test_an_answer_without_calls_ends_the_turn_for_the_reason_it_gave(
        self, core: Core, finish: FinishReason, reason: str
    ) -> None:
        lead = core.lead("go")
        core.prompt(lead, "next")
        assert core.agent(lead).finish(finish=finish).reason == reason
        assert core.run(lead) is not None
        assert not core.head(lead).held

    def test_an_empty_answer_ends_the_turn(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.answer()
        assert agent.boundary().reason == "completed"

    def test_a_turn_ends_at_its_limit_of_steps_and_holds_what_is_left(self, make_core: MakeCore) -> None:
        core = make_core(max_steps=2)
        lead = core.lead("go")
        core.prompt(lead, "later")
        agent = core.agent(lead)
        assert agent.claim.limits.max_steps == 2
        for _ in range(2):
            agent.ask(READ)
            agent.local_result()
        assert agent.boundary().reason == "max-steps"
        assert (core.run(lead), core.head(lead).held) == (None, True)

    def test_a_turn_that_is_done_at_its_limit_of_steps_is_completed_and_late_input_gets_a_turn(
        self, make_core: MakeCore
    ) -> None:
        core = make_core(max_steps=1)
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        core.prompt(lead, "late", steer=True)
        assert agent.finish().reason == "completed"
        assert not core.head(lead).held
        assert core.agent(lead).begin() == ["late"]

    def test_the_first_step_of_a_session_says_who_it_is_once(self, core: Core) -> None:
        lead = core.lead("one")
        core.agent(lead).finish()
        core.prompt(lead, "two")
        core.agent(lead).finish()
        kinds = [
            data.get("source", {}).get("kind") for data in (e.data for e in core.log(lead) if e.type == "user/message")
        ]
        assert kinds == ["runtime-context", "human", "human"]
        assert core.types(lead).count("request/header") == 1


class TestHeldInput:
    def bad_end(self, core: Core, how: str) -> str:
        """A teammate whose turn ended badly with one message unread."""
        lead = core.lead()
        bob = core.spawn(lead, "bob")
        agent = core.agent(bob)
        agent.begin()
        core.act(lead, "send_message", target="bob", message="unread")
        if how == "error":
            core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="auth", message="wrong key"))
        elif how == "interrupt_agent":
            core.act(lead, "interrupt_agent", target="bob")
        elif how == "operator":
            core.sessions.interrupt(bob, actor="me")
        else:
            agent.ask(READ)
            agent.local_result()
            agent.boundary()
        return bob

    @pytest.mark.parametrize("how", ["error", "interrupt_agent", "operator", "max-steps"])
    def test_no_turn_opens_for_input_after_a_bad_end_until_somebody_speaks(self, make_core: MakeCore, how: str) -> None:
        core = make_core(max_steps=1 if how == "max-steps" else 9, settlement="off")
        bob = self.bad_end(core, how)
        head = core.head(bob)
        assert (head.held, head.pending, head.open_turn) == (True, 1, None)
        assert core.turns.claim(core.claim_request()) is None
        core.recovery.wake_missed()
        core.turns.reap()
        assert core.run(bob) is None
        core.sql("UPDATE session SET guard_until = 1")
        core.prompt(bob, "go on")
        agent = core.agent(bob)
        assert [text.rsplit("\n", 1)[-1] for text in agent.begin()] == ["unread"]
        if how == "max-steps":
            return
        agent.finish()
        assert core.agent(bob).begin() == ["go on"]

    def test_a_message_of_a_member_releases_all_in_order(self, core: Core) -> None:
        bob = self.bad_end(core, "error")
        lead = core.log(bob)[1].data["source"]["senderId"]
        core.act(lead, "send_message", target="bob", message="now")
        assert [text.rsplit("\n", 1)[-1] for text in core.agent(bob).begin()] == ["unread", "now"]

    def test_a_notice_to_a_session_that_ended_badly_is_held_too(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.spawn(lead, "bob")
        core.agent(lead).begin()
        core.sessions.interrupt(lead, actor="me")
        core.sql("UPDATE session SET guard_until = 1")
        core.agent(bob).finish("result")
        assert len(core.notices(lead)) == 1
        assert (core.run(lead), core.head(lead).pending) == (None, 1)
        core.prompt(lead, "go on")
        assert "result" in core.agent(lead).begin()[0]


class TestLostWorkers:
    def test_a_lost_turn_is_queued_again_and_goes_on_behind_its_last_event(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(READ, ("bash", {"command": "x"}))
        agent.local_result(0)
        assert core.lose_worker(lead) == 1
        successor = core.agent(lead, "w2").claim
        assert (successor.epoch, successor.step, successor.answered) == (2, 1, True)
        assert [(call.index, call.name) for call in successor.pending] == [(1, "bash")]

    def test_a_lease_that_has_not_run_out_is_left_alone(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        assert core.turns.reap() == 0
        agent.begin()

    def test_s07_two_reapers_take_a_claim_back_once(self, core: Core) -> None:
        for _ in range(5):
            lead = core.lead("go")
            core.agent(lead)
            core.sql("UPDATE run SET lease_until = 1 WHERE session_id = :s", s=lead)
            assert sum(together(*([core.turns.reap] * 4))) == 1
            run = core.run(lead)
            assert run is not None
            assert (run.state, run.losses) == ("queued", 1)

    def test_c06_a_turn_that_keeps_killing_its_workers_ends_as_poison(self, core: Core) -> None:
        lead = core.lead()
        bob = core.spawn(lead, "bob")
        for number in range(3):
            agent = core.agent(bob, f"w{number}")
            if number == 0:
                agent.ask(("bash", {"command": "boom"}))
            core.lose_worker(bob)
        assert core.run(bob) is None
        end = last_end(core, bob)
        assert (end.reason, end.code) == ("error", "poison")
        assert "w2" in (end.message or "")
        assert [outcome for _, outcome in results(core, bob)] == ["unknown"]
        assert "poison" in core.notices(lead)[0]
        core.act(lead, "send_message", target="bob", message="again")
        core.agent(bob).finish()
        assert last_end(core, bob).reason == "completed"

    def test_a_committed_step_forgives_the_losses_before_it(self, core: Core) -> None:
        lead = core.lead("go")
        for _ in range(3):
            agent = core.agent(lead)
            agent.ask(READ)
            agent.local_result()
            agent.boundary()
            core.lose_worker(lead)
            agent = core.agent(lead)
            core.lose_worker(lead)
        assert core.run(lead) is not None

    def test_the_number_of_losses_is_a_setting(self, make_core: MakeCore) -> None:
        core = make_core(poison_losses=1)
        lead = core.lead("go")
        core.agent(lead)
        core.lose_worker(lead)
        assert last_end(core, lead).code == "poison"


class TestHandOver:
    def test_a_released_turn_is_claimable_at_once_and_loses_nothing(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(READ)
        agent.local_result()
        core.turns.release(agent.ref, ReleaseRequest(**agent.numbered(), reason="drain"))
        before = core.count()
        successor = core.agent(lead, "w2")
        assert (successor.claim.epoch, successor.claim.pending, core.count()) == (2, (), before)
        assert successor.finish().action == "ended"
        run = core.sessions.view(lead)
        assert run.workers == ("w1", "w2")

    def test_a_hand_over_is_no_loss(self, core: Core) -> None:
        lead = core.lead("go")
        for _ in range(5):
            agent = core.agent(lead)
            core.turns.release(agent.ref, ReleaseRequest(**agent.numbered(), reason="drain"))
        run = core.run(lead)
        assert run is not None
        assert run.losses == 0


class TestBackOff:
    def put_off(self, core: Core, delay_ms: int = 60_000) -> tuple[str, Agent]:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        core.turns.backoff(agent.ref, BackoffRequest(**agent.numbered(), step=1, delay_ms=delay_ms, reason="429"))
        return lead, agent

    def test_a_turn_that_is_put_off_holds_no_worker_and_comes_back_at_its_deadline(self, core: Core) -> None:
        lead, agent = self.put_off(core)
        run = core.run(lead)
        assert run is not None
        assert (run.state, run.worker) == ("parked", None)
        assert core.turns.claim(core.claim_request()) is None
        assert core.recovery.expire_waits() == 0
        seconds = core.next_deadline_seconds()
        assert seconds is not None
        assert 0 < seconds <= 60
        with pytest.raises(TurnFenced):
            agent.boundary()
        assert core.pass_deadlines() == 1
        again = core.agent(lead, "w2")
        assert (again.claim.step, again.claim.answered, again.claim.attempt) == (1, False, 1)
        assert again.finish().action == "ended"
        assert core.types(lead).count("turn/parked") == core.types(lead).count("turn/resumed") == 1

    def test_attempts_count_until_the_step_is_done(self, core: Core) -> None:
        lead, _ = self.put_off(core)
        for attempt in (1, 2):
            core.pass_deadlines()
            agent = core.agent(lead)
            assert agent.claim.attempt == attempt
            core.turns.backoff(agent.ref, BackoffRequest(**agent.numbered(), step=1, delay_ms=1, reason="429"))
        core.pass_deadlines()
        agent = core.agent(lead)
        agent.ask(READ)
        agent.local_result()
        agent.begin()
        core.lose_worker(lead)
        assert core.agent(lead).claim.attempt == 0

    def test_a_deadline_passes_once_whoever_sees_it(self, core: Core) -> None:
        for _ in range(4):
            lead, _ = self.put_off(core, 0)
            core.sql("UPDATE wait SET deadline = 1")
            assert sum(together(*([core.recovery.expire_waits] * 3))) == 1
            core.agent(lead).finish()

    def test_an_edge_does_not_end_a_pause_of_the_provider(self, core: Core) -> None:
        lead, _ = self.put_off(core)
        core.act(lead, "team_task_create", subject="s", description="d")
        assert (core.wake(lead), core.recovery.wake_missed()) == (0, 0)

    def test_it_can_be_interrupted(self, core: Core) -> None:
        lead, _ = self.put_off(core)
        assert core.sessions.interrupt(lead, actor="me").previous_status == "running"
        assert core.next_deadline_seconds() is None
        core.prompt(lead, "again")
        core.agent(lead).finish()


class TestInterrupt:
    def test_c07_a_queued_turn_ends_without_ever_running(self, core: Core) -> None:
        lead = core.lead()
        bob = core.spawn(lead, "bob")
        assert core.act(lead, "interrupt_agent", target="bob") == {"previousStatus": "running"}
        assert core.turns.claim(core.claim_request()) is None
        assert last_end(core, bob).reason == "aborted"
        assert core.head(bob).pending == 1
        core.act(lead, "send_message", target="bob", message="now")
        assert len(core.agent(bob).begin()) == 2

    def test_a_session_between_turns_is_not_changed(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        before = core.count()
        for _ in range(3):
            assert core.act(lead, "interrupt_agent", target="bob") == {"previousStatus": "inactive"}
        assert core.count() == before
        assert not core.head(bob).held

    def test_every_open_call_gets_one_result_that_says_what_is_known(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.ask(READ, ("wait_agent", {}), ("bash", {"command": "x"}))
        agent.local_result(0)
        agent.run_call(1)
        core.sessions.interrupt(lead, actor="me")
        found = [data for event in core.log(lead) if isinstance(data := event.decoded(), ToolReturned)]
        assert [(data.index, data.outcome) for data in found] == [(0, "ok"), (1, "error"), (2, "unknown")]
        assert json.loads(found[1].content)["error"]["code"] == "TEAM_WAIT_ABORTED"
        assert core.next_deadline_seconds() is None

    def test_a_parked_turn_ends_and_its_waits_are_gone(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        assert agent.wait() == "parked"
        core.sessions.interrupt(lead, actor="me")
        assert (core.run(lead), core.wake(lead), core.pass_deadlines()) == (None, 0, 0)
        assert [outcome for _, outcome in results(core, lead)] == ["error"]

    def test_the_session_is_guarded_until_the_old_worker_confirms(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        core.sessions.interrupt(lead, actor="me")
        core.prompt(lead, "again")
        assert core.turns.claim(core.claim_request()) is None
        run = core.run(lead)
        assert run is not None
        assert core.turns.claim(core.claim_request(run.turn_id)) is None
        effects = len(core.effects)
        confirm(core, agent)
        assert [queued.turn_id for effect in core.effects[effects:] for queued in effect.queued] == [run.turn_id]
        assert core.agent(lead).begin() == ["again"]

    def test_the_guard_ends_with_the_old_lease(self, core: Core) -> None:
        lead = core.lead("go")
        core.agent(lead).begin()
        core.sessions.interrupt(lead, actor="me")
        core.prompt(lead, "again")
        assert core.turns.claim(core.claim_request()) is None
        core.sql("UPDATE session SET guard_until = 1")
        assert core.agent(lead).begin() == ["again"]

    def test_a_confirmation_of_another_claim_lifts_no_guard(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        core.sessions.interrupt(lead, actor="me")
        core.prompt(lead, "again")
        other = Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch + 1)
        core.turns.heartbeat(HeartbeatRequest(worker="w1", claims=(), stopped=(other,), slots=1))
        assert core.turns.claim(core.claim_request()) is None

    def test_the_heartbeat_tells_the_worker(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        held = Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch)
        core.sessions.interrupt(lead, actor="me")
        result = core.turns.heartbeat(HeartbeatRequest(worker="w1", claims=(held,), slots=1))
        assert (result.renewed, result.cancelled) == ((), (held,))

    def test_it_races_the_end_of_the_turn_and_one_of_them_decides(self, core: Core) -> None:
        for _ in range(10):
            lead = core.lead("go")
            agent = core.agent(lead)
            agent.answer(TextBlock(text="done"))
            boundary, interrupted = together(agent.boundary, lambda s=lead: core.sessions.interrupt(s, actor="me"))
            assert core.types(lead).count("turn/end") == 1
            if isinstance(boundary, TurnFenced):
                assert (last_end(core, lead).reason, interrupted.previous_status) == ("aborted", "running")
            else:
                assert (last_end(core, lead).reason, interrupted.previous_status) == ("completed", "inactive")


class TestFail:
    @pytest.mark.parametrize("code", ["auth", "context-length", "provider"])
    def test_r11_a_failed_turn_says_why_and_the_others_go_on(self, core: Core, code: str) -> None:
        lead = core.lead()
        bob, carol = core.spawn(lead, "bob"), core.spawn(lead, "carol")
        agent = core.agent(bob)
        agent.ask(READ)
        core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code=code, message="what happened"))
        core.agent(carol).finish()
        end = last_end(core, bob)
        assert (end.reason, end.code, end.message) == ("error", code, "what happened")
        assert [outcome for _, outcome in results(core, bob)] == ["unknown"]
        diagnostics: list[Any] = core.member(lead, "bob")["diagnostics"]
        assert any(code in line and "what happened" in line for line in diagnostics)
        assert core.member(lead, "carol")["diagnostics"] == []


class TestClose:
    def test_closing_stops_every_turn_and_admits_nothing_until_the_next_prompt(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.spawn(lead, "bob")
        core.idle(lead, "carol")
        closed = core.sessions.close(lead)
        assert set(closed.interrupted) == {"lead", "bob"}
        assert (core.run(lead), core.run(bob)) == (None, None)
        assert core.refused(lead, "spawn_teammate", name="dave", description="d", prompt="p") == "TEAM_DISPOSED"
        assert core.refused(lead, "send_message", target="bob", message="m") == "TEAM_DISPOSED"
        assert core.sessions.team(lead).closed
        core.prompt(lead, "again")
        assert not core.sessions.team(lead).closed
        core.act(lead, "send_message", target="bob", message="m")

    def test_a_worker_that_does_not_stop_is_named(self, make_core: MakeCore) -> None:
        core = make_core(disposal_seconds=0.2)
        lead = core.lead("go")
        agent = core.agent(lead)
        with pytest.raises(DisposalTimeout, match=lead):
            core.sessions.close(lead)
        confirm(core, agent)
        assert core.sessions.close(lead).interrupted == ()
