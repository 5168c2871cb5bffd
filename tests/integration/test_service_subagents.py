"""Ordinary subagents: creation, addressing by agent_id, what each operation refuses."""

import json
from typing import Any

import pytest

from team.model.content import TextBlock
from team.model.events import InboxInserted
from team.model.ids import SessionId
from team.model.views import InterruptView, SendView, SubagentListView, SubagentResultView, SubagentView
from team.service.callers import Caller, Once, Recorded
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, code_of, codes, together, words_of
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


class TestAuthority:
    def test_only_the_direct_parent_addresses_a_subagent(self, core: Core) -> None:
        parent, agent = root(core)
        child, sibling = background(agent), background(agent)
        helper = core.agent(child)
        helper.begin()
        grandchild = background(helper)
        other, _ = root(core)
        for caller, target in [
            (parent, grandchild),
            (parent, parent),
            (child, sibling),
            (child, parent),
            (child, child),
            (other, child),
            (parent, "nobody"),
            (parent, "lead"),
        ]:
            for tool, more in (("send_message", {"message": "m"}), ("interrupt_agent", {})):
                assert core.refused(caller, tool, agent_id=target, **more) == "SUBAGENT_NOT_FOUND", (caller, target)
        assert core.act(child, "interrupt_agent", agent_id=grandchild) == {"previousStatus": "running"}

    def test_the_refused_id_is_shown_escaped_and_cut(self, core: Core) -> None:
        _, agent = root(core)
        result = agent.call("interrupt_agent", agent_id="x\n" * 200)
        assert "\\n" in result["error"]["message"]
        assert len(result["error"]["message"]) < 300

    def test_a_roster_member_is_no_subagent_of_its_lead(self, core: Core) -> None:
        parent = core.lead(profile="base")
        core.act(parent, "spawn_teammate", name="bob", description="d", prompt="p")
        bob = core.sessions.member_session(parent, "bob")
        assert core.act(parent, "list_agents") == []
        assert core.refused(parent, "send_message", agent_id=bob, message="m") == "SUBAGENT_NOT_FOUND"

    def test_a_one_shot_subagent_takes_no_messages(self, core: Core) -> None:
        parent, agent = root(core)
        child = foreground(agent)
        assert core.refused(parent, "send_message", agent_id=child, message="m") == "TEAM_INVALID_TARGET"
        assert core.head(child).pending == 1

    def test_an_empty_message_is_refused(self, core: Core) -> None:
        _, agent = root(core)
        child = background(agent)
        assert code_of(agent.call("send_message", agent_id=child, message=" ")) == "TEAM_INVALID_ARGUMENT"

    def test_a_full_inbox_takes_no_more(self, make_core: MakeCore) -> None:
        core = make_core(max_inbox=2)
        parent, agent = root(core)
        child = background(agent)
        core.act(parent, "send_message", agent_id=child, message="m")
        assert core.refused(parent, "send_message", agent_id=child, message="m") == "TEAM_INBOX_FULL"


class TestList:
    def test_rows_come_in_order_of_creation_and_without_ended_one_shot_children(self, core: Core) -> None:
        parent, agent = root(core)
        core.agent(foreground(agent, label="gone")).finish("x")
        agent = resumed(core, parent)
        one, two = background(agent, label="one"), background(agent, label="two")
        core.agent(one).finish("ready")
        agent.ask(("subagent", {"label": "now", "prompt": "p"}), ("list_agents", {}))
        agent.run_call(0)
        agent.run_call(1)
        rows = core.act(parent, "list_agents")
        assert [(row["label"], row["status"], row["mode"]) for row in rows] == [
            ("one", "inactive", "continuable"),
            ("two", "running", "continuable"),
            ("now", "running", "one-shot"),
        ]
        assert rows[0] == {
            "agentId": one,
            "label": "one",
            "status": "inactive",
            "mode": "continuable",
            "context": "fresh",
            "diagnostics": [],
        }
        assert rows[1]["agentId"] == two

    def test_queued_running_and_parked_are_all_running(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)

        def status() -> str:
            return str(core.act(parent, "list_agents")[0]["status"])

        found = [status()]
        helper = core.agent(child)
        helper.begin()
        found.append(status())
        grandchild = foreground(helper)
        found.append(status())
        core.agent(grandchild).finish("x")
        found.append(status())
        resumed(core, child).finish("y")
        assert [*found, status()] == ["running"] * 4 + ["inactive"]

    def test_a_bad_end_and_held_input_are_diagnosed(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        core.act(parent, "interrupt_agent", agent_id=child)
        (row,) = core.act(parent, "list_agents")
        assert row["diagnostics"] == [
            "last turn ended aborted: interrupted by its parent",
            "1 messages are held until the next message",
        ]

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE session SET header = '{}' WHERE id = :id",
            "UPDATE session SET head = '[]' WHERE id = :id",
            "UPDATE turn SET data = '[]' WHERE session_id = :id",
        ],
    )
    def test_an_unreadable_child_keeps_its_row_with_the_reason_and_hides_no_sibling(
        self, core: Core, damage: str
    ) -> None:
        parent, agent = root(core)
        broken, healthy = background(agent, label="broken"), background(agent, label="healthy")
        core.agent(healthy).finish("fine")
        core.may_be_damaged = True
        core.sql(damage, id=broken)
        rows = {row["agentId"]: row for row in core.act(parent, "list_agents")}
        assert rows[healthy]["status"] == "inactive"
        assert set(rows[broken]) == {"agentId", "diagnostics", "error"}
        assert len(rows[broken]["error"]) > 20
        assert core.act(parent, "send_message", agent_id=healthy, message="m")["status"] == "accepted"
        if "turn" not in damage:
            assert core.refused(parent, "send_message", agent_id=broken, message="m") == "LOG_DAMAGED"


