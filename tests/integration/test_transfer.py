"""Export and import: a Session tree moves to another store and its work goes on there."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from team.log import transfer, waits
from team.log.transfer import Transfer
from team.model.claims import BackoffRequest
from team.model.errors import LogDamaged, ProfileUnknown, SessionExists, SessionNotFound
from team.model.events import (
    HistoricalMessageDelivered,
    HistoricalMessageQueued,
    InboxInserted,
    SubagentDescribed,
    decode_event,
)
from team.model.ids import SessionId
from team.service.recovery import LOST_CREATOR
from team.service.transfers import TransferService
from tests.integration.conftest import MakeCore
from tests.support.core import Core, create_tables, empty_tables, words_of
from tests.support.invariants import assert_sound
from tests.support.postgres import PostgresProcess
from tests.support.transfers import Line, busy_team, edited, export, import_


@pytest.fixture(scope="module")
def second_postgres_store(postgres: PostgresProcess) -> Iterator[str]:
    """Another PostgreSQL database with tables."""
    url = postgres.create_database()
    create_tables(url)
    yield url
    postgres.drop_database(url)


@pytest.fixture
def other(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[Core]:
    """A second store of the same kind; what an import leaves there must be sound."""
    if store_url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'other.db'}"
        create_tables(url)
    else:
        url = request.getfixturevalue("second_postgres_store")
        empty_tables(url)
    core = Core(url, tmp_path / "checkout")
    yield core
    try:
        assert_sound(core)
    finally:
        core.close()


def test_a_team_moves_with_everything_it_knows(core: Core, other: Core) -> None:
    lead = busy_team(core)
    lines = export(core, lead)
    headers = [json.loads(line) for line in lines if "session" in json.loads(line)]
    assert headers[0]["session"]["id"] == lead
    assert headers[0]["sessions"] == len(headers) == 6
    assert sum(header["events"] for header in headers) == len(lines) - 6

    sessions = import_(other, lines)
    assert sessions == [header["session"]["id"] for header in headers]
    assert export(other, lead) == lines
    assert other.sessions.doctor().ok
    for tool in ("list_agents", "team_task_list"):
        assert other.act(lead, tool) == core.act(lead, tool)
    assert other.log(lead) == core.log(lead)


def test_the_lines_survive_readers_that_end_lines_at_unicode_breaks(core: Core, other: Core) -> None:
    lead = busy_team(core)
    whole = "".join(export(core, lead))
    assert import_(other, whole.splitlines())[0] == lead
    assert "".join(export(other, lead)) == whole


def test_open_turns_go_on_in_the_new_store(core: Core, other: Core) -> None:
    lead = busy_team(core)
    import_(other, export(core, lead))
    queued = {queued.member for queued in other.effects[-1].queued}
    # The message resolved nothing yet: no edge was published, so the waiter is parked in the exported log too.
    assert queued == {"lead", "copy", "worker"}
    ids = {name: other.sessions.member_session(lead, name) for name in ("worker", "waiter", "copy", "idle")}

    worker = other.agent(ids["worker"])
    assert [(call.name, call.waiting) for call in worker.claim.pending] == [("bash", False)]
    assert [(file.path, file.version) for file in worker.claim.files] == [("a.py", "v1")]
    worker.local_result(1, "ls says nothing")
    worker.begin()
    worker.finish()

    run = other.run(ids["waiter"])
    assert run is not None
    assert run.state == "parked"
    assert other.wake(lead) == 1
    waiter = other.agent(ids["waiter"])
    assert waiter.last_result() == {"timedOut": False}
    assert any("done" in message for message in waiter.begin())
    assert other.run(ids["idle"]) is None


def test_a_restored_wait_keeps_its_deadline(core: Core, other: Core) -> None:
    lead = busy_team(core)
    waiter = core.sessions.member_session(lead, "waiter")
    run = core.run(waiter)
    assert run is not None
    before = core.reading(lambda c: waits.turn_waits(c, run.turn_id))[0]
    import_(other, export(core, lead))
    after = other.reading(lambda c: waits.turn_waits(c, run.turn_id))[0]
    assert (after.step, after.index, after.call_id) == (before.step, before.index, before.call_id)
    assert after.deadline == pytest.approx(before.deadline, abs=0.001)
    assert other.pass_deadlines() == 1
    assert other.agent(waiter).last_result() == {"timedOut": True}


def parked_back_off(core: Core) -> SessionId:
    lead = core.lead("begin")
    agent = core.agent(lead)
    agent.begin()
    core.turns.backoff(agent.ref, BackoffRequest(**agent.numbered(), step=1, delay_ms=60_000, reason="busy"))
    return lead


def test_a_back_off_goes_on(core: Core, other: Core) -> None:
    lead = parked_back_off(core)
    lines = export(core, lead)
    import_(other, lines)
    assert export(other, lead) == lines
    assert other.pass_deadlines() == 1
    assert other.agent(lead).claim.step == 1


@pytest.mark.parametrize("deadline", [None, "soon", "2030-01-01T00:00:00"])
def test_a_wait_that_cannot_be_restored_is_made_again(core: Core, other: Core, deadline: str | None) -> None:
    lead = busy_team(core)
    waiter = core.sessions.member_session(lead, "waiter")

    def forget_deadline(lines: list[Line]) -> None:
        for line in lines:
            if line.get("type") == "turn/parked":
                del line["data"]["waits"][0]["deadline"]
                if deadline is not None:
                    line["data"]["waits"][0]["deadline"] = deadline

    import_(other, edited(export(core, lead), forget_deadline))
    assert other.types(waiter)[-1] == "turn/resumed"
    agent = other.agent(waiter)
    assert [call.name for call in agent.claim.pending] == ["wait_agent"]
    # Its message is in the inbox, so waiting anew returns at once.
    assert agent.run_call(0, agent.step).state == "done"


def test_accepted_input_without_a_turn_gets_one_unless_it_is_held(core: Core, other: Core) -> None:
    lead = core.lead("never begun")
    held = core.lead("begin")
    core.agent(held).begin()
    core.sessions.interrupt(held, actor="tester")

    def drop_turn(lines: list[Line]) -> None:
        del lines[-1]
        lines[0]["events"] -= 1
        assert [line["type"] for line in lines[1:]] == ["agent/inbox/inserted"]

    def hold(lines: list[Line]) -> None:
        source = {"kind": "settlement", "memberId": "m", "memberName": "m", "turnId": "t"}
        data = {"messageId": "late", "delivery": "steer", "content": [{"type": "text", "text": "x"}], "source": source}
        seq = lines[-1]["seq"] + 1
        lines.append({"sessionId": held, "seq": seq, "time": "t", "type": "agent/inbox/inserted", "data": data})
        lines[0]["events"] += 1

    import_(other, edited(export(core, lead), drop_turn))
    assert other.types(lead) == ["agent/inbox/inserted", "turn/start"]
    assert other.agent(lead).begin() == ["never begun"]
    import_(other, edited(export(core, held), hold))
    assert other.run(held) is None
    assert other.head(held).pending == 1


def provisioning(core: Core, *, child: bool) -> tuple[SessionId, list[str]]:
    """A Team whose creation of ``late`` was cut off between its two commits; with ``child``, elsewhere it went on."""
    lead = core.lead("begin")
    member = core.spawn(lead, "late")

    def cut_off(lines: list[Line]) -> None:
        for line in [line for line in lines if line.get("type") == "team/member"]:
            if line["data"]["member"]["phase"] == "active":
                lines.remove(line)
                lines[0]["events"] -= 1
        if not child:
            lines[:] = [
                line for line in lines if member not in (line.get("sessionId"), line.get("session", {}).get("id"))
            ]
            lines[0]["sessions"] -= 1

    return lead, edited(export(core, lead), cut_off)


@pytest.mark.parametrize("child", [False, True])
def test_a_creation_that_was_cut_off_is_settled_from_the_childs_own_log(core: Core, other: Core, child: bool) -> None:
    lead, lines = provisioning(core, child=child)
    import_(other, lines)
    assert other.member(lead, "late")["status"] == "provisioning"
    assert other.recovery.settle_creations() == 1
    member = other.member(lead, "late")
    if child:
        assert member["status"] == "running"
    else:
        assert (member["status"], member["diagnostics"]) == ("failed", [f"creation failed: {LOST_CREATOR}"])
    assert other.recovery.settle_creations() == 0


def test_historical_mail_stays_readable_and_is_never_delivered(core: Core, other: Core) -> None:
    lead = busy_team(core)
    import_(other, export(core, lead))
    decoded = [event.decoded() for event in other.log(lead)]
    assert sum(isinstance(data, HistoricalMessageQueued | HistoricalMessageDelivered) for data in decoded) == 2
    inserted = [data for data in decoded if isinstance(data, InboxInserted)]
    assert not any("long ago" in words_of(data.content) for data in inserted)
    assert other.head(lead).pending == core.head(lead).pending


def test_unknown_content_keeps_every_key(core: Core, other: Core) -> None:
    lead = core.lead()
    block = {"type": "hologram", "__proto__": {"admin": None}, "__class__": [1.0, -0.0, 1e22, 5e-324], "": "\u2028"}
    data = {"messageId": "m", "delivery": "turn", "content": [block], "source": {"kind": "human"}}
    core.append(lead, decode_event(1, "agent/inbox/inserted", data))
    core.prompt(lead, "look at it")
    lines = export(core, lead)
    assert json.loads(lines[1])["data"]["content"] == [block]
    import_(other, lines)
    assert export(other, lead) == lines


def test_another_spelling_of_the_same_json_becomes_the_one_spelling(core: Core, other: Core) -> None:
    lead = busy_team(core)
    lines = export(core, lead)
    spaced = [json.dumps(json.loads(line), indent=None, ensure_ascii=True, separators=(" , ", " : ")) for line in lines]
    import_(other, ["", *spaced, "   \n"])
    assert export(other, lead) == lines


def test_an_export_is_one_moment_although_it_is_read_later(core: Core) -> None:
    lead = busy_team(core)
    whole = export(core, lead)
    later = TransferService(core.store).export(lead)
    first = next(later)
    core.spawn(lead, "newer")
    core.prompt(lead, "newer")
    assert [first, *later] == whole


def test_an_export_of_a_long_log_reads_pages(core: Core, other: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    lead = busy_team(core)
    whole = export(core, lead)
    monkeypatch.setattr(transfer, "_BATCH", 2)
    assert export(core, lead) == whole
    import_(other, whole)
    assert export(other, lead) == whole


def test_a_part_of_a_tree_can_be_read_and_not_be_imported(core: Core, other: Core) -> None:
    lead = busy_team(core)
    worker = core.sessions.member_session(lead, "worker")
    lines = export(core, worker)
    assert {json.loads(line).get("sessionId", worker) for line in lines} == {worker}
    with pytest.raises(LogDamaged, match=f"line 1: the parent {lead} .* export its root {lead} instead; nothing was"):
        import_(other, lines)


def test_several_trees_may_stand_in_one_file(core: Core, other: Core) -> None:
    first, second = busy_team(core), core.lead("another")
    lines = [*export(core, first), *export(core, second)]
    import_(other, lines)
    assert [*export(other, first), *export(other, second)] == lines


def test_a_session_that_exists_is_refused(core: Core) -> None:
    lead = busy_team(core)
    before = core.count()
    with pytest.raises(SessionExists, match=f"line 1: A Session '{lead}' exists already; nothing was imported"):
        import_(core, export(core, lead))
    assert core.count() == before


def test_a_turn_of_another_session_is_refused(core: Core) -> None:
    lead = core.lead("begin")
    lines = [line.replace(lead, "another") for line in export(core, lead)]
    with pytest.raises(LogDamaged, match=r"line 1: the turn turn-.* of Session another belongs to another Session"):
        import_(core, lines)
    assert len(core.sessions.doctor().sessions) == 1
    assert core.sessions.doctor().ok


def test_an_unknown_profile_is_refused(core: Core, other: Core) -> None:
    lead = core.lead()

    def rename(lines: list[Line]) -> None:
        lines[0]["session"]["profile"] = "of-another-deployment"

    with pytest.raises(ProfileUnknown, match="of-another-deployment"):
        import_(other, edited(export(core, lead), rename))
    assert other.sessions.doctor().sessions == ()


def test_an_unknown_session_cannot_be_exported(core: Core) -> None:
    with pytest.raises(SessionNotFound):
        TransferService(core.store).export("nobody")


def test_a_log_that_lost_events_is_not_exported_as_if_it_were_whole(core: Core) -> None:
    lead = core.lead("begin")
    core.sql("DELETE FROM event WHERE seq = 2")
    with pytest.raises(LogDamaged, match=f"Session {lead}: the events after 1 are missing"):
        export(core, lead)
    core.sql("DELETE FROM event")
    core.sql("DELETE FROM session")


def test_a_retried_transaction_reads_the_file_again(core: Core, other: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    lead = busy_team(core)
    lines = export(core, lead)
    insert, tries = transfer.insert, list[int]()

    def fail_once(connection: Connection, incoming: Transfer, now: float) -> None:
        insert(connection, incoming, now)
        tries.append(len(tries))
        if len(tries) == 1:
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise OperationalError("INSERT", {}, busy)

    monkeypatch.setattr(transfer, "insert", fail_once)
    import_(other, lines)
    assert tries == [0, 1]
    assert export(other, lead) == lines


def test_a_file_is_read_before_the_store_is_locked(core: Core, other: Core) -> None:
    lead = busy_team(core)

    def slow_lines() -> Iterator[str]:
        first, *rest = export(core, lead)
        yield first
        other.lead("somebody else writes meanwhile")
        yield from rest

    TransferService(other.store).import_(slow_lines())
    assert other.sessions.doctor().ok


@pytest.mark.parametrize("where", ["/elsewhere/repository", "/", "gone", "checkout/../..", "a\\b", "\u00e4" * 300])
def test_a_session_whose_directory_is_none_of_this_workspace_goes_on_in_its_root(
    core: Core, other: Core, where: str
) -> None:
    lead = core.lead("begin")
    core.idle(lead, "bob")

    def move(decoded: list[Line]) -> None:
        for line in decoded:
            if "session" in line:
                line["session"]["cwd"] = where

    import_(other, edited(export(core, lead), move))
    for session_id in (lead, other.sessions.member_session(lead, "bob")):
        assert other.head(session_id).cwd == str(other.workspace)
        assert [event.data for event in other.log(session_id) if event.type == "session/cwd"] == [
            {"cwd": str(other.workspace)}
        ]
    assert other.agent(lead).claim.cwd == str(other.workspace)
    assert other.sessions.doctor().ok


def test_a_session_in_a_directory_of_this_workspace_stays_there(core: Core, other: Core) -> None:
    inside = core.workspace / "src"
    inside.mkdir()
    lead = core.sessions.create(cwd=str(inside), profile="team", model=None, prompt=None, actor="tester", once=None).id
    lines = export(core, lead)
    import_(other, lines)
    assert export(other, lead) == lines
    assert other.head(lead).cwd == str(inside)


def test_a_damaged_file_imports_nothing(core: Core, other: Core) -> None:
    lines = export(core, busy_team(core))
    with pytest.raises(LogDamaged, match="the file was cut; nothing was imported"):
        import_(other, lines[:-1])
    assert other.count() == 0
    assert other.sessions.doctor().sessions == ()


def test_a_value_that_an_index_cannot_hold_is_named(second_postgres_store: str, core: Core, tmp_path: Path) -> None:
    lead = core.lead("begin")
    empty_tables(second_postgres_store)
    target = Core(second_postgres_store, tmp_path / "elsewhere")
    try:
        long = "".join(chr(0x4E00 + place % 20_000) for place in range(9_000))
        lines = [line.replace('"turnId":"', f'"turnId":"{long}') for line in export(core, lead)]
        with pytest.raises(LogDamaged, match=rf"line 1: Session {lead}: the database cannot hold it \(index row"):
            import_(target, lines)
        assert target.count() == 0
    finally:
        target.close()


def test_a_child_of_another_provider_is_not_adopted(make_core: MakeCore, other: Core) -> None:
    core = make_core()
    lead, lines = provisioning(core, child=True)

    def change_provider(decoded: list[Line]) -> None:
        for line in decoded:
            if line.get("type") == SubagentDescribed.event_type:
                line["data"]["provider"] = "fork"

    import_(other, edited(lines, change_provider))
    assert other.recovery.settle_creations() == 1
    assert other.member(lead, "late")["diagnostics"][0] == "creation failed: its descriptor does not match the record"
