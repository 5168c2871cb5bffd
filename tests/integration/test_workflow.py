"""Workflows over both databases: agents, joins, captured results, limits, and who brings them on."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from team.log import delegations, workflows
from team.model.errors import TeamError
from team.model.events import WorkflowAsked, WorkflowEnded
from team.model.ids import SessionId
from team.rules import capture
from tests.support.core import Agent, Core, code_of, decoded
from tests.support.subagents import children_of, descriptor, root
from tests.support.workflows import (
    FAN,
    SCHEMA,
    advance,
    events_of,
    failure_of,
    finish,
    items_of,
    launch,
    report,
    result_of,
    workflow_state,
)

MakeCore = Callable[..., Core]


def one_agent(agent: Agent, **arguments: Any) -> SessionId:
    """A workflow with one agent that must report a count; the agent's Session."""
    (child,) = launch(agent, 'return await agent("count", schema=args)', args=SCHEMA, **arguments)
    return child


class TestRuns:
    def test_agents_run_at_once_and_their_answers_come_back_in_order(self, core: Core) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 3})
        assert set(children_of(core, lead)) == set(parts)
        for place in (2, 0, 1):
            finish(core, parts[place], f"r{place}")
        join = items_of(core, lead)[3]
        assert finish(core, join, "joined") == ["join ['r0', 'r1', 'r2']"]
        assert result_of(core, lead) == {"result": "joined", "agents": 4, "failed": 0}

    def test_the_log_tells_it_in_order(self, core: Core) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 2})
        for part in parts:
            finish(core, part, "x")
        finish(core, items_of(core, lead)[2], "joined")
        assert events_of(core, lead) == [
            *("started", "progress", "agent", "agent", "answered", "answered"),
            *("progress", "agent", "answered", "ended"),
        ]
        state = workflow_state(core, lead)
        assert (state.phase, state.note, state.ended) == ("fan", "2 parts are done", True)

    def test_the_waiting_turn_is_parked_and_holds_no_slot(self, core: Core) -> None:
        lead, agent = root(core)
        (part,) = launch(agent, FAN, args={"parts": 1})
        run = core.run(lead)
        assert run is not None
        assert (run.state, run.worker) == ("parked", None)
        finish(core, part, "x")
        finish(core, items_of(core, lead)[1], "joined")
        run = core.run(lead)
        assert run is not None
        assert run.state == "queued"

    def test_a_script_without_agents_returns_before_its_turn_has_parked(self, core: Core) -> None:
        _lead, agent = root(core)
        assert agent.call("workflow", name="sum", script="return sum(args)", args=[1, 2]) is None
        assert advance(core) == 1
        agent.begin()
        assert agent.last_result() == {"result": 3, "agents": 0, "failed": 0}

    def test_two_workflows_of_one_answer_run_beside_each_other(self, core: Core) -> None:
        lead, agent = root(core)
        script = {"name": "twin", "script": "return await agent(args)"}
        agent.ask(("workflow", {**script, "args": "one"}), ("workflow", {**script, "args": "two"}))
        assert [agent.run_call(index).state for index in (0, 1)] == ["waiting", "waiting"]
        assert agent.boundary().action == "parked"
        advance(core)
        first, second = children_of(core, lead)
        for child in (second, first):
            seen = core.agent(child)
            words = seen.begin()
            seen.finish(f"did {words[0]}")
        advance(core)
        shown = core.agent(lead)
        shown.begin()
        contents = [json.loads(entry.content) for entry in shown.history if entry.kind == "tool-result"]
        assert [content["result"] for content in contents] == ["did one", "did two"]

    def test_a_failed_agent_is_none_for_its_item_only_and_the_result_says_why(self, core: Core) -> None:
        lead, agent = root(core)
        script = 'return await parallel([agent("a", label="a"), agent("b", label="b")])'
        one, two = launch(agent, script)
        core.sessions.interrupt(one, actor="tester")
        finish(core, two, "fine")
        result = result_of(core, lead)
        assert (result["result"], result["agents"], result["failed"]) == ([None, "fine"], 2, 1)
        assert result["failures"] == [{"label": "a", "error": "aborted (interrupted by tester)"}]

    def test_an_agent_that_cannot_be_read_is_a_failed_item(self, core: Core) -> None:
        core.may_be_damaged = True
        lead, agent = root(core)
        one, two = launch(agent, 'return await parallel([agent("a"), agent("b")])')
        run = core.run(one)
        assert run is not None
        core.sql("UPDATE session SET head = '{' WHERE id = :s", s=one)
        core.turns.claim(core.claim_request(run.turn_id))
        advance(core)
        core.lose_worker(two)
        finish(core, two, "fine")
        result = result_of(core, lead)
        assert result["result"] == [None, "fine"]
        assert "cannot be read" in result["failures"][0]["error"]

    def test_a_long_value_is_cut(self, make_core: MakeCore) -> None:
        core = make_core(output_bytes=1_000)
        lead, agent = root(core)
        launch(agent, 'return ["y" * 5000]')
        result = result_of(core, lead)
        assert result["cut"] is True
        assert result["result"] == '["' + "y" * 998

    def test_a_repeated_call_joins_its_workflow(self, core: Core) -> None:
        lead, agent = root(core)
        agent.ask(("workflow", {"name": "n", "script": "return await agent('x')"}))
        assert [agent.run_call().state for _ in range(2)] == ["waiting", "waiting"]
        advance(core)
        assert agent.run_call().state == "waiting"
        assert agent.boundary().action == "parked"
        assert len(children_of(core, lead)) == 1
        assert events_of(core, lead).count("started") == 1


