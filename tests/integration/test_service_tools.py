"""What models see: declared results, no Session ids, one prefix for every member, status words."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from team.model.content import ToolCallBlock
from team.model.events import SessionModel
from team.model.history import HeaderEntry, ToolResultEntry, UserEntry
from team.model.views import (
    InterruptView,
    RosterView,
    SendView,
    SpawnView,
    TaskListView,
    TaskView,
    WaitView,
)
from tests.integration.conftest import MakeCore
from tests.support.core import Core, code_of, words_of

RESULTS: dict[str, type[BaseModel]] = {
    "spawn_teammate": SpawnView,
    "send_message": SendView,
    "list_agents": RosterView,
    "wait_agent": WaitView,
    "interrupt_agent": InterruptView,
    "team_task_create": TaskView,
    "team_task_list": TaskListView,
    "team_task_get": TaskView,
    "team_task_update": TaskView,
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("spawn_teammate", {"name": "carol", "description": "d \N{GRINNING FACE}", "prompt": "p"}),
    ("send_message", {"target": "bob", "message": "m"}),
    ("list_agents", {}),
    ("team_task_create", {"subject": "__proto__", "description": "", "write_scopes": ["a", "b"]}),
    ("team_task_create", {"subject": "s", "description": "d", "blocked_by": ["task-1"], "write_scopes": ["a/x"]}),
    ("team_task_update", {"task_id": "task-1", "expected_revision": 1, "action": "reassign", "owner": "bob"}),
    ("team_task_list", {}),
    ("team_task_list", {"limit": 1}),
    ("team_task_get", {"task_id": "task-1"}),
    ("interrupt_agent", {"target": "carol"}),
    ("list_agents", {}),
]


class TestResults:
    def test_each_is_the_declared_model_in_compact_json(self, core: Core) -> None:
        lead = core.lead("go")
        core.idle(lead, "bob")
        agent = core.agent(lead)
        agent.ask(*CALLS)
        for index, (tool, _) in enumerate(CALLS):
            result = agent.run_call(index)
            assert isinstance(result.entry, ToolResultEntry)
            text = result.entry.content
            assert result.entry.outcome == "ok", text
            view = RESULTS[tool].model_validate_json(text)
            assert view.model_dump_json(by_alias=True, exclude_none=True) == text
            assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
        agent.boundary()

    def test_those_of_waits_are_too(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.spawn(lead, "bob")
        agent, mate = core.agent(lead), core.agent(bob)
        agent.begin()
        mate.begin()
        assert (agent.wait(), mate.wait()) == ("parked", "step")
        core.pass_deadlines()
        agent = core.agent(lead)
        agent.begin()
        texts = [entry.content for a in (agent, mate) for entry in a.history if isinstance(entry, ToolResultEntry)]
        assert len(texts) == 2
        for text in texts:
            assert WaitView.model_validate_json(text).to_json() == text

    def test_no_result_shows_a_session_id_a_worker_or_a_turn(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.idle(lead, "bob")
        agent = core.agent(lead, "worker-seven")
        agent.ask(*CALLS, ("send_message", {"target": "nobody", "message": "m"}))
        for index in range(len(CALLS) + 1):
            agent.run_call(index)
        carol = core.sessions.member_session(lead, "carol")
        shown = "\n".join(event.data["content"] for event in core.log(lead) if event.type == "tool/result")
        turn = agent.ref.turn_id
        for secret in (lead, bob, carol, turn, "worker-seven", agent.ref.token):
            assert secret not in shown

    def test_u05_a_result_holds_plain_words(self, core: Core) -> None:
        lead = core.lead()
        core.act(lead, "team_task_create", subject="s", description="d")
        core.act(lead, "team_task_update", task_id="task-1", expected_revision=1, action="complete")
        assert core.task(lead, "task-1")["status"] == "completed"
        again = core.refused(lead, "team_task_update", task_id="task-1", expected_revision=2, action="complete")
        assert again == "TEAM_TASK_INVALID_TRANSITION"
        unknown = core.refused(lead, "team_task_update", task_id="task-2", expected_revision=1, action="complete")
        assert unknown == "TEAM_TASK_NOT_FOUND"

    def test_an_error_result_is_code_and_message(self, core: Core) -> None:
        agent = core.agent(core.lead("go"))
        result = agent.call("send_message", target="bob", message="m")
        assert set(result) == {"error"}
        assert set(result["error"]) == {"code", "message"}

    @pytest.mark.parametrize(
        ("tool", "text"),
        [
            ("send_message", '{"target":"lead","message":"a\\u0000b"}'),
            ("team_task_create", '{"subject":"\\ud83d","description":"d"}'),
            ("list_agents", "[" * 100),
            ("list_agents", '{"__proto__":{"isAdmin":true}}'),
            ("wait_agent", "not json"),
            ("send_message", '{"target":"bob","target":"lead","message":"m"}'),
        ],
    )
    def test_s05_s06_arguments_that_cannot_be_stored_are_an_error_result_and_the_turn_goes_on(
        self, core: Core, tool: str, text: str
    ) -> None:

        agent = core.agent(core.lead("go"))
        agent.answer(ToolCallBlock(call_id="c", name=tool, arguments=text), finish="tool-calls")
        result = agent.run_call()
        assert isinstance(result.entry, ToolResultEntry)
        assert code_of(json.loads(result.entry.content)) == "TEAM_INVALID_ARGUMENT"
        assert agent.finish().action == "ended"


class TestPrefix:
    def test_header_and_tools_are_the_same_bytes_for_every_member(self, core: Core) -> None:
        lead = core.lead("go")
        agents = [core.agent(lead), core.agent(core.spawn(lead, "bob")), core.agent(core.spawn(lead, "carol"))]
        headers: set[str] = set()
        for agent in agents:
            agent.begin()
            headers |= {entry.header.to_json() for entry in agent.history if isinstance(entry, HeaderEntry)}
        assert len(headers) == 1
        header = headers.pop()
        for name in ("bob", "carol", lead):
            assert name not in header

    def test_who_a_member_is_stands_in_a_logged_message(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "bob")
        for session_id, words in (
            (lead, "You are the Lead of this Team"),
            (core.sessions.member_session(lead, "bob"), "You are the teammate bob: does bob\nYour Lead is lead."),
        ):
            agent = core.agent(session_id)
            agent.begin()
            identity = next(entry for entry in agent.history if isinstance(entry, UserEntry))
            assert identity.source.kind == "runtime-context"
            assert words in words_of(identity.content)
            assert str(core.workspace) in words_of(identity.content)

    def test_a_session_of_the_base_profile_is_told_of_no_team(self, core: Core) -> None:
        agent = core.agent(core.lead("go", profile="base"))
        agent.begin()
        identity = next(entry for entry in agent.history if isinstance(entry, UserEntry))
        assert "Team" not in words_of(identity.content)

    def test_each_step_only_extends_what_was_shown_before(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.call("list_agents")
        agent.begin()
        core.prompt(lead, "steer", steer=True)
        agent.ask(("read", {"path": "f"}))
        agent.local_result()
        agent.begin()
        core.lose_worker(lead)
        cold = core.agent(lead, "w2").claim.history
        assert list(cold) == agent.history

    def test_another_model_is_a_new_header_once(self, core: Core) -> None:

        lead = core.lead("one")
        core.agent(lead).finish()
        core.append(lead, SessionModel(model="openai-chat:other"))
        for _ in range(2):
            core.prompt(lead, "again")
            core.agent(lead).finish()
        headers = [event.data["model"] for event in core.log(lead) if event.type == "request/header"]
        assert headers == ["script:unused", "openai-chat:other"]


class TestAvailability:
    def status(self, core: Core, lead: str, name: str) -> str:
        return str(core.member(lead, name)["status"])

    def test_w13_an_open_turn_is_running_whatever_it_waits_for(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "carol")
        bob = core.spawn(lead, "bob")
        assert self.status(core, lead, "bob") == "running"
        agent = core.agent(bob)
        assert self.status(core, lead, "bob") == "running"
        agent.begin()
        assert agent.wait() == "parked"
        assert self.status(core, lead, "bob") == "running"
        core.wake(lead)
        core.pass_deadlines()
        core.agent(bob).finish()
        assert self.status(core, lead, "bob") == "inactive"

    def test_interruption_tools_and_wire_agree(self, make_core: MakeCore) -> None:
        core = make_core(settlement="off")
        lead = core.lead()
        core.idle(lead, "bob")
        core.spawn(lead, "carol")
        core.reserve_only(lead, "dave")
        core.reserve_only(lead, "erin")
        core.recovery.settle_creation(core.head_team(lead), "erin")
        expected = {
            "lead": "inactive",
            "bob": "inactive",
            "carol": "running",
            "dave": "provisioning",
            "erin": "failed",
        }
        assert {member["target"]: member["status"] for member in core.act(lead, "list_agents")} == expected
        assert {member.target: member.status for member in core.sessions.team(lead).members} == expected
        previous = {
            name: core.act(lead, "interrupt_agent", target=name)["previousStatus"]
            for name in expected
            if name != "lead"
        }
        assert previous == {name: status for name, status in expected.items() if name != "lead"}

    def test_members_come_in_order_of_creation_with_the_lead_first(self, core: Core) -> None:
        lead = core.lead()
        for name in ("zoe", "bob", "mia"):
            core.spawn(lead, name)
        core.agent(core.sessions.member_session(lead, "zoe")).finish()
        assert [member["target"] for member in core.act(lead, "list_agents")] == ["lead", "zoe", "bob", "mia"]

    def test_operators_see_the_finer_state(self, core: Core) -> None:
        lead = core.lead("go")
        core.spawn(lead, "carol")
        bob = core.spawn(lead, "bob")

        def state() -> Any:
            turn = core.sessions.view(bob).turn
            assert turn is not None
            return turn

        assert (state().state, state().worker) == ("queued", None)
        agent = core.agent(bob, "w7")
        assert (state().state, state().worker, state().epoch) == ("running", "w7", 1)
        agent.begin()
        agent.wait(10_000)
        parked = state()
        assert (parked.state, [wait.kind for wait in parked.waits]) == ("parked", ["wait-agent"])
        assert core.sessions.view(bob).workers == ("w7",)
        core.sessions.interrupt(bob, actor="me")
        view = core.sessions.view(bob)
        assert view.last_end is not None
        assert (view.turn, view.last_end.reason, view.held) == (None, "aborted", True)

    def test_held_messages_are_in_the_diagnostics(self, core: Core) -> None:
        lead = core.lead()
        core.spawn(lead, "bob")
        core.act(lead, "interrupt_agent", target="bob")
        assert "1 messages are held until the next message" in core.member(lead, "bob")["diagnostics"]
