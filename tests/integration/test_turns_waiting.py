"""wait_agent: registration, edges, deadlines, and when waiting cannot help."""

from collections.abc import Callable

import pytest

from team.model.claims import BackoffRequest, ReleaseRequest
from team.service.callers import Caller
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, code_of, codes, decoded, together


def waiting_lead(core: Core, *others: str) -> tuple[str, Agent]:
    """A Lead parked in wait_agent while the others have queued turns."""
    lead = core.lead("go")
    for name in others or ("bob",):
        core.spawn(lead, name)
    agent = core.agent(lead)
    agent.begin()
    assert agent.wait() == "parked"
    return lead, agent


def woken(core: Core, lead: str) -> dict[str, object]:
    """The result that the Lead's wait got; its turn is claimed for that."""
    agent = core.agent(lead)
    agent.begin()
    return agent.last_result()


EDGES: dict[str, Callable[[Core, str], object]] = {
    "a task is created": lambda core, lead: core.act(lead, "team_task_create", subject="s", description="d"),
    "a message to somebody else": lambda core, lead: core.act(lead, "send_message", target="bob", message="m"),
    "a prompt to the waiting Lead": lambda core, lead: core.prompt(lead, "hello"),
    "a steering prompt to it": lambda core, lead: core.prompt(lead, "hello", steer=True),
    "a new member": lambda core, lead: core.spawn(lead, "carol"),
    "a member's turn ends": lambda core, lead: core.agent(core.sessions.member_session(lead, "bob")).finish(),
    "a member is interrupted": lambda core, lead: core.act(lead, "interrupt_agent", target="bob"),
}


