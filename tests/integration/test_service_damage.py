"""Damaged logs: each is named, refused, and harms nobody else. Older and newer ones too."""

import json
from pathlib import Path

import pytest

from config.profiles import SHIPPED, load_profile
from team.log import projections
from team.model.content import TextBlock
from team.model.errors import LogDamaged, TeamError
from team.model.events import TurnEnded
from team.model.ids import SessionId, TeamId
from tests.integration.conftest import MakeCore
from tests.support.core import Core
from tests.support.invariants import assert_sound
from tests.support.subagents import background, foreground, root

DAMAGE = {
    "broken JSON": "{",
    "cut off": '{"messageId":"m","content":[{"type":"te',
    "a byte order mark": '\ufeff{"messageId":"m"}',
    "another shape": '{"messageId":7}',
    "a NUL": '{"messageId":"\\u0000"}',
    "no object": "[]",
}


def damage(core: Core, session_id: str, kind: str, text: str) -> int:
    """Overwrite the first event of this kind; returns its seq."""
    seq = next(event.seq for event in core.log(session_id) if event.type == kind)
    core.sql("UPDATE event SET data = :d WHERE session_id = :s AND seq = :q", d=text, s=session_id, q=seq)
    return seq


@pytest.fixture
def damaged(make_core: MakeCore) -> Core:
    """A core that may be left damaged."""
    core = make_core()
    core.may_be_damaged = True
    return core


