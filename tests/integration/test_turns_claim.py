"""Claims: compare-and-set, fence, repetition, and what a stale claim can do (nothing)."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from team.model.claims import (
    AnswerRequest,
    BackoffRequest,
    BoundaryRequest,
    Claim,
    FailRequest,
    HeartbeatRequest,
    Held,
    IntentRequest,
    ReleaseRequest,
    ResultRequest,
)
from team.model.content import TextBlock, ToolCallBlock
from team.model.errors import TurnConflict, TurnFenced
from team.model.slices import FileSlice
from team.service.callers import CallRef, ClaimRef
from team.service.turns import TurnService
from tests.support.core import Agent, Core, codes, decoded, together

READ = ("read", {"path": "f"})


class TestClaiming:
    def test_one_of_many_workers_gets_a_turn(self, core: Core) -> None:
        for _ in range(6):
            lead = core.lead("go")
            requests = [core.claim_request(worker=f"w{number}") for number in range(6)]
            claims = together(*(lambda request=request: core.turns.claim(request) for request in requests))
            codes(claims)
            won = [claim for claim in claims if claim is not None]
            assert [(claim.session_id, claim.epoch) for claim in won] == [(lead, 1)]

    def test_workers_that_come_together_get_different_turns(self, core: Core) -> None:
        for _ in range(4):
            leads = [core.lead("go") for _ in range(4)]
            requests = [core.claim_request(worker=f"w{number}") for number in range(4)]
            claims = together(*(lambda request=request: core.turns.claim(request) for request in requests))
            codes(claims)
            got = [claim.session_id for claim in claims if claim is not None]
            assert len(got) == len(set(got))
            rest = [core.turns.claim(core.claim_request()) for _ in range(4 - len(got))]
            assert {*got, *(claim.session_id for claim in rest if claim)} == set(leads)

    def test_a_named_turn_is_preferred_and_another_is_better_than_nothing(self, core: Core) -> None:
        first, second = core.lead("go"), core.lead("go")
        named = core.run(second)
        assert named is not None
        claim = core.turns.claim(core.claim_request(named.turn_id))
        assert claim is not None
        assert claim.session_id == second
        other = core.turns.claim(core.claim_request(named.turn_id))
        assert other is not None
        assert other.session_id == first
        assert core.turns.claim(core.claim_request(named.turn_id)) is None
        assert core.turns.claim(core.claim_request("turn-unknown")) is None

    def test_the_longest_queued_turn_comes_first_and_foreign_queues_never(self, core: Core) -> None:
        leads = [core.lead("go") for _ in range(3)]
        assert core.turns.claim(core.claim_request(queues=("other",))) is None
        order = [core.turns.claim(core.claim_request()) for _ in leads]
        assert [claim.session_id for claim in order if claim] == leads

    def test_a_repeated_request_returns_the_same_claim(self, core: Core) -> None:
        core.lead("go")
        request = core.claim_request()
        first = core.turns.claim(request)
        assert first is not None
        core.lead("another that must not be claimed instead")
        assert core.turns.claim(request) == first

    def test_a_request_repeated_while_it_is_answered_claims_once(self, core: Core) -> None:
        for _ in range(8):
            core.lead("go")
            core.lead("go")
            request = core.claim_request()
            claims = together(*([lambda request=request: core.turns.claim(request)] * 3))
            codes(claims)
            got = {claim.turn_id for claim in claims if isinstance(claim, Claim)}
            assert len(got) == 1
            while core.turns.claim(core.claim_request()):
                pass

    def test_a_claim_carries_what_a_cold_worker_needs_and_a_warm_one_only_the_rest(self, core: Core) -> None:
        lead = core.lead("go")
        one = core.agent(lead)
        one.ask(READ)
        one.local_result(observed=(FileSlice(path="f", version="v1"),), cwd=str(core.workspace / "sub"))
        known = one.seq
        core.lose_worker(lead)
        cold = core.agent(lead, "w2").claim
        assert [entry.kind for entry in cold.history] == ["header", "user", "user", "assistant", "tool-result"]
        assert (cold.history_after, cold.step, cold.answered, cold.pending, cold.epoch) == (0, 1, True, (), 2)
        assert cold.files == (FileSlice(path="f", version="v1"),)
        assert cold.cwd == str(core.workspace / "sub")
        assert cold.local_tools == ("read", "write", "edit", "glob", "grep", "bash")
        core.lose_worker(lead)
        warm = core.agent(lead, "w1", known={lead: known}).claim
        assert (warm.history_after, [entry.kind for entry in warm.history]) == (known, ["assistant", "tool-result"])
        core.lose_worker(lead)

    def test_a_worker_that_knows_more_than_the_log_starts_cold(self, core: Core) -> None:
        lead = core.lead("go")
        claim = core.agent(lead, known={lead: 10_000}).claim
        assert claim.history_after == 0


Write = Callable[[TurnService, ClaimRef, dict[str, Any]], object]
WRITES: dict[str, Write] = {
    "boundary": lambda turns, ref, numbered: turns.boundary(ref, BoundaryRequest(**numbered, history_after=0)),
    "answer": lambda turns, ref, numbered: turns.answer(
        ref, AnswerRequest(**numbered, step=1, model="m", content=(TextBlock(text="late"),), finish_reason="stop")
    ),
    "intent": lambda turns, ref, numbered: turns.intent(
        ref, IntentRequest(**numbered, step=1, index=0, path="f", after="h")
    ),
    "result": lambda turns, ref, numbered: turns.result(
        ref, ResultRequest(**numbered, step=1, index=0, outcome="ok", content="late")
    ),
    "backoff": lambda turns, ref, numbered: turns.backoff(
        ref, BackoffRequest(**numbered, step=1, delay_ms=0, reason="late")
    ),
    "fail": lambda turns, ref, numbered: turns.fail(ref, FailRequest(**numbered, code="late", message="late")),
    "release": lambda turns, ref, numbered: turns.release(ref, ReleaseRequest(**numbered, reason="late")),
}


def stale_claims(core: Core) -> dict[str, ClaimRef]:
    """Every way not to hold a claim, on a turn in its first step with one open call."""
    lead = core.lead("go")
    old = core.agent(lead)
    core.lose_worker(lead)
    now = core.agent(lead, "w2")
    now.ask(READ)
    valid = now.ref
    return {
        "an epoch that was lost": old.ref,
        "an epoch to come": ClaimRef(valid.turn_id, valid.epoch + 1, valid.token),
        "a token of nobody": ClaimRef(valid.turn_id, valid.epoch, "guess"),
        "no token": ClaimRef(valid.turn_id, valid.epoch, ""),
        "the token of another epoch": ClaimRef(valid.turn_id, valid.epoch, old.ref.token),
        "an unknown turn": ClaimRef(old.ref.turn_id.replace("turn-", "turn-0"), valid.epoch, valid.token),  # pyright: ignore[reportArgumentType] -- no branded id
    }


class TestFence:
    def test_w09_a_stale_claim_leaves_no_durable_effect(self, core: Core) -> None:
        claims = stale_claims(core)
        before, effects = core.count(), len(core.effects)
        for (why, ref), (kind, write) in itertools.product(claims.items(), WRITES.items()):
            for number in (1, 99):
                with pytest.raises(TurnFenced):
                    write(core.turns, ref, {"epoch": ref.epoch, "number": number})
                assert (why, kind, core.count(), len(core.effects)) == (why, kind, before, effects)

    @pytest.mark.parametrize(
        "call",
        [
            ("send_message", {"target": "lead", "message": "late"}),
            ("team_task_create", {"subject": "late", "description": "late"}),
            ("wait_agent", {}),
        ],
    )
    def test_w09_neither_do_its_team_tools(self, core: Core, call: tuple[str, dict[str, Any]]) -> None:
        lead = core.lead("go")
        bob = core.spawn(lead, "bob")
        old = core.agent(bob)
        old.ask(call)
        core.lose_worker(bob)
        before = core.count()
        with pytest.raises(TurnFenced):
            old.run_call()
        now = core.agent(bob, "w2")
        with pytest.raises(TurnFenced):
            old.run_call()
        assert core.count() == before
        assert now.claim.pending[0].name == call[0]

    def test_an_interrupted_claim_is_stale_at_once(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        core.sessions.interrupt(lead, actor="me")
        before = core.count()
        for write in WRITES.values():
            with pytest.raises(TurnFenced):
                write(core.turns, agent.ref, agent.numbered())
        assert core.count() == before

    def test_a_stale_worker_cannot_learn_the_calls_of_its_successor_by_repeating_itself(self, core: Core) -> None:
        lead = core.lead("go")
        old = core.agent(lead)
        old.begin()
        old.ask(READ)
        core.lose_worker(lead)
        now = core.agent(lead, "w2")
        now.local_result()
        now.begin()
        now.ask(("bash", {"command": "rm -r x"}))
        repeated = AnswerRequest(
            epoch=1, number=old.written, step=1, model="m", content=(TextBlock(text="x"),), finish_reason="stop"
        )
        with pytest.raises(TurnFenced):
            core.turns.answer(old.ref, repeated)


class TestRepeatedNumbers:
    def test_each_write_that_is_sent_again_changes_nothing_and_says_the_same(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)

        def twice(write: Callable[[dict[str, Any]], object]) -> object:
            numbered = agent.numbered()
            first = write(numbered)
            count = core.count()
            assert write(numbered) == first
            assert core.count() == count
            return first

        twice(lambda n: core.turns.boundary(agent.ref, BoundaryRequest(**n, history_after=0)))
        call = ToolCallBlock(call_id="c", name="write", arguments="{}")
        asked = AnswerRequest(epoch=1, number=1, step=1, model="m", content=(call, call), finish_reason="tool-calls")
        twice(lambda n: core.turns.answer(agent.ref, asked.model_copy(update=n)))
        twice(lambda n: core.turns.intent(agent.ref, IntentRequest(**n, step=1, index=0, path="f", after="h")))
        for index in (1, 0):
            twice(
                lambda n, index=index: core.turns.result(
                    agent.ref, ResultRequest(**n, step=1, index=index, outcome="ok", content="r")
                )
            )
        twice(lambda n: core.turns.boundary(agent.ref, BoundaryRequest(**n, history_after=0)))
        twice(lambda n: core.turns.backoff(agent.ref, BackoffRequest(**n, step=2, delay_ms=1_000, reason="429")))
        core.pass_deadlines()
        agent = core.agent(lead)
        twice(lambda n: core.turns.release(agent.ref, ReleaseRequest(**n, reason="drain")))
        agent = core.agent(lead)
        twice(lambda n: core.turns.fail(agent.ref, FailRequest(**n, code="auth", message="no key")))

    def test_the_end_of_a_turn_is_told_again_after_the_turn_is_gone(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        agent.answer(TextBlock(text="done"))
        last = BoundaryRequest(**agent.numbered(), history_after=0)
        assert core.turns.boundary(agent.ref, last).action == "ended"
        assert core.turns.boundary(agent.ref, last).action == "ended"
        with pytest.raises(TurnFenced):
            core.turns.boundary(agent.ref, BoundaryRequest(**agent.numbered(), history_after=0))

    def test_a_boundary_that_parked_is_told_again_even_when_another_worker_goes_on(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.call("wait_agent")
        parking = BoundaryRequest(**agent.numbered(), history_after=0)
        assert core.turns.boundary(agent.ref, parking).action == "parked"
        core.pass_deadlines()
        core.agent(lead, "w2")
        assert core.turns.boundary(agent.ref, parking).action == "parked"

    def test_a_number_that_meant_another_write_is_a_conflict(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        agent.begin()
        with pytest.raises(TurnConflict, match="was a boundary"):
            core.turns.release(agent.ref, ReleaseRequest(epoch=1, number=1, reason="r"))

    def test_two_copies_of_a_write_at_once_are_one(self, core: Core) -> None:
        for _ in range(6):
            lead = core.lead("go")
            agent = core.agent(lead)
            request = BoundaryRequest(**agent.numbered(), history_after=0)
            results = together(*([lambda a=agent, r=request: core.turns.boundary(a.ref, r)] * 3))
            assert codes(results) == ["ok"] * 3
            assert core.types(lead).count("step/start") == 1


class TestConflicts:
    def test_an_answer_belongs_to_the_open_step_and_comes_once(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        agent.begin()
        with pytest.raises(TurnConflict):
            agent.answer(TextBlock(text="x"), step=2)
        agent.ask(READ)
        with pytest.raises(TurnConflict):
            agent.core.turns.answer(
                agent.ref,
                AnswerRequest(**agent.numbered(), step=1, model="m", content=(), finish_reason="stop"),
            )

    def test_a_step_does_not_end_while_a_call_has_neither_result_nor_wait(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(READ, ("wait_agent", {}))
        agent.run_call(1)
        with pytest.raises(TurnConflict, match="calls without a result"):
            agent.boundary()
        agent.local_result(0)
        assert agent.boundary().action == "step"

    @pytest.mark.parametrize(("step", "index"), [(1, 1), (2, 0), (9, 9)])
    def test_a_result_or_a_tool_call_that_was_not_asked_for_is_refused(self, core: Core, step: int, index: int) -> None:
        agent = core.agent(core.lead("go"))
        agent.ask(READ)
        with pytest.raises(TurnConflict):
            core.turns.result(
                agent.ref,
                ResultRequest(**agent.numbered(), step=step, index=index, outcome="ok", content=""),
            )
        with pytest.raises(TurnConflict):
            core.tools.run_call(CallRef(agent.ref, step, index))

    @pytest.mark.parametrize("kind", ["intent", "backoff"])
    def test_other_writes_name_the_open_step_too(self, core: Core, kind: str) -> None:
        agent = core.agent(core.lead("go"))
        with pytest.raises(TurnConflict):
            WRITES[kind](core.turns, agent.ref, agent.numbered())

    def test_a_worker_cannot_answer_for_the_coordinator(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.ask(("wait_agent", {}), ("team_task_list", {}), ("teleport", {}))
        agent.run_call(0)
        for index in range(3):
            with pytest.raises(TurnConflict):
                agent.local_result(index)
        core.act(lead, "team_task_create", subject="s", description="d")
        assert core.wake(lead) == 1

    def test_a_repeated_result_under_a_new_number_keeps_the_first(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        agent.ask(READ)
        assert agent.local_result(content="first").entry == agent.local_result(content="second").entry

    def test_a_boundary_before_the_answer_returns_the_open_step(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        assert agent.boundary().step == agent.boundary().step == 1
        assert core.types(lead).count("step/start") == 1


class TestCallIds:
    def test_ids_that_were_used_before_are_rewritten_in_answer_and_calls_alike(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)

        def asked(*ids: str) -> tuple[list[str], list[str]]:
            blocks = [ToolCallBlock(call_id=call_id, name="read", arguments="{}") for call_id in ids]
            result = agent.answer(*blocks, finish="tool-calls")
            kept = [block.call_id for block in result.content if isinstance(block, ToolCallBlock)]
            for index in range(len(ids)):
                agent.local_result(index)
            return kept, [call.call_id for call in result.calls]

        first, calls = asked("c", "c", "", "")
        assert first == calls
        assert first[0] == "c"
        assert len({*first}) == 4
        assert "" not in first
        second, calls = asked("c", first[1], "new")
        assert second == calls
        assert second[2] == "new"
        assert not {*first} & {*second}

    def test_an_answer_with_a_nul_is_refused_whole(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        agent.begin()
        before = core.count()
        for block in (
            TextBlock(text="a\x00"),
            ToolCallBlock(call_id="c\x00", name="n", arguments="{}"),
            ToolCallBlock(call_id="c", name="n", arguments='"\ud800"'),
        ):
            assert codes([_raised(lambda b=block: agent.answer(b))]) == ["TEAM_INVALID_ARGUMENT"]
        assert core.count() == before
        agent.answer(TextBlock(text="clean"))


def _raised(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 -- judged by the caller
        return error


class TestExactlyOnce:
    CALL = ("team_task_create", {"subject": "s", "description": "d"})

    def test_a_call_that_is_run_again_returns_its_recorded_result(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(self.CALL)
        first = agent.run_call()
        before = core.count()
        assert agent.run_call() == first
        assert core.count() == before
        core.lose_worker(lead)
        successor = core.agent(lead, "w2")
        assert successor.claim.pending == ()
        assert successor.run_call(step=1) == first

    def test_a_call_is_run_once_from_many_threads(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        agent = core.agent(lead)
        calls: list[tuple[str, dict[str, Any]]] = [self.CALL, ("send_message", {"target": "bob", "message": "m"})]
        for call in calls * 3:
            agent.ask(call)
            results = together(*([agent.run_call] * 4))
            assert codes(results) == ["ok"] * 4
            assert len({result.model_dump_json() for result in results}) == 1
        agent.ask(("wait_agent", {}))
        waiting = together(*([agent.run_call] * 4))
        assert codes(waiting) == ["ok"] * 4
        assert {result.state for result in waiting} == {"waiting"}
        assert len(core.act(lead, "team_task_list")["tasks"]) == 3

    def test_a_spawn_that_is_run_from_many_threads_creates_one_teammate(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        for name in ("bob", "carol", "dave"):
            agent.ask(("spawn_teammate", {"name": name, "description": "d", "prompt": "p"}))
            results = together(*([agent.run_call] * 3))
            assert codes(results) == ["ok"] * 3
            assert {decoded(result)["member"]["status"] for result in results} == {"running"}
        assert len(core.act(lead, "list_agents")) == 4

    def test_an_error_is_the_calls_result_and_stays_it(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(("team_task_get", {"task_id": "task-1"}))
        first = agent.run_call()
        core.act(lead, "team_task_create", subject="s", description="d")
        assert agent.run_call() == first
        assert decoded(first)["error"]["code"] == "TEAM_TASK_NOT_FOUND"

    def test_an_unknown_tool_is_an_error_result_not_a_fault(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        assert agent.call("teleport", where="home")["error"]["code"] == "TOOL_UNKNOWN"

    def test_a_session_without_team_tools_cannot_reach_them_by_guessing(self, core: Core) -> None:
        lead = core.lead("go", profile="base")
        agent = core.agent(lead)
        result = agent.call("spawn_teammate", name="bob", description="d", prompt="p")
        assert result["error"]["code"] == "TOOL_UNKNOWN"
        assert len(core.sessions.team(lead).members) == 1


def test_a_heartbeat_renews_exactly_what_it_lists(core: Core) -> None:
    first, second = core.agent(core.lead("a")), core.agent(core.lead("b"))
    core.sql("UPDATE run SET lease_until = 1")
    held = [Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch) for agent in (first, second)]
    stale = Held(turn_id=second.ref.turn_id, epoch=2)
    result = core.turns.heartbeat(HeartbeatRequest(worker="w1", claims=(held[0], stale), slots=4))
    assert (result.renewed, result.cancelled) == ((held[0],), (stale,))
    foreign = core.turns.heartbeat(HeartbeatRequest(worker="thief", claims=(held[1],), slots=4))
    assert foreign.cancelled == (held[1],)
    assert core.turns.reap() == 1
    _assert_running(core, first)


def _assert_running(core: Core, agent: Agent) -> None:
    run = core.run(agent.claim.session_id)
    assert run is not None
    assert (run.state, run.epoch) == ("running", agent.claim.epoch)
