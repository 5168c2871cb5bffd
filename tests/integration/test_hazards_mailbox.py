"""Hazards of mail: delivery near every boundary, over restarts, beside other Teams, and its cost in an old log."""

from collections.abc import Callable

import pytest

from team.model.content import TextBlock, text_block
from team.model.errors import TurnConflict, TurnFenced
from team.model.events import (
    InboxClaimed,
    InboxInserted,
    StepStarted,
    TaskChanged,
    TurnEnded,
    UserMessage,
)
from team.model.ids import MessageId, SessionId, TaskId
from team.model.snapshots import HumanSource, TaskSnapshot
from team.service.callers import CallRef, ClaimRef
from tests.integration.conftest import MakeCore
from tests.support.core import Core, code_of

READ = ("read", {"path": "f"})
OLD_MESSAGES = 1_000
ROUNDS = 30


def bodies(messages: list[str]) -> list[str]:
    """The senders' own text, without the frames; of a notice its last line."""
    return [message.split("\n", 1)[-1] for message in messages]


def shown_bodies(core: Core, session_id: str) -> list[str]:
    """The bodies of all Team messages that a history shows."""
    shown = [message for message in core.messages(session_id) if message.source.kind == "team-message"]
    return [block.text for message in shown for block in message.content[1:] if isinstance(block, TextBlock)]


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("count", [1, 2])
def test_m02_at_every_boundary_mail_is_read_once_and_the_turn_ends(core: Core, place: int, count: int) -> None:
    lead = core.lead()
    agent = core.agent(core.spawn(lead, "alice"))
    moments: list[Callable[[], object]] = [
        agent.begin,
        lambda: agent.ask(READ),
        agent.local_result,
        agent.begin,
        lambda: agent.answer(TextBlock(text="done")),
        lambda: None,
    ]
    for moment, step in enumerate(moments):
        if moment == place:
            for number in range(count):
                core.act(lead, "send_message", target="alice", message=f"phase? {number}")
        step()
    if agent.boundary().action == "step":
        assert agent.finish().action == "ended"
    assert shown_bodies(core, agent.claim.session_id) == [f"phase? {number}" for number in range(count)]
    assert core.types(agent.claim.session_id).count("tool/result") == 1
    assert (core.run(agent.claim.session_id), core.member(lead, "alice")["status"]) == (None, "inactive")


def test_m03_mail_to_an_idle_member_takes_no_slot_and_is_read_in_order_after_a_restart(make_core: MakeCore) -> None:
    core = make_core(max_members=4)
    lead = core.lead()
    bob = core.idle(lead, "bob")
    core.effects.clear()
    for number in range(3):
        core.act(lead, "send_message", target="bob", message=f"m{number}")
    queued = [item for effect in core.effects for item in effect.queued]
    assert len(queued) == 1, "three messages are one turn, so one slot"
    for name in ("carol", "dave"):
        assert core.agent(core.spawn(lead, name)).finish().action == "ended"
    restarted = make_core()
    restarted.act(lead, "send_message", target="bob", message="go")
    assert bodies(restarted.agent(bob).begin()) == ["m0", "m1", "m2", "go"]
    restarted.spawn(lead, "erin")


def test_m04_a_report_in_the_same_moment_as_the_end_of_its_turn_is_in_the_history_once(make_core: MakeCore) -> None:
    core = make_core(settlement="always", max_steps=1_000)
    lead = core.lead("go")
    alice = core.idle(lead, "alice")
    reader = core.agent(lead)
    reader.begin()
    for number in range(ROUNDS):
        core.act(lead, "send_message", target="alice", message="report")
        agent = core.agent(alice)
        agent.call("send_message", target="lead", message=f"report-{number}")
        agent.finish()
        reader.ask(READ)
        reader.local_result()
        if number % 3 == 0:
            core.lose_worker(lead)
            reader = core.agent(lead, f"w{number}")
        reader.begin()
    assert shown_bodies(core, lead) == [f"report-{number}" for number in range(ROUNDS)]
    order = [message.source.kind for message in core.messages(lead)[1:]]
    assert order == ["settlement", *["team-message", "settlement"] * ROUNDS]


def test_m10_accepted_mail_is_visible_until_it_is_read(core: Core) -> None:
    lead = core.lead()
    core.reserve_only(lead, "bob")
    core.recovery.settle_creation(core.head_team(lead), "bob")
    carol, alice = core.idle(lead, "carol"), core.agent(core.spawn(lead, "alice"))
    refused = alice.call("send_message", target="bob", message="m")
    assert code_of(refused) == "TEAM_INVALID_TARGET"
    assert "bob is failed" in refused["error"]["message"]
    assert alice.call("send_message", target="carol", message="m")["status"] == "accepted"
    pending = {member.target: member.pending for member in core.sessions.team(lead).members}
    assert (pending["carol"], pending["bob"]) == (1, 0)
    core.agent(carol, "cold").begin()
    assert {member.pending for member in core.sessions.team(lead).members if member.target == "carol"} == {0}


def test_m11_a_member_reports_to_an_idle_lead_after_a_restart_of_everything(make_core: MakeCore) -> None:
    core = make_core()
    lead = core.lead("go")
    alice = core.spawn(lead, "alice")
    core.agent(alice).finish("started a job")
    for _ in range(2):
        core.agent(lead).finish("good night")
        if core.run(lead) is None:
            break
    assert core.run(lead) is None
    restarted = make_core()
    restarted.prompt(alice, "the job has finished")
    agent = restarted.agent(alice, "w-new")
    assert agent.call("send_message", target="lead", message="done")["status"] == "accepted"
    assert bodies(restarted.agent(lead, "w-new").begin())[-1] == "done"