class TestDamage:
    @pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE.keys())
    def test_r08_doctor_names_the_session_and_the_event_and_clears_the_others(self, damaged: Core, text: str) -> None:
        lead, healthy = damaged.lead("one"), damaged.lead("two")
        damaged.agent(lead).begin()
        seq = damage(damaged, lead, "user/message", text)
        doctor = damaged.sessions.doctor()
        assert not doctor.ok
        checks = {check.id: check for check in doctor.sessions}
        assert checks[healthy].ok
        fault = checks[lead].fault or ""
        assert lead in fault
        assert f"event {seq}" in fault

    @pytest.mark.parametrize("text", [text for name, text in DAMAGE.items() if name != "a NUL"])
    def test_r08_its_turn_ends_with_a_reason_and_the_queue_goes_on(self, damaged: Core, text: str) -> None:
        lead, healthy = damaged.lead("one"), damaged.lead("two")
        damaged.agent(lead).begin()
        seq = damage(damaged, lead, "user/message", text)
        damaged.lose_worker(lead)
        damaged.sql("UPDATE run SET state_since = 1 WHERE session_id = :s", s=lead)
        claim = damaged.turns.claim(damaged.claim_request())
        assert claim is not None
        assert claim.session_id == healthy
        assert damaged.run(lead) is None
        end = damaged.sessions.view(lead).last_end
        assert end is not None
        assert (end.reason, end.code) == ("error", "log-damaged")
        assert lead in (end.message or "")
        assert f"event {seq}" in (end.message or "")

    def test_r08_a_teammates_damage_is_told_to_its_lead_and_the_team_works_on(self, damaged: Core) -> None:
        lead = damaged.lead()
        bob, carol = damaged.spawn(lead, "bob"), damaged.spawn(lead, "carol")
        agent = damaged.agent(bob)
        agent.call("list_agents")
        agent.begin()
        damage(damaged, bob, "assistant/message", "{")
        damaged.lose_worker(bob)
        damaged.agent(carol).finish()
        assert damaged.turns.claim(damaged.claim_request()) is not None
        assert damaged.run(bob) is None
        assert any("log-damaged" in notice for notice in damaged.notices(lead))
        listed = {member["target"]: member for member in damaged.act(lead, "list_agents")}
        assert "log-damaged" in listed["bob"]["diagnostics"][0]
        assert damaged.act(carol, "send_message", target="lead", message="m")["status"] == "accepted"
        assert damaged.act(carol, "team_task_create", subject="s", description="d")["id"] == "task-1"

    @pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE.keys())
    def test_r08_a_damaged_record_is_told_beside_those_that_can_be_read(self, damaged: Core, text: str) -> None:
        lead = damaged.lead("one")
        damaged.agent(lead).finish()
        seq = damage(damaged, lead, "user/message", text)
        page, faults, newest = damaged.sessions.events(lead, 0, 100)
        assert newest == damaged.head(lead).seq
        assert [event.seq for event in page] == [number for number in range(1, newest + 1) if number != seq]
        assert [(fault.seq, fault.type) for fault in faults] == [(seq, "user/message")]
        assert f"event {seq}" in faults[0].fault or lead in faults[0].fault
        assert damaged.sessions.events(lead, seq, 2)[0][0].seq == seq + 1

    def test_r08_a_session_that_cannot_be_read_is_a_row_with_its_fault(self, damaged: Core) -> None:
        one, broken, three = damaged.lead("one"), damaged.lead("two"), damaged.lead("three")
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=broken)
        rows, _ = damaged.sessions.page(None, 10)
        assert [row.id for row in rows] == [one, broken, three]
        assert [row.fault is None for row in rows] == [True, False, True]
        assert broken in (rows[1].fault or "")
        assert (rows[1].status, rows[1].last_seq) == ("running", 2)
        assert damaged.sessions.events(broken, 0, 10)[2] == 2
        checks = {check.id: check.ok for check in damaged.sessions.doctor().sessions}
        assert checks == {one: True, broken: False, three: True}

    @pytest.mark.parametrize("broken", ["lead", "bob"])
    def test_r08_closing_stops_every_member_that_can_be_read_and_names_who_cannot(
        self, damaged: Core, broken: str
    ) -> None:
        lead = damaged.lead("one")
        ids = {"lead": lead, "bob": damaged.spawn(lead, "bob"), "carol": damaged.spawn(lead, "carol")}
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=ids[broken])
        closed = damaged.sessions.close(lead)
        assert list(closed.unreadable) == [ids[broken]]
        assert set(closed.interrupted) == set(ids) - {broken}
        assert {name for name, session_id in ids.items() if damaged.run(session_id) is not None} == {broken}

    @pytest.mark.parametrize("broken", ["root", "awaited", "beside"])
    def test_r08_closing_stops_every_subagent_that_can_be_read(self, damaged: Core, broken: str) -> None:
        session_id, agent = root(damaged)
        ids = {"root": session_id, "beside": background(agent, label="beside"), "awaited": foreground(agent)}
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=ids[broken])
        closed = damaged.sessions.close(session_id)
        assert list(closed.unreadable) == [ids[broken]]
        assert len(closed.interrupted) == 2
        assert {name for name, found in ids.items() if damaged.run(found) is not None} == {broken}

    def test_r08_a_member_that_cannot_be_read_hides_no_other(self, damaged: Core) -> None:
        lead = damaged.lead("one")
        bob, carol = damaged.spawn(lead, "bob"), damaged.spawn(lead, "carol")
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=bob)
        listed = {member["target"]: member for member in damaged.act(lead, "list_agents")}
        assert list(listed) == ["lead", "bob", "carol"]
        assert "cannot be read" in listed["bob"]["diagnostics"][0]
        assert listed["carol"]["diagnostics"] == []
        assert [member.target for member in damaged.sessions.team(lead).members] == ["lead", "bob", "carol"]
        assert damaged.refused(lead, "send_message", target="bob", message="m") == "LOG_DAMAGED"
        assert damaged.act(carol, "send_message", target="lead", message="m")["status"] == "accepted"
        assert damaged.refused(lead, "interrupt_agent", target="bob") == "LOG_DAMAGED"
        assert damaged.act(lead, "interrupt_agent", target="carol") == {"previousStatus": "running"}

    def test_r08_a_session_that_ended_on_its_damage_says_so_in_its_row(self, damaged: Core) -> None:
        lead = damaged.lead("one")
        damaged.agent(lead).begin()
        seq = damage(damaged, lead, "user/message", "{")
        damaged.lose_worker(lead)
        assert damaged.turns.claim(damaged.claim_request()) is None
        assert f"event {seq}" in (damaged.sessions.view(lead).fault or "")

    def test_a_last_text_that_cannot_be_read_does_not_hide_the_end_of_its_turn(self, damaged: Core) -> None:
        lead = damaged.lead()
        bob = damaged.spawn(lead, "bob")
        agent = damaged.agent(bob)
        agent.call("list_agents")
        agent.begin()
        agent.answer(TextBlock(text="half"))
        damage(damaged, bob, "assistant/message", "{")
        damaged.sql("UPDATE event SET data = '{' WHERE session_id = :s AND type = 'assistant/message'", s=bob)
        damaged.sessions.interrupt(bob, actor="me")
        assert damaged.run(bob) is None
        assert "cannot be read" in damaged.notices(lead)[0]

    def test_a_missing_event_is_damage(self, damaged: Core) -> None:
        lead = damaged.lead("one")
        damaged.sql("DELETE FROM event WHERE session_id = :s AND seq = 1", s=lead)
        assert "event 2" in (damaged.sessions.doctor().sessions[0].fault or "")
        claim = damaged.turns.claim(damaged.claim_request())
        assert claim is not None
        with pytest.raises(LogDamaged, match=f"Session {lead}: event 1 is missing"):
            damaged.agent_of(claim).boundary()


