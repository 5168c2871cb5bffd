"""Ordinary subagents: creation, addressing by agent_id, what each operation refuses."""

import json
from typing import Any

import pytest

from team.model.content import TextBlock
from team.model.events import InboxInserted
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, code_of, together
from tests.support.subagents import background, children_of, descriptor, foreground, resumed, root


def history_text(agent: Agent) -> str:
    return " ".join(entry.to_json() for entry in agent.history)


class TestForeground:
    def test_the_call_parks_its_turn_and_returns_the_last_text_of_the_child(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent, label="reader", prompt="read it")
        run = core.run(parent)
        assert run is not None
        assert (run.state, run.worker) == ("parked", None)
        helper = core.agent(child)
        assert helper.begin() == ["read it"]
        helper.finish("it says 42")
        assert resumed(core, parent).last_result() == {"label": "reader", "text": "it says 42"}
        assert core.run(child) is None

    def test_the_log_of_a_child_begins_with_what_it_is_and_what_it_was_asked(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent, label="reader", prompt="read it", tools=["read", "grep"])
        assert core.types(child)[:3] == ["subagent/descriptor", "agent/inbox/inserted", "turn/start"]
        described = descriptor(core, child)
        assert (described.mode, described.provider, described.label) == ("one-shot", "fresh", "reader")
        assert described.tool_filter == ("read", "grep")
        inserted = core.log(child)[1].decoded()
        assert isinstance(inserted, InboxInserted)
        assert inserted.source.kind == "delegation"
        assert inserted.source.sender_id == parent

    def test_the_calls_of_one_answer_run_at_the_same_time_and_resume_the_parent_once(self, core: Core) -> None:
        parent, agent = root(core)
        agent.ask(*(("subagent", {"label": f"n{n}", "prompt": f"p{n}"}) for n in range(3)))
        assert [agent.run_call(index).state for index in range(3)] == ["waiting"] * 3
        assert agent.boundary().action == "parked"
        first, second, third = children_of(core, parent)
        helpers = [core.agent(child) for child in (third, first, second)]
        for helper in helpers:
            helper.begin()
        for place, helper in enumerate(helpers):
            run = core.run(parent)
            assert run is not None
            assert run.state == "parked", place
            helper.finish(f"done by {helper.claim.session_id}")
        again = resumed(core, parent)
        results = [entry for entry in again.history if entry.kind == "tool-result"]
        texts = {entry.index: json.loads(entry.content)["text"] for entry in results}
        assert texts == {index: f"done by {child}" for index, child in enumerate((first, second, third))}
        assert core.types(parent).count("turn/parked") == 1

    def test_a_child_that_ends_before_its_parent_parks_is_not_missed(self, core: Core) -> None:
        parent, agent = root(core)
        assert agent.call("subagent", label="quick", prompt="p") is None
        core.agent(children_of(core, parent)[0]).finish("quick")
        assert agent.boundary().action == "step"
        assert agent.last_result() == {"label": "quick", "text": "quick"}

    def test_a_repeated_call_joins_the_child_that_it_created(self, core: Core) -> None:
        parent, agent = root(core)
        agent.ask(("subagent", {"label": "l", "prompt": "p"}))
        assert {result.state for result in together(*[agent.run_call] * 4)} == {"waiting"}
        core.agent(children_of(core, parent)[0]).finish("once")
        first, second = agent.run_call(), agent.run_call()
        assert first == second
        assert len(children_of(core, parent)) == core.types(parent).count("tool/result") == 1

    def test_a_long_last_text_is_cut_at_the_output_limit(self, make_core: MakeCore) -> None:
        core = make_core(output_bytes=1_000)
        parent, agent = root(core)
        core.agent(foreground(agent)).finish("ä" * 2_000)
        said = resumed(core, parent).last_result()["text"]
        assert said == "ä" * 500 + " [cut]"


