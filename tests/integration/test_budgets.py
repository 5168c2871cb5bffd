"""Budgets: what ends a turn before another model request, who is told, and what begins a new count."""

from pathlib import Path
from typing import Any

import pytest

from team.log import projections
from team.model.content import TextBlock
from team.model.events import TurnEnded, Usage
from team.model.ids import SessionId
from team.service.usage import UsageService
from tests.integration.conftest import MakeCore
from tests.support.core import Core


def last_end(core: Core, session_id: str) -> TurnEnded:
    ends = [data for event in core.log(session_id) if isinstance(data := event.decoded(), TurnEnded)]
    return ends[-1]


def spend(core: Core, session_id: str, tokens: int) -> None:
    """One turn of the member that uses these tokens and ends."""
    agent = core.agent(session_id)
    agent.answer(TextBlock(text="done"), usage=Usage(input_tokens=tokens - 1, cached_tokens=3, output_tokens=1))
    agent.boundary()


def test_l06_members_that_answer_each_other_for_ever_come_to_rest_with_a_reason(make_core: MakeCore) -> None:
    core = make_core(max_team_turns=8, settlement="silent")
    lead = core.lead("go")
    names = {core.idle(lead, "alice"): "bob", core.idle(lead, "bob"): "alice"}
    core.agent(lead).finish("they will see to it")
    core.act(lead, "send_message", target="alice", message="hello")
    rounds = 0
    while runs := [session_id for session_id in (*names, lead) if core.run(session_id) is not None]:
        rounds += 1
        assert rounds < 60, "they go on for ever"
        for session_id in runs:
            agent = core.agent(session_id)
            if agent.boundary().action == "ended":
                continue
            if session_id in names:
                agent.call("send_message", target=names[session_id], message="and you?")
            else:
                agent.answer(TextBlock(text="noted"))
            agent.boundary()
            if core.run(session_id) is not None:
                agent.finish("over to you")

    stopped = [end for end in (last_end(core, each) for each in names) if end.code == "budget"]
    assert stopped, "whoever got the last message could not begin"
    assert "max_team_turns" in (stopped[0].message or "")
    assert any("budget" in notice for notice in core.notices(lead))
    assert last_end(core, lead).code == "budget"
    shown = [" ".join(member.diagnostics) for member in core.sessions.team(lead).members]
    assert "budget" in shown[0]
    assert "budget" in " ".join(shown[1:])

    core.prompt(lead, "Go on, but finish this time.")
    agent = core.agent(lead)
    assert "budget" in agent.begin()[-1]
    agent.finish("so that is why")
    assert core.agent(lead).begin() == ["Go on, but finish this time."]


def test_tokens_of_all_members_count_and_the_turn_beyond_them_makes_no_request(make_core: MakeCore) -> None:
    core = make_core(max_team_tokens=1_000)
    lead = core.lead("go")
    core.agent(lead).finish()
    bob = core.spawn(lead, "bob")
    spend(core, bob, 600)
    core.act(lead, "send_message", target="bob", message="more")
    spend(core, bob, 600)
    core.act(lead, "send_message", target="bob", message="even more")
    agent = core.agent(bob)
    assert (agent.boundary().action, core.run(bob)) == ("ended", None)
    end = last_end(core, bob)
    assert (end.reason, end.code) == ("error", "budget")
    assert "1200 tokens" in (end.message or "")
    assert core.head(bob).held
    assert core.head(bob).pending == 1


def test_the_answer_that_reaches_a_budget_completes_its_turn(make_core: MakeCore) -> None:
    core = make_core(max_team_tokens=100)
    lead = core.lead("go")
    spend(core, lead, 500)
    assert last_end(core, lead).reason == "completed"


def test_a_calling_turn_beyond_a_budget_ends_between_its_steps(make_core: MakeCore) -> None:
    core = make_core(max_team_tokens=100)
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.call("list_agents")
    core.sql("UPDATE session SET tokens = 500 WHERE id = :s", s=lead)
    assert agent.boundary().action == "ended"
    assert last_end(core, lead).code == "budget"
    assert core.types(lead)[-2:] == ["step/end", "turn/end"]


