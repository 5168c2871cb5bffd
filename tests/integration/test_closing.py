"""Closing a Team with work in flight, interrupting a turn in every place, and logs that were written elsewhere."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from team.model.claims import HeartbeatRequest, Held
from team.model.content import TextBlock
from team.model.errors import DisposalTimeout, TurnFenced
from team.model.events import SubagentDescribed, ToolReturned
from team.model.ids import SessionId
from team.rules.queue import begin
from tests.integration.conftest import MakeCore
from tests.integration.test_service_provisioning import child, phases, prompted
from tests.support.core import Agent, Core, codes, together
from tests.support.transfers import export, import_


def confirm(core: Core, agent: Agent) -> None:
    """The worker of an ended claim says that its processes are gone."""
    held = Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch)
    core.turns.heartbeat(HeartbeatRequest(worker="w1", claims=(), stopped=(held,), slots=1))


class TestClose:
    def test_creations_and_sends_in_flight_are_done_or_refused_and_nothing_runs_on(self, core: Core) -> None:
        seen: set[str] = set()
        for _ in range(6):
            lead = core.lead()
            bob = core.idle(lead, "bob")
            core.agent(lead).finish("heard it")
            outcomes = codes(
                together(
                    lambda s=lead: core.act(s, "spawn_teammate", name="carol", description="d", prompt="p"),
                    lambda s=lead: core.act(s, "send_message", target="bob", message="m"),
                    lambda s=lead: core.sessions.close(s),
                    lambda s=bob: core.act(s, "send_message", target="lead", message="m"),
                )
            )
            seen |= set(outcomes)
            assert outcomes[2] == "ok"
            assert phases(core, lead, "carol")[1:] in ([], ["active"], ["failed"])
            view = core.sessions.team(lead)
            assert view.closed
            assert [member.target for member in view.members if member.turn is not None] == []
            assert [member.target for member in view.members if member.phase == "provisioning"] == []
            accepted = [outcome == "ok" for outcome in (outcomes[1], outcomes[3])]
            assert [core.head(session).pending for session in (bob, lead)] == [int(took) for took in accepted]
        assert seen <= {"ok", "TEAM_DISPOSED", "TEAM_PROVISIONING_CONFLICT"}

    def test_a_failed_member_whose_worker_still_runs_is_waited_for_and_named(self, make_core: MakeCore) -> None:
        core = make_core(disposal_seconds=0.2)
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        described = SubagentDescribed(mode="continuable", provider="fork", label="bob")
        child(core, bob, lead, described, prompted(lead))

        def open_turn(tx: Any) -> None:
            tx.lock_team(core.head_team(lead))
            tx.lock_sessions(SessionId(bob))
            begin(tx, SessionId(bob), "it was imported")

        core.store.writing(open_turn)
        agent = core.agent(bob)
        assert core.recovery.settle_creation(core.head_team(lead), "bob")
        with pytest.raises(DisposalTimeout, match=bob):
            core.sessions.close(lead)
        confirm(core, agent)
        assert core.sessions.close(lead).interrupted == ()

    def test_every_child_of_the_roster_stops_and_one_that_does_not_is_the_only_one_named(
        self, make_core: MakeCore
    ) -> None:
        core = make_core(disposal_seconds=0.2)
        lead = core.lead()
        agents = {name: core.agent(core.spawn(lead, name)) for name in ("bob", "carol", "dave")}
        core.sql("UPDATE run SET lease_until = lease_until + 1000")
        with pytest.raises(DisposalTimeout) as stopped:
            core.sessions.close(lead)
        for agent in agents.values():
            assert agent.claim.session_id in stopped.value.message
        for name in ("bob", "dave"):
            confirm(core, agents[name])
        with pytest.raises(DisposalTimeout) as stopped:
            core.sessions.close(lead)
        assert agents["carol"].claim.session_id in stopped.value.message
        assert agents["bob"].claim.session_id not in stopped.value.message
        assert core.notices(lead) == [], "who closes a Team knows that its turns ended"


PLACES: dict[str, tuple[Callable[[Agent], object], Callable[[Agent], object]]] = {
    "asking the model": (lambda agent: agent.begin(), lambda agent: agent.answer(TextBlock(text="late"))),
    "running bash": (lambda agent: agent.ask(("bash", {"command": "x"})), lambda agent: agent.local_result()),
    "calling the coordinator": (
        lambda agent: agent.ask(("send_message", {"target": "lead", "message": "late"})),
        lambda agent: agent.run_call(),
    ),
    "between two steps": (
        lambda agent: (agent.ask(("read", {"path": "f"})), agent.local_result()),
        lambda agent: agent.boundary(),
    ),
}


class TestInterrupt:
    @pytest.mark.parametrize("place", PLACES)
    def test_a_turn_that_executes_ends_and_what_it_does_late_is_refused(self, core: Core, place: str) -> None:
        before, late = PLACES[place]
        lead = core.lead()
        agent = core.agent(core.spawn(lead, "bob", "start"))
        core.act(lead, "team_task_create", subject="s", description="d")
        core.act(agent.claim.session_id, "team_task_update", task_id="task-1", expected_revision=1, action="claim")
        before(agent)
        core.act(lead, "send_message", target="bob", message="unread")
        assert core.act(lead, "interrupt_agent", target="bob") == {"previousStatus": "running"}
        count = core.count()
        with pytest.raises(TurnFenced):
            late(agent)
        assert core.count() == count
        log = [event.decoded() for event in core.log(agent.claim.session_id)]
        open_calls = {"running bash": ["unknown"], "calling the coordinator": ["unknown"], "between two steps": ["ok"]}
        assert [data.outcome for data in log if isinstance(data, ToolReturned)] == open_calls.get(place, [])
        assert core.task(lead, "task-1")["ownerName"] == "bob"
        assert core.head(agent.claim.session_id).pending == 1, "what was claimed is not put back"
        confirm(core, agent)
        core.act(lead, "send_message", target="bob", message="go on")
        texts = core.agent(agent.claim.session_id).begin()
        assert [text.rsplit("\n", 1)[-1] for text in texts] == ["unread", "go on"]


ELSEWHERE = r"""
{"session":{"version":1,"id":"elsewhere-1","createdAt":"2020-01-01T00:00:00.000Z","profile":"team","cwd":"/srv/x","depth":0,"rootId":"elsewhere-1","seedThrough":0}}