class TestBackground:
    def test_the_call_returns_an_agent_id_at_once(self, core: Core) -> None:
        parent, agent = root(core)
        result = agent.call("subagent", label="scout", prompt="look", background=True)
        assert result == {"agentId": children_of(core, parent)[0], "status": "running"}
        assert descriptor(core, result["agentId"]).mode == "continuable"

    def test_the_end_of_its_turn_is_told_by_a_notice_behind_what_came_before(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent, label="scout")
        agent.finish("started it")
        core.prompt(parent, "earlier", steer=True)
        core.agent(child).finish("found it")
        claimed = core.agent(parent).begin()
        assert claimed == [
            "earlier",
            (
                f"[Notice: the turn of the subagent scout (agent_id {child}) ended: completed.]\n"
                "Its last text is the next 8 bytes, to the end of this message:\nfound it"
            ),
        ]

    @pytest.mark.parametrize("settlement", ["silent", "always", "off"])
    def test_the_notice_does_not_depend_on_the_setting_for_members(self, make_core: MakeCore, settlement: str) -> None:
        core = make_core(settlement=settlement)
        parent, agent = root(core)
        child = background(agent)
        core.agent(child).finish("x")
        assert len(core.notices(parent)) == 1

    def test_a_message_opens_its_next_turn_and_that_ends_with_a_notice_too(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        core.agent(child).finish("one")
        result = agent.call("send_message", agent_id=child, message="and more")
        assert result["status"] == "accepted"
        helper = core.agent(child)
        assert helper.begin() == ["and more"]
        helper.finish("two")
        assert [notice.splitlines()[-1] for notice in core.notices(parent)] == ["one", "two"]

    def test_a_message_to_a_running_one_steers_it(self, core: Core) -> None:
        _, agent = root(core)
        child = background(agent)
        helper = core.agent(child)
        helper.begin()
        agent.call("send_message", agent_id=child, message="hurry")
        helper.answer(TextBlock(text="x"))
        assert helper.begin() == ["hurry"]

    def test_a_repeated_call_joins_the_child_that_it_created(self, core: Core) -> None:
        parent, agent = root(core)
        agent.ask(("subagent", {"label": "l", "prompt": "p", "background": True}))
        results = together(*[agent.run_call] * 3)
        assert len({result.to_json() for result in results}) == 1
        assert len(children_of(core, parent)) == 1

    def test_a_one_shot_agent_can_create_none(self, core: Core) -> None:
        _, agent = root(core)
        helper = core.agent(foreground(agent))
        helper.begin()
        result = helper.call("subagent", label="l", prompt="p", background=True)
        assert code_of(result) == "TEAM_INVALID_ARGUMENT"
        assert "one turn only" in result["error"]["message"]


class TestFork:
    def test_a_fork_inherits_completed_turns_and_not_the_current_one(self, core: Core) -> None:
        parent, agent = root(core, "the first prompt")
        agent.finish("the first answer")
        core.prompt(parent, "the second prompt")
        agent = core.agent(parent)
        agent.begin()
        assert agent.call("subagent_fork", label="twin", prompt="go on") is None
        (child,) = children_of(core, parent)
        helper = core.agent(child)
        assert helper.begin() == ["go on"]
        shown = history_text(helper)
        assert "the first prompt" in shown
        assert "the first answer" in shown
        assert "the second prompt" not in shown
        assert "You are the subagent twin" in shown
        assert descriptor(core, child).provider == "fork"

    def test_a_fresh_child_knows_nothing_of_its_parent(self, core: Core) -> None:
        parent, agent = root(core, "the first prompt")
        agent.finish("the first answer")
        core.prompt(parent, "again")
        agent = core.agent(parent)
        agent.begin()
        helper = core.agent(foreground(agent))
        helper.begin()
        assert "the first" not in history_text(helper)


class TestProfile:
    def test_a_child_runs_under_base_whatever_its_parent_runs_under(self, make_core: MakeCore, tmp_path: Any) -> None:
        (tmp_path / "own.toml").write_text(
            'description = "d"\ntools = ["read", "subagent"]\nprompt = ["p"]\nmodel = "script:own"\n'
        )
        core = make_core(profile_dir=tmp_path)
        parent = core.lead("go", profile="own")
        agent = core.agent(parent)
        agent.begin()
        child = foreground(agent)
        assert core.sessions.view(child).profile == "base"
        assert core.sessions.view(child).model == "script:own"
        assert core.agent(child).claim.model == "script:own"

    def test_a_child_has_the_tools_that_it_was_left(self, core: Core) -> None:
        _, agent = root(core)
        child = foreground(agent, tools=["read", "subagent", "list_agents"])
        helper = core.agent(child)
        assert helper.claim.local_tools == ("read",)
        helper.begin()
        (header,) = [entry.header for entry in helper.history if entry.kind == "header"]
        assert [tool["name"] for tool in header.tools] == ["read", "subagent", "list_agents"]
        assert code_of(helper.call("send_message", agent_id="x", message="m")) == "TOOL_UNKNOWN"

    def test_it_cannot_leave_its_own_children_more_than_it_has(self, core: Core) -> None:
        _, agent = root(core)
        helper = core.agent(foreground(agent, tools=["read", "subagent"]))
        helper.begin()
        assert descriptor(core, foreground(helper, tools=["read", "bash"])).tool_filter == ("read",)
        again = core.agent(foreground(agent_of_other_root(core), tools=["subagent", "grep"]))
        again.begin()
        assert descriptor(core, foreground(again)).tool_filter == ("subagent", "grep")

    def test_a_tool_that_no_subagent_has_is_refused_by_name(self, core: Core) -> None:
        parent, agent = root(core)
        result = agent.call("subagent", label="l", prompt="p", tools=["spawn_teammate"])
        assert code_of(result) == "TEAM_INVALID_ARGUMENT"
        assert "spawn_teammate" in result["error"]["message"]
        assert children_of(core, parent) == []

    def test_a_subagent_is_no_member_and_raises_no_edge(self, core: Core) -> None:
        parent, agent = root(core)
        before = core.teams.edge_counter(core.head_team(parent))
        child = foreground(agent)
        helper = core.agent(child)
        helper.begin()
        assert core.teams.edge_counter(core.head_team(parent)) == before
        assert core.sessions.team(parent).members[0].session_id == parent
        assert len(core.sessions.team(parent).members) == 1
        assert core.refused(child, "team_task_list") == "TEAM_NOT_MEMBER"
        assert core.refused(child, "wait_agent") == "TEAM_NOT_MEMBER"

    def test_a_team_session_is_offered_no_subagent_tool_at_execution_either(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.begin()
        assert code_of(agent.call("subagent", label="l", prompt="p")) == "TOOL_UNKNOWN"
        assert core.refused(lead, "subagent", label="l", prompt="p") == "TOOL_UNKNOWN"
        assert core.refused(lead, "send_message", agent_id=lead, message="m") == "TEAM_INVALID_ARGUMENT"


def agent_of_other_root(core: Core) -> Agent:
    return root(core)[1]


class TestDepth:
    def test_a_child_at_the_limit_is_told_so(self, make_core: MakeCore) -> None:
        core = make_core(max_depth=2)
        _, agent = root(core)
        for _ in range(2):
            agent = core.agent(foreground(agent))
            agent.begin()
        result = agent.call("subagent", label="l", prompt="p")
        assert code_of(result) == "SUBAGENT_DEPTH"
        assert "2 levels below" in result["error"]["message"]
        assert children_of(core, agent.claim.session_id) == []

    def test_results_climb_through_all_levels(self, make_core: MakeCore) -> None:
        core = make_core(max_depth=3)
        parent, agent = root(core)
        chain = [agent]
        for level in range(3):
            chain.append(core.agent(foreground(chain[-1], label=f"level-{level}")))
            chain[-1].begin()
        chain[-1].finish("deep")
        for agent in reversed(chain[1:-1]):
            resumed(core, agent.claim.session_id).finish(f"above {agent.claim.session_id}")
        assert resumed(core, parent).last_result()["text"] == f"above {chain[1].claim.session_id}"


class TestArguments:
    @pytest.mark.parametrize("label", ["", " ", "x" * 65, "two\nlines", "tab\there"])
    def test_a_label_is_one_short_line(self, core: Core, label: str) -> None:
        parent, agent = root(core)
        assert code_of(agent.call("subagent", label=label, prompt="p")) == "TEAM_INVALID_ARGUMENT"
        assert children_of(core, parent) == []

    @pytest.mark.parametrize("prompt", ["", " \n"])
    def test_a_prompt_needs_text(self, core: Core, prompt: str) -> None:
        _, agent = root(core)
        assert code_of(agent.call("subagent", label="l", prompt=prompt)) == "TEAM_INVALID_ARGUMENT"

    def test_a_prompt_has_a_limit_in_bytes(self, make_core: MakeCore) -> None:
        core = make_core(max_message_bytes=256)
        _, agent = root(core)
        assert code_of(agent.call("subagent", label="l", prompt="ä" * 129)) == "TEAM_MESSAGE_TOO_LARGE"
        assert agent.call("subagent", label="l", prompt="ä" * 128) is None

    def test_a_closed_tree_takes_none(self, core: Core) -> None:
        parent = core.lead(profile="base")
        core.sessions.close(parent)
        assert core.refused(parent, "subagent", label="l", prompt="p", background=True) == "TEAM_DISPOSED"