@pytest.mark.parametrize("setting", ["max_turn_seconds", "max_team_seconds"])
def test_time_is_a_budget_too(make_core: MakeCore, setting: str) -> None:
    core = make_core(**{setting: 60.0})
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.call("list_agents")
    assert agent.boundary().action == "step"
    core.sql("UPDATE claim SET claimed_at = claimed_at - 100")
    core.sql("UPDATE team SET run_since = run_since - 100")
    agent.ask(("list_agents", {}))
    agent.run_call()
    assert agent.boundary().action == "ended"
    assert setting in (last_end(core, lead).message or "")


def test_the_time_of_a_turn_may_be_set_by_its_profile(make_core: MakeCore, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "hasty.toml").write_text(
        'description = "d"\ntools = ["read"]\nprompt = ["p"]\nmax_turn_seconds = 30\n', encoding="utf-8"
    )
    core = make_core(profile_dir=profiles, max_turn_seconds=3600.0)
    lead = core.lead("go", profile="hasty")
    agent = core.agent(lead)
    core.sql("UPDATE claim SET claimed_at = claimed_at - 40")
    assert agent.boundary().action == "ended"
    assert "30 s is the limit" in (last_end(core, lead).message or "")


def test_a_human_prompt_to_any_member_begins_a_new_count_and_a_members_message_does_not(make_core: MakeCore) -> None:
    core = make_core(max_team_tokens=100)
    lead = core.lead("go")
    bob = core.idle(lead, "bob")
    spend(core, lead, 500)
    core.act(lead, "send_message", target="bob", message="do it")
    assert core.agent(bob).boundary().action == "ended"
    core.prompt(bob, "I want it done.")
    assert core.agent(bob).begin()[0].endswith("do it")
    usage = UsageService(core.store).usage(lead)
    assert (usage.budget.tokens, usage.budget.max_tokens) == (0, 100)


def test_a_budget_costs_the_same_however_long_the_logs_are(make_core: MakeCore) -> None:
    core = make_core(max_team_tokens=10_000_000)
    lead = core.lead("go")
    agent = core.agent(lead)

    def step() -> None:
        agent.call("list_agents")
        agent.boundary()

    step()
    first = len(core.statements(step))
    for _ in range(10):
        step()
    assert len(core.statements(step)) == first


def test_usage_counts_each_session_by_itself_and_replay_equals_it(make_core: MakeCore) -> None:
    core = make_core()
    lead = core.lead("go")
    spend(core, lead, 500)
    fork = core.spawn(lead, "bob", context="fork")
    agent = core.agent(fork)
    agent.ask(("read", {"path": "a"}))
    agent.local_result(duration_ms=1_500)
    agent.boundary()
    agent.answer(TextBlock(text="done"), usage=Usage(input_tokens=40, cached_tokens=30, output_tokens=2))
    agent.boundary()

    usage = UsageService(core.store).usage(lead)
    rows: dict[str, dict[str, Any]] = {session.name: session.model_dump() for session in usage.sessions}

    assert list(rows) == ["lead", "bob"]
    assert (rows["lead"]["input_tokens"], rows["lead"]["output_tokens"], rows["lead"]["cached_tokens"]) == (499, 1, 3)
    bob = rows["bob"]
    assert (bob["turns"], bob["steps"], bob["calls"], bob["tool_ms"]) == (1, 2, 1, 1_500)
    assert (bob["input_tokens"], bob["cached_tokens"], bob["output_tokens"]) == (40, 30, 2)
    assert (usage.budget.tokens, usage.budget.turns) == (542, 3)
    for session_id in (lead, fork):
        fault = core.reading(lambda connection, each=session_id: projections.fault_of(connection, SessionId(each)))
        assert fault is None
