"""Ordinary subagents: who may address which, what a list shows, how an interrupt reaches down, calls from outside."""

import json
from typing import Any

import pytest

from team.model.ids import SessionId
from team.model.views import InterruptView, SendView, SubagentListView, SubagentResultView, SubagentView
from team.service.callers import Caller, Once, Recorded
from tests.integration.conftest import MakeCore
from tests.support.core import Core, code_of, codes, together, words_of
from tests.support.subagents import background, children_of, foreground, resumed, root


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
