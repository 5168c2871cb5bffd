"""Creating teammates: two commits, crashes between them, recovery from the child's own log."""

from typing import Any

import pytest
from sqlalchemy import Connection

from team.log import operations
from team.log.transaction import Transaction
from team.model.content import text_block
from team.model.errors import InvalidTarget, LogDamaged, ProvisioningConflict, StoreUnavailable, TurnFenced
from team.model.events import (
    EventData,
    InboxInserted,
    MemberChanged,
    SubagentDescribed,
    UserMessage,
)
from team.model.ids import MessageId, SessionId
from team.model.snapshots import DelegationSource, SessionHeader
from team.rules.queue import begin
from team.service.callers import Caller, CallRef, Once
from team.service.teams import TeamService
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, Vanished, code_of, codes, decoded, together

SPAWN = ("spawn_teammate", {"name": "bob", "description": "d", "prompt": "begin"})


def phases(core: Core, lead: str, name: str = "bob") -> list[str]:
    found = [data for event in core.log(lead) if isinstance(data := event.decoded(), MemberChanged)]
    return [data.member.phase for data in found if data.member.name == name]


def crash_between_commits(core: Core, agent: Agent) -> None:
    """Run the agent's spawn call on a coordinator that vanishes behind the first commit."""

    def vanish(_self: TeamService, *_rest: object) -> None:
        raise Vanished(SessionId("unknown"))

    finish = TeamService._finish_spawn  # pyright: ignore[reportPrivateUsage] -- the crash is between the two commits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeamService, "_finish_spawn", vanish)
        with pytest.raises(Vanished):
            agent.run_call()
    assert TeamService._finish_spawn is finish  # pyright: ignore[reportPrivateUsage] -- the same


def child(core: Core, session_id: str, lead: str, *data: EventData, **header: Any) -> None:
    """A child Session as another store or an imported log may leave it."""
    values: dict[str, Any] = {
        "id": session_id,
        "created_at": "2026-01-01T00:00:00.000Z",
        "profile": "team",
        "cwd": str(core.workspace),
        "depth": 1,
        "root_id": lead,
        "parent_id": lead,
        **header,
    }

    def body(tx: Transaction) -> None:
        tx.create_session(SessionHeader.model_validate(values))
        for item in data:
            tx.append(SessionId(session_id), item)

    core.store.writing(body)


def described(provider: str = "fresh", mode: str = "continuable") -> SubagentDescribed:
    return SubagentDescribed.model_validate({"mode": mode, "provider": provider, "label": "bob"})


def prompted(lead: str) -> InboxInserted:
    source = DelegationSource(sender_id=SessionId(lead), sender_name="lead")
    return InboxInserted(
        message_id=MessageId("msg-first"), delivery="steer", content=text_block("begin"), source=source
    )


def claimed_into_history(lead: str) -> UserMessage:
    source = DelegationSource(sender_id=SessionId(lead), sender_name="lead")
    return UserMessage(message_id=MessageId("msg-first"), content=text_block("begin"), source=source)