class TestChildren:
    def test_they_are_fresh_one_shot_children_under_base_with_the_callers_model(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(core.spawn(lead, "bob"))
        agent.begin()
        member = agent.claim.session_id
        (child,) = launch(agent, 'return await agent("look", label="scout", tools=["read"])')
        header, found = core.sessions.view(child), descriptor(core, child)
        assert (header.profile, header.parent_id, header.root_id) == ("base", member, lead)
        assert (found.mode, found.provider, found.label, found.tool_filter) == ("one-shot", "fresh", "scout", ("read",))
        assert core.head(child).descriptor is not None

    def test_a_teammates_conversation_identity_is_not_inherited(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(core.spawn(lead, "bob", prompt="The secret word is plum."))
        agent.begin()
        (child,) = launch(agent, 'return await agent("look", label="scout")')
        seen = core.agent(child)
        seen.begin()
        shown = json.dumps([entry.to_wire() for entry in seen.history if entry.kind != "header"])
        assert "plum" not in shown
        assert "subagent" in shown
        assert seen.claim.member == "scout"
        assert [row["target"] for row in core.act(lead, "list_agents")] == ["lead", "bob"]

    def test_no_more_run_at_once_than_the_width_and_the_others_follow(self, make_core: MakeCore) -> None:
        core = make_core(max_workflow_width=2)
        lead, agent = root(core)
        items = launch(agent, FAN, args={"parts": 5})
        assert len(items) == 5
        assert set(children_of(core, lead)) == set(items[:2])
        for begun, item in enumerate(items):
            finish(core, item, "x")
            expected = min(3 + begun, 5) if begun < 4 else 6
            assert len(children_of(core, lead)) == expected

    def test_the_depth_limit_refuses_the_call(self, make_core: MakeCore) -> None:
        core = make_core(max_depth=1)
        _lead, agent = root(core)
        (child,) = launch(agent, 'return await agent("x")')
        result = core.agent(child)
        result.begin()
        assert code_of(result.call("workflow", name="n", script="return 1")) == "SUBAGENT_DEPTH"

    def test_an_agent_may_run_a_workflow_of_its_own(self, core: Core) -> None:
        lead, agent = root(core)
        (child,) = launch(agent, 'return await agent("x")')
        inner = core.agent(child)
        inner.begin()
        (grandchild,) = launch(inner, 'return await agent("y")')
        finish(core, grandchild, "deep")
        resumed = core.agent(child)
        resumed.begin()
        assert resumed.last_result()["result"] == "deep"
        resumed.finish("shallow")
        advance(core)
        assert result_of(core, lead)["result"] == "shallow"


class TestCapturedResults:
    def test_the_agent_has_the_schema_as_a_tool_and_its_report_ends_the_turn(self, core: Core) -> None:
        lead, agent = root(core)
        child = one_agent(agent)
        seen = core.agent(child)
        seen.begin()
        header = next(entry.header for entry in seen.history if entry.kind == "header")
        tool = header.tools[-1]
        assert (tool["name"], tool["parameters"]) == (capture.TOOL, SCHEMA)
        returned, boundary = report(seen, count=3)
        assert returned == {"status": "accepted"}
        assert (boundary.action, boundary.reason) == ("ended", "completed")
        assert result_of(core, lead)["result"] == {"count": 3}

    def test_a_wrong_report_is_refused_with_the_place_and_may_be_corrected(self, core: Core) -> None:
        lead, agent = root(core)
        seen = core.agent(one_agent(agent))
        refused, boundary = report(seen, count="three")
        assert code_of(refused) == "RESULT_INVALID"
        assert "$.count: 'three' is not of type 'integer'" in refused["error"]["message"]
        assert boundary.action == "step"
        assert report(seen, count=3)[1].action == "ended"
        assert result_of(core, lead)["result"] == {"count": 3}

    def test_an_end_without_a_report_gets_a_reminder(self, core: Core) -> None:
        lead, agent = root(core)
        seen = core.agent(one_agent(agent))
        boundary = seen.finish("I am done.")
        assert boundary.action == "step"
        shown = [entry for entry in boundary.history if entry.kind == "user"]
        assert capture.REMINDER in shown[-1].to_json()
        report(seen, count=1)
        assert result_of(core, lead)["result"] == {"count": 1}

    def test_three_failed_attempts_fail_the_item(self, core: Core) -> None:
        lead, agent = root(core)
        seen = core.agent(one_agent(agent))
        assert seen.finish("done").action == "step"
        assert report(seen, count="x")[1].action == "step"
        assert seen.finish("really done").action == "ended"
        advance(core)
        result = result_of(core, lead)
        assert result["result"] is None
        assert "no valid result in 3 attempts" in result["failures"][0]["error"]

    def test_wrong_reports_in_one_answer_count_each(self, core: Core) -> None:
        lead, agent = root(core)
        seen = core.agent(one_agent(agent))
        seen.ask(*[(capture.TOOL, {"count": "x"})] * 3)
        assert [code_of(decoded(seen.run_call(index))) for index in range(3)] == ["RESULT_INVALID"] * 3
        assert seen.boundary().reason == "error"
        advance(core)
        assert result_of(core, lead)["result"] is None

    @pytest.mark.parametrize("finish_reason", ["refusal", "max-tokens"])
    def test_a_refusing_or_cut_answer_is_no_reason_to_remind(self, core: Core, finish_reason: Any) -> None:
        lead, agent = root(core)
        seen = core.agent(one_agent(agent))
        assert seen.finish("no", finish=finish_reason).reason == finish_reason
        advance(core)
        assert result_of(core, lead)["failures"][0]["error"] == finish_reason

    def test_the_report_survives_the_loss_of_the_worker_behind_it(self, core: Core) -> None:
        lead, agent = root(core)
        child = one_agent(agent)
        seen = core.agent(child)
        assert seen.call(capture.TOOL, count=5) == {"status": "accepted"}
        core.lose_worker(child)
        assert core.agent(child).boundary().reason == "completed"
        advance(core)
        assert result_of(core, lead)["result"] == {"count": 5}

    def test_nobody_else_has_the_tool(self, core: Core) -> None:
        _lead, agent = root(core)
        assert code_of(agent.call(capture.TOOL, count=1)) == "TOOL_UNKNOWN"


class TestWhatOperatorsSee:
    def test_the_view_of_the_team_tells_phase_note_and_agents(self, make_core: MakeCore) -> None:
        core = make_core(max_workflow_width=2)
        lead, agent = root(core)
        parts = launch(agent, 'log("begin")\n' + FAN, args={"parts": 4})
        core.sessions.interrupt(parts[0], actor="tester")
        advance(core)
        (state,) = core.sessions.team(lead).workflows
        assert (state.name, state.phase, state.note, state.session_id) == ("test run", "fan", "begin", lead)
        assert (state.agents, state.running, state.waiting, state.failed) == (4, 2, 1, 1)
        view = core.sessions.view(lead)
        assert view.turn is not None
        assert [(wait.kind, wait.call_id) for wait in view.turn.waits] == [("workflow", state.call_id)]
        for part in parts[1:]:
            finish(core, part, "x")
        finish(core, items_of(core, lead)[4], "joined")
        assert core.sessions.team(lead).workflows == ()


class TestFailures:
    def test_misuse_fails_the_call_with_the_line_and_ends_the_agents(self, core: Core) -> None:
        lead, agent = root(core)
        script = 'a, b = agent("a"), agent("b")\nx = await a\nawait agent("c", effort=1)'
        one, two = launch(agent, script)
        finish(core, one, "x")
        assert core.run(two) is None
        message = failure_of(core, lead)
        assert "line 3: agent(): there is no option 'effort'" in message
        assert "1 of its 2 agents had ended" in message
        assert core.reading(delegations.ended_delegations) == []

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ({"name": "n", "script": "  "}, "TEAM_INVALID_ARGUMENT"),
            ({"name": "n", "script": "x" * 70_000}, "TEAM_INVALID_ARGUMENT"),
            ({"name": "n" * 65, "script": "1"}, "TEAM_INVALID_ARGUMENT"),
            ({"name": "n", "script": "1", "model": "big"}, "TEAM_INVALID_ARGUMENT"),
            ({"script": "1"}, "TEAM_INVALID_ARGUMENT"),
        ],
    )
    def test_a_call_that_cannot_begin_leaves_nothing(self, core: Core, arguments: Any, code: str) -> None:
        lead, agent = root(core)
        assert code_of(agent.call("workflow", **arguments)) == code
        assert events_of(core, lead) == []
        assert core.workflows.due() == []

    def test_an_operator_cannot_run_one(self, core: Core) -> None:
        assert core.refused(core.lead(), "workflow", name="n", script="return 1") == "TEAM_INVALID_ARGUMENT"

    def test_interrupting_the_caller_ends_the_workflow_and_its_agents(self, core: Core) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 3})
        finish(core, parts[0], "x")
        core.sessions.interrupt(lead, actor="tester")
        assert [core.run(part) for part in parts] == [None] * 3
        assert core.reading(lambda c: workflows.find_workflow(c, _key(core, lead))) is None
        assert core.workflows.due() == []
        core.prompt(lead, "go on")
        assert core.agent(lead).begin() == ["go on"]

    def test_closing_the_team_ends_it(self, core: Core) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 2})
        core.sessions.close(lead)
        assert [core.run(part) for part in parts] == [None] * 2
        assert core.workflows.due() == []


def _key(core: Core, session_id: str) -> workflows.WorkflowKey:
    statement = 'SELECT turn_id, step, "index" FROM call WHERE session_id = :s'
    row = core.reading(lambda c: c.execute(text(statement), {"s": session_id}).one())
    return workflows.WorkflowKey(*row)


class TestForksAndImports:
    def test_a_fork_copies_no_workflow_records(self, core: Core) -> None:
        lead, agent = root(core)
        launch(agent, "return 1")
        resumed = core.agent(lead)
        resumed.finish("done")
        fork = core.sessions.fork(lead, model=None, once=None)
        assert events_of(core, lead) != []
        assert events_of(core, fork.id) == []

    def test_an_event_of_a_workflow_needs_its_open_call(self, core: Core) -> None:
        lead, agent = root(core)
        launch(agent, "return 1")
        call_id = core.reading(lambda c: c.execute(text("SELECT call_id FROM call")).scalar_one())
        for data in (
            WorkflowEnded(call_id=call_id, outcome="ok"),
            WorkflowAsked(call_id="none", item=0, child_id=SessionId("x"), label="l", prompt="p"),
        ):
            with pytest.raises(TeamError, match="call"):
                core.append(lead, data)
