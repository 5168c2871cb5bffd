"""What becomes of a subagent and of the call that waits for it, however one of them ends."""

from collections.abc import Callable
from typing import Any

import pytest

from team.log import delegations, waits
from team.log.transaction import Transaction
from team.model.claims import FailRequest, ReleaseRequest
from team.model.content import TextBlock
from team.model.errors import SubagentEnded, TurnFenced
from team.model.ids import SessionId, child_session_id
from team.model.slices import CallSlice
from team.rules import children
from team.rules.children import Order
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, code_of, together
from tests.support.subagents import background, children_of, foreground, resumed, root


def outcome(core: Core, parent: str) -> Any:
    """The result that the parent's waiting call got, when its turn goes on."""
    return resumed(core, parent).last_result()


def failed(core: Core, child: SessionId) -> None:
    agent = core.agent(child)
    agent.begin()
    core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="auth", message="wrong key"))


def interrupted(core: Core, child: SessionId) -> None:
    core.agent(child).begin()
    core.sessions.interrupt(child, actor="tester")


def refused(core: Core, child: SessionId) -> None:
    core.agent(child).finish("I will not", "refusal")


def cut_short(core: Core, child: SessionId) -> None:
    core.agent(child).finish("half of i", "max-tokens")


def endless(core: Core, child: SessionId) -> None:
    agent = core.agent(child)
    for _ in range(2):
        agent.call("list_agents")
    assert agent.boundary().reason == "max-steps"


def poisoned(core: Core, child: SessionId) -> None:
    for _ in range(3):
        core.agent(child).begin()
        core.lose_worker(child)


ENDS: dict[str, tuple[Callable[[Core, SessionId], None], str]] = {
    "error": (failed, "error (auth: wrong key)"),
    "aborted": (interrupted, "aborted (interrupted by tester)"),
    "refusal": (refused, "refusal. What it did"),
    "max-tokens": (cut_short, "max-tokens. What it did"),
    "max-steps": (endless, "max-steps (The turn took 2 steps, its limit.)"),
    "poison": (poisoned, "error (poison: "),
}