class TestSpawn:
    def test_the_events_of_a_creation_are_in_their_order(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        assert agent.call("spawn_teammate", name="bob", description="d", prompt="begin") == {
            "member": {
                "target": "bob",
                "role": "teammate",
                "status": "running",
                "description": "d",
                "provider": "fresh",
                "context": "fresh",
                "diagnostics": [],
            }
        }
        assert phases(core, lead) == ["provisioning", "active"]
        assert core.types(lead)[-3:] == ["team/member", "team/member", "tool/result"]
        bob = core.sessions.member_session(lead, "bob")
        assert core.types(bob) == ["subagent/descriptor", "agent/inbox/inserted", "turn/start"]
        assert core.agent(bob).begin() == ["begin"]

    def test_a_teammate_starts_in_the_leads_directory_with_its_profile_and_model(self, core: Core) -> None:
        lead = core.sessions.create(
            cwd=str(core.workspace), profile="team", model="openai-chat:m", prompt=None, actor=None, once=None
        ).id
        bob = core.sessions.view(core.spawn(lead, "bob"))
        assert (bob.cwd, bob.profile, bob.model) == (str(core.workspace), "team", "openai-chat:m")

    def test_a_refused_creation_uses_up_no_name(self, core: Core) -> None:
        lead = core.lead()
        before = core.count()
        refusals: list[tuple[dict[str, str], str]] = [
            ({"name": "Bob"}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": "bob\n"}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": "b\u043eb"}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": "lead"}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": "unowned"}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": ""}, "TEAM_INVALID_MEMBER_NAME"),
            ({"name": "x" * 65}, "TEAM_INVALID_MEMBER_NAME"),
            ({"description": " "}, "TEAM_INVALID_ARGUMENT"),
            ({"prompt": "\n"}, "TEAM_INVALID_ARGUMENT"),
            ({"prompt": "x" * 70_000}, "TEAM_MESSAGE_TOO_LARGE"),
        ]
        for wrong, code in refusals:
            assert core.refused(lead, "spawn_teammate", **{**SPAWN[1], **wrong}) == code
        assert core.count() == before
        core.spawn(lead, "bob")

    def test_only_the_lead_creates_and_interrupts(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        core.idle(lead, "carol")
        assert core.refused(bob, "spawn_teammate", **{**SPAWN[1], "name": "dave"}) == "TEAM_LEAD_REQUIRED"
        assert core.refused(bob, "interrupt_agent", target="carol") == "TEAM_LEAD_REQUIRED"
        assert core.refused(lead, "interrupt_agent", target="lead") == "TEAM_INVALID_TARGET"

    def test_r04_a_name_is_taken_for_ever_and_a_new_one_works(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        assert core.refused(lead, "spawn_teammate", **SPAWN[1]) == "TEAM_MEMBER_NAME_TAKEN"
        core.reserve_only(lead, "carol")
        core.recovery.settle_creation(core.head_team(lead), "carol")
        again = {**SPAWN[1], "name": "carol"}
        assert core.refused(lead, "spawn_teammate", **again) == "TEAM_MEMBER_NAME_TAKEN"
        core.spawn(lead, "dave")
        core.act(lead, "send_message", target="bob", message="m")
        assert len(core.agent(bob).claim.history) > 0

    def test_the_limit_counts_every_name_ever_used(self, make_core: MakeCore) -> None:
        core = make_core(max_members=2)
        lead = core.lead()
        core.reserve_only(lead, "bob")
        core.recovery.settle_creation(core.head_team(lead), "bob")
        core.spawn(lead, "carol")
        assert core.refused(lead, "spawn_teammate", **{**SPAWN[1], "name": "dave"}) == "TEAM_MEMBER_LIMIT"

    def test_one_of_many_creations_of_a_name_wins(self, core: Core) -> None:
        lead = core.lead()
        outcomes = codes(together(*([lambda: core.act(lead, "spawn_teammate", **SPAWN[1])] * 4)))
        assert sorted(outcomes) == ["TEAM_MEMBER_NAME_TAKEN"] * 3 + ["ok"]
        assert phases(core, lead) == ["provisioning", "active"]

    def test_a_session_outside_the_roster_is_no_member(self, core: Core) -> None:
        lead = core.lead()
        child(core, "helper", lead, described(mode="one-shot"))
        for tool, arguments in (("list_agents", {}), ("send_message", {"target": "lead", "message": "m"})):
            assert core.refused("helper", tool, **arguments) == "TEAM_NOT_MEMBER"

    def test_a_failed_member_cannot_act(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described())
        core.recovery.settle_creation(core.head_team(lead), "bob")
        assert core.refused(bob, "list_agents") == "TEAM_NOT_MEMBER"


class TestCrash:
    def test_r03_a_retried_call_joins_its_own_operation(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN)
        crash_between_commits(core, agent)
        assert core.member(lead, "bob")["status"] == "provisioning"
        core.lose_worker(lead)
        agent = core.agent(lead, "w2")
        assert decoded(agent.run_call())["member"]["status"] == "running"
        assert phases(core, lead) == ["provisioning", "active"]
        assert core.recovery.settle_creations() == 0

    def test_another_call_cannot_join_it(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN, SPAWN)
        crash_between_commits(core, agent)
        assert code_of(decoded(agent.run_call(1))) == "TEAM_MEMBER_NAME_TAKEN"
        assert decoded(agent.run_call(0))["member"]["target"] == "bob"

    def test_r03_recovery_leaves_a_live_creator_alone_and_fails_a_dead_one(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN)
        crash_between_commits(core, agent)
        assert core.recovery.settle_creations() == 0
        core.sql("UPDATE operation SET lease_until = 1")
        assert core.recovery.settle_creations() == 1
        assert core.recovery.settle_creations() == 0
        assert phases(core, lead) == ["provisioning", "failed"]
        member = core.member(lead, "bob")
        assert member["status"] == "failed"
        assert "cut off" in member["diagnostics"][0]
        retried = decoded(agent.run_call())
        assert code_of(retried) == "TEAM_PROVISIONING_CONFLICT"
        assert "cut off" in retried["error"]["message"]
        assert code_of(agent.call("spawn_teammate", **SPAWN[1])) == "TEAM_MEMBER_NAME_TAKEN"

    def test_r03_a_failure_and_what_its_call_is_told_are_one_commit(self, core: Core) -> None:
        lead = core.lead("go")
        core.agent(lead).finish()
        core.sql("UPDATE event SET data = 'broken' WHERE session_id = :s AND type = 'assistant/message'", s=lead)
        core.prompt(lead, "fork yourself")
        core.sql("UPDATE event SET visible = :v WHERE session_id = :s AND data = 'broken'", v=False, s=lead)
        agent = core.agent(lead)
        agent.ask((SPAWN[0], {**SPAWN[1], "context": "fork"}))
        caller = Caller(SessionId(lead), CallRef(agent.ref, agent.step, 0))
        with pytest.raises(LogDamaged):
            core.teams.spawn(caller, name="bob", description="d", prompt="p", context="fork")
        assert core.types(lead, after=core.head(lead).seq - 2) == ["team/member", "tool/result"]
        assert code_of(decoded(agent.run_call())) == "LOG_DAMAGED"
        core.may_be_damaged = True

    def test_r03_an_operators_retry_learns_how_its_own_creation_ended(self, core: Core) -> None:
        lead = core.lead()
        once = Once("tester", "k", "hash")
        caller = Caller(SessionId(lead), actor="tester", once=once)

        def vanish(*_: object) -> None:
            raise Vanished(SessionId(lead))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TeamService, "_finish_spawn", vanish)
            with pytest.raises(Vanished):
                core.teams.spawn(caller, name="bob", description="d", prompt="p")
        core.sql("UPDATE operation SET lease_until = 1")
        assert core.recovery.settle_creations() == 1
        with pytest.raises(ProvisioningConflict, match="cut off"):
            core.teams.spawn(caller, name="bob", description="d", prompt="p")
        assert core.refused(lead, "spawn_teammate", **SPAWN[1]) == "TEAM_MEMBER_NAME_TAKEN"
        assert core.recovery.settle_creations() == 0

    def test_a_creator_that_came_back_is_not_settled_behind_its_back(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN)
        crash_between_commits(core, agent)
        core.sql("UPDATE operation SET lease_until = 1")
        list_expired = operations.expired_operations

        def renewed_meanwhile(connection: Connection, now: float) -> list[tuple[str, str, str]]:
            found = list_expired(connection, now)
            crash_between_commits(core, agent)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operations, "expired_operations", renewed_meanwhile)
            assert core.recovery.settle_creations() == 0
        assert phases(core, lead) == ["provisioning"]
        assert decoded(agent.run_call())["member"]["status"] == "running"

    def test_a_creator_that_finds_failed_writes_no_child(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN)
        finish = TeamService._finish_spawn  # pyright: ignore[reportPrivateUsage] -- recovery acts between the commits

        def recovered_meanwhile(teams: TeamService, *rest: Any) -> Any:
            core.recovery.settle_creation(core.head_team(lead), "bob")
            return finish(teams, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TeamService, "_finish_spawn", recovered_meanwhile)
            result = decoded(agent.run_call())
        assert code_of(result) == "TEAM_PROVISIONING_CONFLICT"
        assert phases(core, lead) == ["provisioning", "failed"]
        assert [view.id for view in core.sessions.page(None, 100)[0]] == [lead]

    def test_creator_and_recovery_at_once_agree(self, core: Core) -> None:
        seen: set[str] = set()
        for number in range(10):
            lead = core.lead()
            team = core.head_team(lead)
            name = f"m{number}"
            created, _, _ = together(
                lambda s=lead, n=name: core.act(s, "spawn_teammate", **{**SPAWN[1], "name": n}),
                lambda t=team, n=name: core.recovery.settle_creation(t, n),
                lambda t=team, n=name: core.recovery.settle_creation(t, n),
            )
            outcome = codes([created])[0]
            seen.add(outcome)
            history = phases(core, lead, name)
            exists = any(view.parent_id == lead for view in core.sessions.page(None, 100)[0])
            assert (outcome, history[1:], exists) in (
                ("ok", ["active"], True),
                ("TEAM_PROVISIONING_CONFLICT", ["failed"], False),
            )
        assert seen <= {"ok", "TEAM_PROVISIONING_CONFLICT"}

    def test_a_creation_that_cannot_finish_is_failed_with_its_reason(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.finish()
        core.sql("UPDATE event SET data = 'broken' WHERE session_id = :s AND type = 'assistant/message'", s=lead)
        core.prompt(lead, "fork yourself")
        spawn = {**SPAWN[1], "context": "fork"}
        assert core.refused(lead, "spawn_teammate", **spawn) == "LOG_DAMAGED"
        assert core.member(lead, "bob")["status"] == "failed"
        assert "LOG_DAMAGED" in core.member(lead, "bob")["diagnostics"][0]
        core.may_be_damaged = True

    def test_r04_a_database_that_is_away_is_no_answer(self, core: Core) -> None:
        lead = core.lead()
        core.reserve_only(lead, "bob")

        def away(*_: object) -> None:
            raise StoreUnavailable("away")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("team.log.sessions.find_session", away)
            with pytest.raises(StoreUnavailable):
                core.recovery.settle_creation(core.head_team(lead), "bob")
        assert phases(core, lead) == ["provisioning"]

    def test_closing_the_team_ends_a_creation(self, core: Core) -> None:
        lead = core.lead("go")
        agent = core.agent(lead)
        agent.ask(SPAWN)
        crash_between_commits(core, agent)
        core.sql("UPDATE run SET state = 'queued', lease_until = NULL")
        core.sessions.close(lead)
        assert phases(core, lead) == ["provisioning", "failed"]


class TestReconciliation:
    """Every case of the spec: an unterminated record beside what the child's own log says."""

    def settled(self, core: Core, lead: str) -> str:
        assert core.recovery.settle_creation(core.head_team(lead), "bob")
        assert not core.recovery.settle_creation(core.head_team(lead), "bob")
        return phases(core, lead)[-1]

    def test_a_first_message_that_is_pending_proves_admission(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described(), prompted(lead))
        assert self.settled(core, lead) == "active"
        core.act(lead, "send_message", target="bob", message="m")
        assert core.agent(bob).begin()[0] == "begin"

    def test_a_first_message_that_is_in_the_history_proves_it_too(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described(), claimed_into_history(lead))
        assert self.settled(core, lead) == "active"

    def test_no_session_is_a_failure(self, core: Core) -> None:
        lead = core.lead()
        core.reserve_only(lead, "bob")
        assert self.settled(core, lead) == "failed"

    def test_a_session_without_its_message_is_a_failure(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described())
        assert self.settled(core, lead) == "failed"

    @pytest.mark.parametrize(("provider", "mode"), [("fork", "continuable"), ("fresh", "one-shot")])
    def test_another_provider_or_mode_is_a_failure(self, core: Core, provider: str, mode: str) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described(provider, mode), prompted(lead))
        assert self.settled(core, lead) == "failed"

    def test_a_session_without_a_descriptor_is_a_failure(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, prompted(lead))
        assert self.settled(core, lead) == "failed"

    @pytest.mark.parametrize("began", [False, True])
    def test_the_turn_of_a_child_that_is_not_adopted_ends(self, core: Core, began: bool) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described("fork"), prompted(lead))

        def open_turn(tx: Transaction) -> None:
            tx.lock_team(core.head_team(lead))
            tx.lock_sessions(SessionId(bob))
            begin(tx, SessionId(bob), "it was imported")

        core.store.writing(open_turn)
        agent = core.agent(bob) if began else None
        assert self.settled(core, lead) == "failed"
        assert core.run(bob) is None
        end = core.sessions.view(bob).last_end
        assert end is not None
        assert (end.reason, "settled as failed" in (end.message or "")) == ("aborted", True)
        if agent is not None:
            with pytest.raises(TurnFenced):
                agent.begin()
        assert core.notices(lead) == []
        assert core.turns.claim(core.claim_request()) is None
        with pytest.raises(InvalidTarget, match="bob is failed"):
            core.prompt(bob, "go on")

    def test_a_child_whose_state_cannot_be_read_is_a_failure(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described(), prompted(lead))
        core.sql("UPDATE session SET head = '{}' WHERE id = :s", s=bob)
        core.may_be_damaged = True
        assert self.settled(core, lead) == "failed"
        created, unreadable = core.member(lead, "bob")["diagnostics"]
        assert "its log is damaged" in created
        assert "cannot be read" in unreadable

    def test_the_turn_of_somebody_elses_child_goes_on(self, core: Core) -> None:
        lead, stranger = core.lead(), core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, stranger, described(), prompted(stranger))

        def open_turn(tx: Transaction) -> None:
            tx.lock_team(core.head_team(stranger))
            tx.lock_sessions(SessionId(bob))
            begin(tx, SessionId(bob), "it was imported")

        core.store.writing(open_turn)
        assert self.settled(core, lead) == "failed"
        assert core.agent(bob).begin() == ["begin"]

    def test_another_parent_is_a_failure(self, core: Core) -> None:
        lead, stranger = core.lead(), core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, stranger, described(), claimed_into_history(lead))
        assert self.settled(core, lead) == "failed"
        assert "another parent" in core.member(lead, "bob")["diagnostics"][0]

    @pytest.mark.parametrize("damage", ["broken", '{"version":7}', "\ufeff{}", '{"a":"\\u0000"}'])
    def test_a_damaged_log_is_a_failure_that_names_it(self, core: Core, damage: str) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob")
        child(core, bob, lead, described(), prompted(lead))
        core.sql("UPDATE event SET data = :d WHERE session_id = :s AND seq = 1", d=damage, s=bob)
        assert self.settled(core, lead) == "failed"
        text = core.member(lead, "bob")["diagnostics"][0]
        assert bob in text
        assert "event 1" in text
        core.may_be_damaged = True

    def test_an_inherited_message_of_a_fork_proves_nothing(self, core: Core) -> None:
        lead = core.lead()
        bob = core.reserve_only(lead, "bob", "fork")
        origin = {"session_id": lead, "through": 3}
        child(core, bob, lead, described("fork"), claimed_into_history(lead), forked_from=origin, seed_through=2)
        assert self.settled(core, lead) == "failed"
