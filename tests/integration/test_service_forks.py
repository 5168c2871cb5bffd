"""Forked teammates: the Lead's finished turns, captured once, and an identity of their own."""

from team.model.content import ToolCallBlock
from team.model.ids import SessionId
from tests.support.core import Core


class TestFork:
    def lead_with_history(self, core: Core) -> SessionId:
        lead = core.lead("first")
        agent = core.agent(lead)
        agent.ask(("team_task_create", {"subject": "s", "description": "d"}), ("read", {"path": "f"}))
        agent.run_call(0)
        agent.local_result(1, "content of f")
        agent.begin()
        agent.finish("understood")
        core.prompt(lead, "second")
        return lead

    def test_a_fork_starts_with_the_leads_finished_turns_and_no_more(self, core: Core) -> None:
        lead = self.lead_with_history(core)
        agent = core.agent(lead)
        spawned = agent.call("spawn_teammate", name="bob", description="d", prompt="begin", context="fork")
        assert (spawned["member"]["provider"], spawned["member"]["context"]) == ("fork", "fork")
        bob = core.sessions.member_session(lead, "bob")
        seed = [event.type for event in core.log(bob)]
        assert seed == [
            "subagent/descriptor",
            "request/header",
            "user/message",
            "user/message",
            "assistant/message",
            "tool/call",
            "tool/call",
            "team/task",
            "tool/result",
            "tool/result",
            "assistant/message",
            "agent/inbox/inserted",
            "turn/start",
        ]
        theirs, ours = core.log(lead), core.log(bob)
        inherited = [event.data for event in theirs if event.type in set(seed[1:11])][:10]
        assert [event.data for event in ours[1:11]] == inherited

    def test_its_requests_begin_with_the_leads_bytes(self, core: Core) -> None:
        lead = self.lead_with_history(core)
        boss = core.agent(lead)
        boss.call("spawn_teammate", name="bob", description="d", prompt="begin", context="fork")
        mate = core.agent(core.sessions.member_session(lead, "bob"))
        mate.begin()
        mine = [entry.model_dump(exclude={"seq"}) for entry in boss.history]
        its = [entry.model_dump(exclude={"seq"}) for entry in mate.history]
        shared = 7
        assert its[:shared] == mine[:shared]
        assert [entry["kind"] for entry in its[shared:]] == ["user", "user"]
        assert its[shared]["source"]["kind"] == "runtime-context"
        assert "You are the teammate bob" in its[shared]["content"][0]["text"]
        assert "inherited" in its[shared]["content"][0]["text"]
        assert its[shared + 1]["content"][0]["text"] == "begin"

    def test_inherited_team_records_are_not_its_own(self, core: Core) -> None:
        lead = self.lead_with_history(core)
        bob = core.spawn(lead, "bob", context="fork")
        assert core.head(bob).last_task_number == 0
        assert [task["id"] for task in core.act(bob, "team_task_list")["tasks"]] == ["task-1"]

    def test_inherited_call_ids_are_never_used_again(self, core: Core) -> None:
        lead = self.lead_with_history(core)
        used = [event.data["callId"] for event in core.log(lead) if event.type == "tool/call"]
        agent = core.agent(core.spawn(lead, "bob", context="fork"))
        result = agent.answer(ToolCallBlock(call_id=used[0], name="read", arguments="{}"), finish="tool-calls")
        assert result.calls[0].call_id not in used
        agent.local_result()

    def test_a_fork_without_a_finished_turn_is_empty_but_still_a_fork(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.call("spawn_teammate", name="bob", description="d", prompt="begin", context="fork")
        bob = core.sessions.member_session(lead, "bob")
        assert core.types(bob) == ["subagent/descriptor", "agent/inbox/inserted", "turn/start"]
        assert core.member(lead, "bob")["provider"] == "fork"

    def test_it_is_captured_once(self, core: Core) -> None:
        lead = self.lead_with_history(core)
        bob = core.spawn(lead, "bob", context="fork")
        before = core.types(bob)
        core.agent(lead).finish("later")
        assert core.types(bob) == before