class TestEdges:
    @pytest.mark.parametrize("edge", EDGES)
    def test_an_edge_resolves_the_wait(self, core: Core, edge: str) -> None:
        lead, _ = waiting_lead(core)
        before = core.teams.edge_counter(core.head_team(lead))
        EDGES[edge](core, lead)
        assert core.teams.edge_counter(core.head_team(lead)) > before
        assert core.wake(lead) == 1
        assert woken(core, lead) == {"timedOut": False}

    def test_claims_steps_parking_and_reading_are_no_edges(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        before = core.teams.edge_counter(core.head_team(lead))
        bob = core.agent(core.sessions.member_session(lead, "bob"))
        bob.begin()
        bob.call("list_agents")
        bob.call("team_task_list")
        core.turns.release(bob.ref, ReleaseRequest(**bob.numbered(), reason="drain"))
        bob = core.agent(bob.claim.session_id)
        bob.begin()
        core.turns.backoff(bob.ref, BackoffRequest(**bob.numbered(), step=bob.step, delay_ms=1, reason="429"))
        core.lose_worker(bob.claim.session_id)
        assert core.teams.edge_counter(core.head_team(lead)) == before
        assert core.recovery.wake_missed() == 0

    def test_an_edge_of_another_team_wakes_nobody(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        other = core.lead("elsewhere")
        core.act(other, "team_task_create", subject="s", description="d")
        assert core.wake(other) == core.wake(lead) == core.recovery.wake_missed() == 0

    def test_a_refused_operation_is_no_edge(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        core.refused(lead, "send_message", target="nobody", message="m")
        core.refused(lead, "spawn_teammate", name="bob", description="d", prompt="p")
        assert core.wake(lead) == 0

    def test_the_effects_of_a_commit_name_the_team_and_its_new_counter(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        core.effects.clear()
        core.act(lead, "send_message", target="bob", message="m")
        assert [effect.edges for effect in core.effects] == [{lead: core.teams.edge_counter(core.head_team(lead))}]

    def test_one_edge_resolves_all_waits_in_one_transaction_each_once(self, core: Core) -> None:
        lead = core.lead()
        names = ["bob", "carol", "dave", "erin"]
        members = [core.spawn(lead, name) for name in names]
        for member in members[:3]:
            agent = core.agent(member)
            agent.begin()
            assert agent.wait() == "parked"
        core.act(lead, "team_task_create", subject="s", description="d")
        core.effects.clear()
        assert sum(together(*([lambda: core.wake(lead)] * 4))) == 3
        queued = [[item.member for item in effect.queued] for effect in core.effects if effect.queued]
        assert [sorted(items) for items in queued] == [["bob", "carol", "dave"]]
        for member in members[:3]:
            assert core.types(member).count("tool/result") == 1

    def test_p01_an_edge_that_nobody_was_told_of_is_found_by_the_sweep(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        core.act(lead, "team_task_create", subject="s", description="d")
        assert core.recovery.wake_missed() == 1
        assert core.recovery.wake_missed() == 0
        assert woken(core, lead) == {"timedOut": False}


class TestRegistration:
    def test_earlier_edges_are_not_replayed(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.begin()
        core.act(lead, "team_task_create", subject="s", description="d")
        assert agent.wait() == "parked"
        assert (core.wake(lead), core.recovery.wake_missed()) == (0, 0)

    def test_an_edge_between_registration_and_parking_is_not_missed(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        assert agent.call("wait_agent") is None
        core.act(lead, "team_task_create", subject="s", description="d")
        assert agent.boundary().action == "step"
        assert agent.last_result() == {"timedOut": False}

    def test_a_wake_may_come_before_the_turn_has_parked(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        assert agent.call("wait_agent") is None
        core.act(lead, "team_task_create", subject="s", description="d")
        assert core.wake(lead) == 1
        assert agent.boundary().action == "step"
        assert core.types(lead).count("turn/parked") == 0

    def test_steerable_input_that_is_there_already_returns_at_once(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.begin()
        core.prompt(lead, "look", steer=True)
        assert agent.call("wait_agent") == {"timedOut": False}

    def test_a_prompt_for_a_later_turn_does_not_make_every_wait_return_at_once(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.begin()
        core.prompt(lead, "afterwards")
        assert agent.wait() == "parked"
        assert core.recovery.wake_missed() == 0

    def test_w05_a_timeout_out_of_range_is_a_typed_error(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        for timeout_ms in (0, -1, 9_999, 3_600_001):
            assert code_of(agent.call("wait_agent", timeout_ms=timeout_ms)) == "TEAM_INVALID_TIMEOUT"

    @pytest.mark.parametrize(("timeout_ms", "seconds"), [(None, 30), (10_000, 10), (3_600_000, 3_600)])
    def test_w05_the_deadline_lies_in_sql(self, core: Core, timeout_ms: int | None, seconds: float) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.begin()
        assert agent.wait(timeout_ms) == "parked"
        left = core.next_deadline_seconds()
        assert left is not None
        assert seconds - 60 < left <= seconds

    def test_w01_a_deadline_that_passes_is_an_ordinary_result(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        assert core.recovery.expire_waits() == 0
        assert core.pass_deadlines() == 1
        assert woken(core, lead) == {"timedOut": True}

    def test_a_deadline_that_passed_before_parking_is_one_too(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.call("wait_agent")
        core.sql("UPDATE wait SET deadline = 1")
        assert agent.boundary().action == "step"
        assert agent.last_result() == {"timedOut": True}

    def test_edge_deadline_and_interrupt_at_once_give_one_result(self, core: Core) -> None:
        for _ in range(6):
            lead, _ = waiting_lead(core)
            core.act(lead, "team_task_create", subject="s", description="d")
            core.sql("UPDATE wait SET deadline = 1")
            done = together(
                lambda lead=lead: core.wake(lead),
                core.recovery.expire_waits,
                lambda lead=lead: core.sessions.interrupt(lead, actor="me"),
            )
            codes(done)
            assert core.types(lead).count("tool/result") == 1

    def test_a_turn_resumes_when_its_last_wait_is_resolved(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.ask(("wait_agent", {"timeout_ms": 10_000}), ("wait_agent", {"timeout_ms": 20_000}))
        agent.run_call(0)
        agent.run_call(1)
        assert agent.boundary().action == "parked"
        core.sql('UPDATE wait SET deadline = 1 WHERE "index" = 0')
        assert core.recovery.expire_waits() == 1
        run = core.run(lead)
        assert run is not None
        assert run.state == "parked"
        core.pass_deadlines()
        agent = core.agent(lead)
        agent.begin()
        assert core.types(lead).count("tool/result") == 2

    def test_a_lost_worker_does_not_lose_the_wait(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.ask(("wait_agent", {}), ("read", {"path": "f"}))
        agent.run_call(0)
        core.lose_worker(lead)
        agent = core.agent(lead, "w2")
        assert [call.waiting for call in agent.claim.pending] == [True, False]
        assert agent.run_call(0).state == "waiting"
        agent.local_result(1)
        assert agent.boundary().action == "parked"
        core.pass_deadlines()
        assert woken(core, lead) == {"timedOut": True}


class TestNoProgress:
    def test_nobody_else_is_running(self, core: Core) -> None:
        lead = core.lead("go")
        core.idle(lead, "bob")
        agent = core.agent(lead)
        assert agent.wait() == "step"
        result = agent.last_result()
        assert (result["timedOut"], result["noProgress"]["reason"]) == (False, "no-active-peer")

    def test_everybody_else_waits_too(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.spawn(lead, "bob")
        boss, mate = core.agent(lead), core.agent(bob)
        boss.begin()
        mate.begin()
        assert boss.wait() == "parked"
        assert mate.wait() == "step"
        assert mate.last_result()["noProgress"]["reason"] == "all-peers-waiting"

    def test_of_two_that_park_at_once_one_learns_it(self, core: Core) -> None:
        for _ in range(8):
            lead = core.lead("go")
            bob = core.spawn(lead, "bob")
            agents = [core.agent(lead), core.agent(bob)]
            for agent in agents:
                agent.call("wait_agent")
            actions = sorted(result.action for result in together(*(agent.boundary for agent in agents)))
            assert actions == ["parked", "step"]

    def test_a_member_in_a_provider_pause_counts_as_progress(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.agent(core.spawn(lead, "bob"))
        bob.begin()
        core.turns.backoff(bob.ref, BackoffRequest(**bob.numbered(), step=1, delay_ms=60_000, reason="429"))
        assert core.agent(lead).wait() == "parked"

    def test_a_member_whose_wait_has_been_passed_by_an_edge_counts_as_progress(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.agent(core.spawn(lead, "bob"))
        bob.begin()
        assert bob.wait() == "parked"
        core.act(lead, "team_task_create", subject="s", description="d")
        assert core.agent(lead).wait() == "parked"

    def test_a_member_that_is_being_created_counts_as_progress(self, core: Core) -> None:
        lead = core.lead("go")
        core.reserve_only(lead, "bob")
        assert core.agent(lead).wait() == "parked"

    def test_a_queued_member_counts_as_progress(self, core: Core) -> None:
        waiting_lead(core)

    def test_the_end_of_the_last_worker_wakes_the_waiting_lead(self, core: Core) -> None:
        lead, _ = waiting_lead(core)
        core.agent(core.sessions.member_session(lead, "bob")).finish()
        assert core.wake(lead) == 1

    def test_an_operator_is_no_peer_and_no_progress(self, make_core: MakeCore) -> None:
        core = make_core(settlement="off")
        lead = core.lead()
        core.idle(lead, "bob")
        _, _, view = core.teams.wait_state(Caller(lead, actor="me"), None)
        assert view is not None
        assert view.no_progress is not None
        assert view.no_progress.reason == "no-active-peer"
        core.spawn(lead, "carol")
        assert core.teams.wait_state(Caller(lead, actor="me"), None)[2] is None


def test_a_waiting_lead_answers_its_human(core: Core) -> None:
    lead, _ = waiting_lead(core)
    core.prompt(lead, "how far are you?")
    assert core.wake(lead) == 1
    agent = core.agent(lead)
    agent.begin()
    agent.finish("so far")
    assert core.agent(lead).begin() == ["how far are you?"]


def test_waits_and_calls_share_an_answer(core: Core) -> None:
    lead = core.lead("go")
    core.spawn(lead, "bob")
    agent = core.agent(lead)
    agent.ask(("send_message", {"target": "bob", "message": "m"}), ("wait_agent", {}))
    assert decoded(agent.run_call(0))["status"] == "accepted"
    assert agent.run_call(1).state == "waiting"
    assert agent.boundary().action == "parked"