class TestBadEnds:
    @pytest.mark.parametrize("end", ENDS)
    def test_the_waiting_call_is_told_why_its_child_did_not_complete(self, make_core: MakeCore, end: str) -> None:
        core = make_core(max_steps=2)
        parent, agent = root(core)
        child = foreground(agent)
        act, why = ENDS[end]
        act(core, child)
        result = outcome(core, parent)
        assert code_of(result) == "SUBAGENT_FAILED"
        assert why in result["error"]["message"]
        assert core.types(parent).count("tool/result") == 1
        assert core.run(child) is None

    @pytest.mark.parametrize(("act", "said"), [(refused, "I will not"), (cut_short, "half of i")])
    def test_what_it_said_last_is_told_too(self, core: Core, act: Callable[[Core, SessionId], None], said: str) -> None:
        parent, agent = root(core)
        act(core, foreground(agent))
        assert outcome(core, parent)["error"]["message"].endswith(f"Its last text:\n{said}")

    @pytest.mark.parametrize("end", ENDS)
    def test_the_end_of_a_background_child_is_told_by_its_notice(self, make_core: MakeCore, end: str) -> None:
        core = make_core(max_steps=2)
        parent, agent = root(core)
        child = background(agent)
        act, why = ENDS[end]
        act(core, child)
        (notice,) = core.notices(parent)
        assert why.split(".")[0] in notice

    def test_a_child_whose_log_cannot_be_read_fails_its_call(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        core.may_be_damaged = True
        core.insert_raw(child, "user/message", '{"a":1}', visible=True)
        assert core.turns.claim(core.claim_request()) is not None
        (result,) = [event.data for event in core.log(parent) if event.type == "tool/result"]
        assert "log-damaged" in result["content"]

    def test_a_child_whose_state_cannot_be_read_fails_its_call_and_no_other(self, core: Core) -> None:
        parent, agent = root(core)
        agent.ask(*(("subagent", {"label": f"n{n}", "prompt": "p"}) for n in range(2)))
        for index in range(2):
            agent.run_call(index)
        assert agent.boundary().action == "parked"
        broken, healthy = children_of(core, parent)
        core.may_be_damaged = True
        core.sql("UPDATE session SET head = '[]' WHERE id = :id", id=broken)
        claim = core.turns.claim(core.claim_request())
        assert claim is not None
        assert claim.session_id == healthy
        core.agent_of(claim).finish("fine")
        results = [event.data for event in core.log(parent) if event.type == "tool/result"]
        assert "SUBAGENT_FAILED" in results[0]["content"]
        assert broken in results[0]["content"]
        assert "fine" in results[1]["content"]
        assert resumed(core, parent).claim.session_id == parent


class TestOneTurn:
    """A one-shot child has one turn and no life behind it."""

    def test_whatever_it_gets_steers_its_turn(self, core: Core) -> None:
        _, agent = root(core)
        child = foreground(agent)
        helper = core.agent(child)
        helper.begin()
        core.prompt(child, "also this")
        helper.answer(TextBlock(text="done"))
        assert helper.begin() == ["also this"]
        helper.finish("both done")
        assert core.types(child).count("turn/start") == 1

    def test_it_takes_no_prompt_after_its_end(self, core: Core) -> None:
        _, agent = root(core)
        child = foreground(agent)
        core.agent(child).finish("x")
        count = core.count()
        with pytest.raises(SubagentEnded):
            core.prompt(child, "more")
        with pytest.raises(SubagentEnded):
            core.prompt(child, "more", steer=True)
        assert core.count() == count

    def test_input_that_its_turn_did_not_reach_is_discarded_with_a_reason(self, core: Core) -> None:
        _, agent = root(core)
        child = foreground(agent)
        core.agent(child).begin()
        core.prompt(child, "too late")
        core.sessions.interrupt(child, actor="tester")
        assert core.head(child).pending == 0
        assert core.log(child)[-1].type == "agent/inbox/discarded"
        assert core.run(child) is None

    def test_its_background_life_is_none(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        core.agent(child).finish("x")
        assert core.notices(parent) == []
        assert core.refused(parent, "send_message", agent_id=child, message="m") == "TEAM_INVALID_TARGET"


class TestParentEnds:
    def test_an_interrupted_parent_ends_the_children_that_its_calls_wait_for(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        helper = core.agent(child)
        helper.begin()
        core.sessions.interrupt(parent, actor="tester")
        assert core.run(parent) is core.run(child) is None
        (result,) = [event.data for event in core.log(parent) if event.type == "tool/result"]
        assert "TEAM_WAIT_ABORTED" in result["content"]
        assert "subagents that it waited for were ended" in result["content"]
        with pytest.raises(TurnFenced):
            helper.answer(TextBlock(text="late"))
        assert core.types(parent).count("tool/result") == 1

    def test_an_ended_childs_worker_must_confirm_before_the_session_is_claimed_again(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        core.agent(child).begin()
        core.sessions.interrupt(parent, actor="tester")
        guard = "SELECT guard_turn FROM session WHERE id = :id"
        assert core.reading(lambda c: c.exec_driver_sql(guard.replace(":id", f"'{child}'")).scalar_one()) is not None

    def test_children_in_the_background_go_on_and_their_notice_is_held(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        core.sessions.interrupt(parent, actor="tester")
        core.agent(child).finish("still here")
        assert core.run(parent) is None
        assert core.head(parent).pending == 1
        core.sql("UPDATE session SET guard_until = 1 WHERE id = :id", id=parent)
        core.prompt(parent, "go on")
        assert "still here" in core.agent(parent).begin()[0]

    @pytest.mark.parametrize("ending", ["fail", "poison"])
    def test_a_parent_that_fails_while_its_call_waits_ends_them_too(self, core: Core, ending: str) -> None:
        parent, agent = root(core)
        assert agent.call("subagent", label="l", prompt="p") is None
        (child,) = children_of(core, parent)
        if ending == "fail":
            core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="provider", message="down"))
        else:
            core.lose_worker(parent)
            for _ in range(2):
                core.agent(parent)
                core.lose_worker(parent)
        assert core.run(child) is None
        assert core.types(parent)[-1] == "turn/end"

    def test_a_parent_that_lost_its_worker_waits_on_for_the_same_child(self, core: Core) -> None:
        parent, agent = root(core)
        assert agent.call("subagent", label="l", prompt="p") is None
        (child,) = children_of(core, parent)
        core.lose_worker(parent)
        again = core.agent(parent)
        assert [call.waiting for call in again.claim.pending] == [True]
        again.step = again.claim.step
        assert again.run_call().state == "waiting"
        assert again.boundary().action == "parked"
        core.agent(child).finish("the one")
        assert outcome(core, parent)["text"] == "the one"
        assert children_of(core, parent) == [child]

    def test_a_child_that_lost_its_worker_goes_on_with_another(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        core.agent(child).begin()
        core.lose_worker(child)
        helper = core.agent(child, "w2")
        helper.begin()
        core.turns.release(helper.ref, ReleaseRequest(**helper.numbered(), reason="drain"))
        core.agent(child, "w3").finish("by the third")
        assert outcome(core, parent)["text"] == "by the third"

    def test_an_unreadable_child_does_not_keep_its_parent_from_being_interrupted(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        core.may_be_damaged = True
        core.sql("UPDATE session SET header = '{}' WHERE id = :id", id=child)
        core.sessions.interrupt(parent, actor="tester")
        assert core.run(parent) is None

    def test_closing_stops_every_level_and_names_it(self, core: Core) -> None:
        parent, agent = root(core)
        one = foreground(agent, label="one")
        helper = core.agent(one)
        helper.begin()
        two = foreground(helper, label="two")
        closed = core.sessions.close(parent)
        assert closed.interrupted == ("lead", "one", "two")
        assert [core.run(session) for session in (parent, one, two)] == [None] * 3


class TestRaces:
    def test_the_ends_of_parent_and_child_at_once_leave_one_result(self, core: Core) -> None:
        for _ in range(4):
            parent, agent = root(core)
            child = foreground(agent)
            helper = core.agent(child)
            helper.answer(TextBlock(text="done"))
            together(
                helper.boundary,
                lambda parent=parent: core.sessions.interrupt(parent, actor="tester"),
                lambda child=child: core.sessions.interrupt(child, actor="tester"),
            )
            assert core.run(child) is None
            assert core.types(parent).count("tool/result") == 1
            assert core.types(child).count("turn/end") == 1

    def test_children_that_end_at_once_resume_their_parent_once(self, core: Core) -> None:
        parent, agent = root(core)
        agent.ask(*(("subagent", {"label": f"n{n}", "prompt": "p"}) for n in range(4)))
        for index in range(4):
            agent.run_call(index)
        assert agent.boundary().action == "parked"
        helpers = [core.agent(child) for child in children_of(core, parent)]
        for helper in helpers:
            helper.answer(TextBlock(text="x"))
        ends = together(*(helper.boundary for helper in helpers))
        assert [end.action for end in ends] == ["ended"] * 4
        assert core.types(parent).count("tool/result") == 4
        assert core.types(parent).count("turn/resumed") == 1

    def test_a_child_that_ends_while_its_parent_parks_is_not_missed(self, core: Core) -> None:
        for _ in range(4):
            parent, agent = root(core)
            assert agent.call("subagent", label="l", prompt="p") is None
            helper = core.agent(children_of(core, parent)[0])
            helper.answer(TextBlock(text="x"))
            parked, ended = together(agent.boundary, helper.boundary)
            assert ended.action == "ended"
            run = core.run(parent)
            assert run is not None
            assert (parked.action, run.state) in {("parked", "queued"), ("step", "running")}


class TestWorkflowWaits:
    """What a call that waits for several children builds on."""

    def delegate(self, core: Core, agent: Agent, count: int) -> list[SessionId]:
        parent = agent.claim.session_id
        agent.ask(("bash", {"command": "stands for a workflow"}))

        def body(tx: Transaction) -> list[SessionId]:
            tx.lock_team(core.head_team(parent))
            tx.lock_sessions(parent)
            turn = tx.open_turn(parent)
            assert turn is not None
            (call,) = tx.calls(parent, turn)
            children.register_wait(tx, "workflow", parent, call)
            created: list[SessionId] = []
            for item in range(count):
                created.append(child_session_id(parent, call.call_id, item))
                children.create(tx, parent, created[-1], Order(f"item {item}", "p", "one-shot"))
                children.expect(tx, created[-1], call)
            return created

        created = core.store.writing(body)
        assert agent.boundary().action == "parked"
        return created

    def test_each_end_is_kept_for_the_workflow_and_named_in_the_effects(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        one, two = self.delegate(core, agent, 2)
        assert core.sessions.view(one).profile == "base"
        core.effects.clear()
        core.agent(one).finish("first")
        assert [effect.workflows for effect in core.effects if effect.workflows] == [{agent.claim.turn_id}]
        core.agent(two).begin()
        core.sessions.interrupt(two, actor="tester")
        run = core.run(lead)
        assert run is not None
        assert run.state == "parked"
        assert core.types(lead).count("tool/result") == 0

        def take(tx: Transaction) -> list[tuple[str, str]]:
            tx.lock_team(core.head_team(lead))
            tx.lock_sessions(lead)
            found = delegations.ended_delegations(tx.connection)
            return sorted((ended.reason, ended.text) for ended in (children.take_ending(tx, each) for each in found))

        assert core.store.writing(take) == [("aborted", ""), ("completed", "first")]
        assert core.reading(delegations.ended_delegations) == []

    def test_an_interrupted_teammate_ends_the_children_of_its_workflow(self, core: Core) -> None:
        lead = core.lead()
        agent = core.agent(core.spawn(lead, "bob"))
        agent.begin()
        created = self.delegate(core, agent, 3)
        core.agent(created[0]).finish("x")
        core.act(lead, "interrupt_agent", target="bob")
        assert [core.run(child) for child in created] == [None] * 3
        assert core.reading(lambda c: waits.turn_waits(c, agent.claim.turn_id)) == []
        assert core.reading(delegations.ended_delegations) == []
        call = core.reading(lambda c: c.exec_driver_sql("SELECT data FROM call").scalar_one())
        assert CallSlice.model_validate_json(call).outcome == "error"