class TestInterrupt:
    def test_it_ends_the_turn_and_the_next_message_resumes(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        helper = core.agent(child)
        helper.begin()
        assert agent.call("interrupt_agent", agent_id=child) == {"previousStatus": "running"}
        assert core.run(child) is None
        assert core.notices(parent) == []
        assert agent.call("interrupt_agent", agent_id=child) == {"previousStatus": "inactive"}
        agent.call("send_message", agent_id=child, message="go on")
        assert core.run(child) is not None

    def test_it_cascades_to_the_one_shot_children_of_that_turn_only(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        helper = core.agent(child)
        helper.begin()
        kept = background(helper, label="kept")
        below = core.agent(foreground(helper))
        below.begin()
        deepest = foreground(below)
        core.act(parent, "interrupt_agent", agent_id=child)
        assert [core.run(session) is None for session in (child, below.claim.session_id, deepest, kept)] == [
            True,
            True,
            True,
            False,
        ]
        ends = [event.data["reason"] for event in core.log(deepest) if event.type == "turn/end"]
        assert ends == ["aborted"]


class TestOutside:
    """Operators act as a Session by their token."""

    def test_an_operator_creates_a_background_subagent_once_per_key(self, core: Core) -> None:
        parent, _ = root(core)
        caller = Caller(parent, actor="tester", once=Once("tester", "key", "hash"))
        text = json.dumps({"label": "l", "prompt": "p", "background": True})
        first, second = (core.tools.execute(caller, "subagent", text) for _ in range(2))
        assert isinstance(first, SubagentView)
        assert first == second
        assert children_of(core, parent) == [first.agent_id]

    def test_an_operator_cannot_wait_for_one(self, core: Core) -> None:
        parent, _ = root(core)
        assert core.refused(parent, "subagent", label="l", prompt="p") == "TEAM_INVALID_ARGUMENT"
        assert children_of(core, parent) == []

    def test_every_result_is_of_its_declared_type(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        caller = Caller(SessionId(parent), actor="tester")

        def run(tool: str, **arguments: Any) -> object:
            return core.tools.execute(caller, tool, json.dumps(arguments))

        assert isinstance(run("list_agents"), SubagentListView)
        assert isinstance(run("send_message", agent_id=child, message="m"), SendView)
        assert isinstance(run("interrupt_agent", agent_id=child), InterruptView)
        core.agent(foreground(agent)).finish("x")
        result = resumed(core, parent).history[-1]
        assert result.kind == "tool-result"
        assert SubagentResultView.model_validate_json(result.content).to_json() == result.content

    def test_calls_of_a_turn_commit_compact_json_of_their_view(self, core: Core) -> None:
        _, agent = root(core)
        agent.ask(("subagent", {"label": "l", "prompt": "p", "background": True}))
        done = agent.run_call()
        assert done.entry is not None
        assert done.entry.kind == "tool-result"
        assert SubagentView.model_validate_json(done.entry.content).to_json() == done.entry.content
        agent.begin()
        agent.ask(("list_agents", {}))
        listed = agent.run_call().entry
        assert listed is not None
        assert listed.kind == "tool-result"
        assert SubagentListView.model_validate_json(listed.content).to_json() == listed.content

    def test_messages_sent_at_once_all_arrive_in_one_order(self, core: Core) -> None:
        parent, agent = root(core)
        child = background(agent)
        sends = [lambda n=n: core.act(parent, "send_message", agent_id=child, message=f"m{n}") for n in range(6)]
        assert codes(together(*sends)) == ["ok"] * 6
        claimed = core.agent(child).begin()
        assert claimed[0] == "help"
        assert sorted(claimed[1:]) == [f"m{n}" for n in range(6)]
        assert [words_of(message.content) for message in core.messages(child)] == claimed

    def test_recorded_results_are_not_run_again(self, core: Core) -> None:
        _, agent = root(core)
        agent.ask(("subagent", {"label": "l", "prompt": "p", "background": True}))
        first = agent.run_call()
        count = core.count()
        assert agent.run_call() == first
        assert core.count() == count
        assert not isinstance(first, Recorded)