class TestNewer:
    @pytest.mark.parametrize(
        ("kind", "data", "visible"),
        [
            ("acme/telemetry", "{}", True),
            ("acme/telemetry", "{}", False),
            ("team/task", '{"version":2,"teamId":"t","task":{}}', False),
            ("user/message", '{"version":2}', True),
        ],
    )
    def test_an_event_of_a_newer_version_is_refused_by_name(
        self, damaged: Core, kind: str, data: str, visible: bool
    ) -> None:
        lead, healthy = damaged.lead("one"), damaged.lead("two")
        seq = damaged.insert_raw(lead, kind, data, visible=visible)
        checks = {check.id: check for check in damaged.sessions.doctor().sessions}
        fault = checks[lead].fault or ""
        assert (lead in fault, f"event {seq}" in fault, kind in fault) == (True, True, True)
        assert checks[healthy].ok


class TestOlder:
    def test_the_mailbox_of_an_older_log_is_readable_and_delivers_nothing(self, core: Core) -> None:
        lead = core.lead("one")
        bob = core.idle(lead, "bob")
        content = [{"type": "text", "text": "hi"}, {"type": "acme/x", "__proto__": {"n": None}}]
        queued = {
            "version": 1,
            "teamId": lead,
            "messageId": "old-1",
            "senderId": lead,
            "senderName": "lead",
            "targetId": bob,
            "delivery": "wake",
            "content": content,
        }
        core.insert_raw(lead, "team/message/queued", json.dumps(queued))
        delivered = {"version": 1, "teamId": lead, "messageId": "old-1", "targetId": bob}
        core.insert_raw(lead, "team/message/delivered", json.dumps(delivered))
        agent = core.agent(lead)
        agent.begin()
        agent.finish()
        core.recovery.wake_missed()
        assert core.run(bob) is None
        assert core.sessions.doctor().ok
        stored = next(event for event in core.log(lead) if event.type == "team/message/queued")
        assert stored.data["content"] == content
        assert "old-1" not in json.dumps([entry.model_dump(mode="json") for entry in agent.history])