def test_m14_a_claim_acts_for_its_own_session_only(core: Core) -> None:
    lead = core.lead("go")
    boss, alice = core.agent(lead), core.agent(core.spawn(lead, "alice"))
    boss.ask(("send_message", {"target": "alice", "message": "m"}))
    alice.begin()
    before = core.count()
    stolen = ClaimRef(boss.ref.turn_id, boss.ref.epoch, alice.ref.token)
    with pytest.raises(TurnFenced):
        core.tools.run_call(CallRef(stolen, boss.step, 0))
    with pytest.raises(TurnConflict):
        core.tools.run_call(CallRef(alice.ref, boss.step, 0))
    assert core.count() == before


def test_m15_an_old_log_makes_no_operation_dearer(core: Core) -> None:
    lead = core.lead("go")
    team, bob = core.head_team(lead), core.idle(lead, "bob")
    core.act(lead, "team_task_create", subject="s", description="d")
    sender = core.agent(core.spawn(lead, "alice"))
    sender.begin()
    operations: dict[str, Callable[[], object]] = {
        "send": lambda: core.act(sender.claim.session_id, "send_message", target="lead", message="m"),
        "roster": lambda: core.act(lead, "list_agents"),
        "board": lambda: core.act(lead, "team_task_list"),
        "task": lambda: core.act(lead, "team_task_create", subject="s", description="d"),
        "wake": core.recovery.wake_missed,
        "deadlines": core.recovery.expire_waits,
        "dispatch": lambda: core.recovery.due_dispatches(10),
        "leases": core.turns.reap,
        "creations": core.recovery.settle_creations,
    }
    core.sql("UPDATE run SET next_dispatch_at = 1")
    empty = {name: core.statements(action) for name, action in operations.items()}
    run = core.run(lead)
    assert run is not None
    ids = [MessageId(f"old-{number}") for number in range(OLD_MESSAGES)]
    core.append(
        lead,
        StepStarted(turn_id=run.turn_id, step=1),
        *(
            data
            for message_id in ids
            for data in (
                InboxInserted(message_id=message_id, delivery="steer", content=text_block("m"), source=HumanSource()),
                InboxClaimed(message_id=message_id, turn_id=run.turn_id, step=1),
                UserMessage(message_id=message_id, content=text_block("m"), source=HumanSource()),
            )
        ),
        *(
            TaskChanged(
                team_id=team,
                task=TaskSnapshot(
                    id=TaskId("task-1"), revision=revision, subject="s", description="d", status="pending"
                ),
            )
            for revision in range(2, OLD_MESSAGES)
        ),
    )
    for name, action in operations.items():
        if name == "dispatch":
            core.sql("UPDATE run SET next_dispatch_at = 1")
        sent = core.statements(action)
        assert sent == empty[name], name
        assert not [statement for statement in sent if "FROM event" in statement], name
    assert core.run(bob) is None


def test_m15_an_idle_team_costs_as_much_as_none(make_core: MakeCore) -> None:
    core = make_core(settlement="off")

    def tick() -> None:
        core.turns.reap()
        core.recovery.expire_waits()
        core.recovery.settle_creations()
        core.recovery.count_queued()
        core.recovery.due_dispatches(100)
        core.recovery.wake_missed()

    empty = core.statements(tick)
    lead = core.lead()
    for number in range(8):
        core.idle(lead, f"m{number}")
    assert core.statements(tick) == empty


def test_m16_a_lead_in_a_long_turn_reads_mail_and_notices_at_the_next_step(make_core: MakeCore) -> None:
    core = make_core(max_steps=1_000)
    lead = core.lead("go")
    alice, bob = core.idle(lead, "alice"), core.agent(core.spawn(lead, "bob"))
    boss = core.agent(lead)
    boss.begin()
    seen: dict[int, str] = {}
    for step in range(1, 40):
        boss.ask(READ)
        if step == 10:
            core.act(alice, "send_message", target="lead", message="from alice")
        if step == 20:
            bob.finish("bob is done")
        boss.local_result()
        for message in boss.begin():
            seen[step] = message
    assert {step: text.rsplit("\n", 1)[-1] for step, text in seen.items()} == {10: "from alice", 20: "bob is done"}


def test_m19_what_an_old_team_still_does_stays_there(core: Core) -> None:
    first = core.lead("go")
    core.agent(first).finish()
    core.act(first, "team_task_create", subject="s", description="d")
    agents = [core.agent(core.spawn(first, name)) for name in ("alice", "bob")]
    for agent in agents:
        agent.begin()
    core.sql("UPDATE run SET lease_until = 1")
    core.sessions.close(first)
    second = core.sessions.fork(first, model=None, once=None).id
    before = core.log(second)
    for agent in agents:
        with pytest.raises(TurnFenced):
            agent.call("send_message", target="lead", message="late")
        with pytest.raises(TurnFenced):
            agent.finish("late")
    ends = [data for event in core.log(first) if isinstance(data := event.decoded(), TurnEnded)]
    assert [end.reason for end in ends] == ["completed"]
    assert core.log(second) == before
    assert [member["target"] for member in core.act(second, "list_agents")] == ["lead"]
    assert core.act(second, "team_task_list") == {"tasks": []}
    assert core.run(second) is None
    assert core.refused(SessionId(second), "send_message", target="alice", message="m") == "TEAM_MEMBER_NOT_FOUND"