{"sessionId":"elsewhere-1","seq":1,"time":"2020-01-01T00:00:01.000Z","type":"team/member","data":{"version":1,"teamId":"an-ancestor","member":{"id":"a","name":"old","description":"","provider":"fresh","context":"fresh","phase":"active"}}}
{"sessionId":"elsewhere-1","seq":2,"time":"2020-01-01T00:00:02.000Z","type":"team/message/queued","data":{"version":1,"teamId":"elsewhere-1","messageId":"m-1","senderId":"elsewhere-1","senderName":"lead","targetId":"gone","delivery":"quiet","content":[{"type":"acme/card","__proto__":{"a":[1,null]},"z":1,"a":2},{"type":"text","text":"hello"}]}}
{"sessionId":"elsewhere-1","seq":3,"time":"2019-01-01T00:00:00.000Z","type":"team/message/delivered","data":{"version":1,"teamId":"elsewhere-1","messageId":"m-1","targetId":"gone"}}
{"sessionId":"elsewhere-1","seq":4,"time":"2020-01-01T00:00:03.000Z","type":"agent/inbox/inserted","data":{"messageId":"m-2","delivery":"turn","content":[{"type":"acme/image","uri":"x"},{"type":"text","text":"look"}],"source":{"kind":"human"}}}
"""


class TestElsewhere:
    def test_a_log_that_was_written_elsewhere_imports_goes_on_and_delivers_no_historical_mail(self, core: Core) -> None:
        assert import_(core, ELSEWHERE.splitlines(keepends=True)) == [SessionId("elsewhere-1")]
        assert core.sessions.doctor().ok
        assert [member["target"] for member in core.act("elsewhere-1", "list_agents")] == ["lead"]
        events, faults, _ = core.sessions.events("elsewhere-1", 0, 3)
        assert faults == []
        wanted = [json.loads(line)["data"] for line in ELSEWHERE.splitlines()[3:6]]
        assert [event.data for event in events] == wanted
        assert list(events[1].data["content"][0]) == ["type", "__proto__", "z", "a"]
        agent = core.agent("elsewhere-1")
        assert agent.begin() == ["look"]
        shown = json.dumps([entry.model_dump(mode="json") for entry in agent.history])
        assert "acme/image" in shown
        assert "hello" not in shown
        assert core.types("elsewhere-1").count("user/message") == 2
        assert json.loads(export(core, "elsewhere-1")[2])["data"] == wanted[1]