class TestProjections:
    def busy(self, core: Core) -> str:
        lead = core.lead("one")
        bob = core.spawn(lead, "bob")
        agent = core.agent(lead)
        agent.call("team_task_create", subject="s", description="d")
        agent.ask(("read", {"path": "f"}))
        agent.local_result()
        agent.begin()
        core.act(lead, "send_message", target="bob", message="m")
        core.reserve_only(lead, "carol")
        core.agent(bob).finish()
        return lead

    @pytest.mark.parametrize("table", ["member", "task", "inbox", "turn", "call"])
    def test_a_projection_that_differs_from_the_log_is_found_and_rebuilt(self, damaged: Core, table: str) -> None:
        lead = self.busy(damaged)
        damaged.sql(f"DELETE FROM {table} WHERE session_id = :s", s=lead)
        fault = damaged.sessions.doctor().sessions[0].fault or ""
        assert f"the projection of {table} " in fault
        self.rebuild(damaged)
        assert damaged.sessions.doctor().ok
        assert_sound(damaged)

    def rebuild(self, core: Core) -> list[str]:
        core.sql("DELETE FROM meta")
        return core.database.writing(projections.rebuild_outdated)

    def test_a_rebuild_changes_nothing_in_a_sound_store(self, core: Core) -> None:
        lead = self.busy(core)
        before = core.reading(lambda c: projections.state(c, SessionId(lead)))
        roster = core.reading(lambda c: list(projections.members(c, SessionId(lead))))
        assert self.rebuild(core) == []
        assert core.reading(lambda c: projections.state(c, SessionId(lead))) == before
        assert core.reading(lambda c: list(projections.members(c, SessionId(lead)))) == roster
        assert core.sessions.team(TeamId(lead)).members[1].target == "bob"

    def test_a_rebuild_goes_around_a_damaged_session_and_names_it(self, damaged: Core) -> None:
        lead, healthy = damaged.lead("one"), self.busy(damaged)
        seq = damage(damaged, lead, "agent/inbox/inserted", "{")
        damaged.sql("DELETE FROM task WHERE session_id = :s", s=healthy)
        faults = self.rebuild(damaged)
        assert len(faults) == 1
        assert f"Session {lead}, event {seq}" in faults[0]
        assert damaged.reading(lambda c: projections.fault_of(c, SessionId(healthy))) is None


def test_every_append_passes_the_fold_before_it_is_written(core: Core) -> None:
    lead = core.lead("one")
    before = core.count()
    run = core.run(lead)
    assert run is not None
    for wrong in (
        TurnEnded(turn_id=run.turn_id.replace("turn", "other"), reason="completed"),  # pyright: ignore[reportArgumentType] -- no branded id
    ):
        with pytest.raises(TeamError, match=f"Session {lead}, event 3"):
            core.append(lead, wrong)
    assert core.count() == before


class TestIsolation:
    def test_a_session_whose_profile_is_gone_ends_its_turn_and_the_queue_goes_on(
        self, make_core: MakeCore, tmp_path: Path
    ) -> None:
        profiles = tmp_path / "profiles"
        profiles.mkdir()
        (profiles / "passing.toml").write_text((SHIPPED / "team.toml").read_text())
        core = make_core(profile_dir=profiles)
        lost, healthy = core.lead("one", profile="passing"), core.lead("two")
        (profiles / "passing.toml").unlink()
        load_profile.cache_clear()
        claim = core.turns.claim(core.claim_request())
        assert claim is not None
        assert claim.session_id == healthy
        end = core.sessions.view(lost).last_end
        assert end is not None
        assert (end.reason, end.code) == ("error", "configuration")
        assert "passing" in (end.message or "")

    def test_a_session_whose_state_cannot_be_read_is_passed_over(self, damaged: Core) -> None:
        broken, healthy = damaged.lead("one"), damaged.lead("two")
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=broken)
        claim = damaged.turns.claim(damaged.claim_request())
        assert claim is not None
        assert claim.session_id == healthy
        with pytest.raises(LogDamaged, match=broken):
            damaged.sessions.view(broken)

    def test_loops_take_the_next_item_after_one_that_fails(self, damaged: Core) -> None:
        broken, healthy = damaged.lead("one"), damaged.lead("two")
        damaged.agent(broken).begin()
        damaged.agent(healthy).begin()
        damaged.sql("UPDATE run SET lease_until = 1 WHERE session_id = :s", s=broken)
        damaged.sql("UPDATE run SET lease_until = 2 WHERE session_id = :s", s=healthy)
        damaged.sql("UPDATE session SET head = '{}' WHERE id = :s", s=broken)
        assert damaged.turns.reap() == 1
        run = damaged.run(healthy)
        assert run is not None
        assert run.state == "queued"
