"""Hazards of the roster and the board that need whole Teams: who may call what, replacements, lost contexts, queues."""

import json
from typing import Any

import pytest

from team.model.content import ToolCallBlock
from team.model.events import SubagentDescribed
from tests.integration.conftest import MakeCore
from tests.integration.test_service_provisioning import child
from tests.support.core import Core, code_of, decoded

UPDATE: dict[str, Any] = {"task_id": "task-1", "expected_revision": 1}
TOOLS: dict[str, dict[str, Any]] = {
    "list_agents": {},
    "team_task_list": {},
    "team_task_get": {"task_id": "task-1"},
    "team_task_create": {"subject": "s", "description": "d"},
    "team_task_update": {**UPDATE, "action": "claim"},
    "send_message": {"target": "carol", "message": "m"},
    "interrupt_agent": {"target": "carol"},
    "spawn_teammate": {"name": "dave", "description": "d", "prompt": "p"},
}


def test_r08_every_tool_by_every_kind_of_caller(core: Core) -> None:
    lead = core.lead()
    bob = core.idle(lead, "bob")
    core.idle(lead, "carol")
    failed = core.reserve_only(lead, "erin")
    child(core, failed, lead, SubagentDescribed(mode="continuable", provider="fresh", label="erin"))
    core.recovery.settle_creation(core.head_team(lead), "erin")
    child(core, "helper", lead, SubagentDescribed(mode="one-shot", provider="fresh", label="helper"))
    core.act(lead, "team_task_create", subject="s", description="d")
    for tool, arguments in TOOLS.items():
        for stranger in (failed, "helper"):
            assert (tool, core.refused(stranger, tool, **arguments)) == (tool, "TEAM_NOT_MEMBER")
    for tool in ("interrupt_agent", "spawn_teammate"):
        assert core.refused(bob, tool, **TOOLS[tool]) == "TEAM_LEAD_REQUIRED"
    for tool, arguments in TOOLS.items():
        if tool not in ("interrupt_agent", "spawn_teammate"):
            core.act(bob, tool, **arguments)
    core.act(lead, "team_task_update", **{**UPDATE, "expected_revision": 2, "action": "release"})
    for tool, arguments in TOOLS.items():
        core.act(lead, tool, **{**arguments, **({"expected_revision": 3} if tool == "team_task_update" else {})})


def test_r08_a_refusal_of_authority_says_what_to_do_instead(core: Core) -> None:
    agent = core.agent(core.spawn(core.lead(), "bob"))
    refused = agent.call("spawn_teammate", **TOOLS["spawn_teammate"])
    assert code_of(refused) == "TEAM_LEAD_REQUIRED"
    assert "send the Lead a message" in refused["error"]["message"]


def test_r04_after_a_death_the_name_is_taken_a_new_one_works_and_the_old_member_resumes(core: Core) -> None:
    lead = core.lead("go")
    bob = core.spawn(lead, "bob", "count the files")
    agent = core.agent(bob, "w1")
    agent.ask(("bash", {"command": "ls"}))
    core.lose_worker(bob)
    boss = core.agent(lead)
    again = {"name": "bob", "description": "d", "prompt": "p"}
    assert code_of(boss.call("spawn_teammate", **again)) == "TEAM_MEMBER_NAME_TAKEN"
    assert boss.call("spawn_teammate", **{**again, "name": "bob-2"})["member"]["target"] == "bob-2"
    assert boss.call("send_message", target="bob", message="go on")["status"] == "accepted"
    assert core.types(bob).count("turn/start") == 1
    resumed = core.agent(bob, "w2")
    assert [call.name for call in resumed.claim.pending] == ["bash"]
    assert "count the files" in json.dumps([entry.model_dump(mode="json") for entry in resumed.history])
    resumed.local_result(outcome="unknown", content="lost")
    assert resumed.begin()[0].endswith("go on")
    assert len(core.sessions.page(None, 10)[0]) == 3


def test_r06_tools_alone_tell_a_lead_that_has_forgotten_everything_about_its_team(core: Core) -> None:
    lead = core.lead("go")
    bob = core.idle(lead, "bob")
    core.spawn(lead, "carol")
    core.act(lead, "team_task_create", subject="a", description="d", write_scopes=["src"])
    core.act(lead, "team_task_create", subject="b", description="d", blocked_by=["task-1"])
    core.act(bob, "team_task_update", **{**UPDATE, "action": "claim"})
    core.act(bob, "send_message", target="lead", message="half way")
    agent = core.agent(lead, "cold")
    sender = agent.begin()[-1].split(" from ", 1)[1].split(":", 1)[0]
    roster = {member["target"]: (member["status"], member["description"]) for member in agent.call("list_agents")[1:]}
    board = agent.call("team_task_list")["tasks"]
    wire = core.sessions.team(lead)
    assert roster == {member.target: (member.status, member.description) for member in wire.members[1:]}
    assert board == [task.to_wire() for task in wire.tasks]
    assert sender in roster
    assert agent.call("send_message", target=sender, message="go on")["status"] == "accepted"


def test_r09_a_turn_that_no_worker_asks_for_stays_queued_for_all_to_see(make_core: MakeCore) -> None:
    core = make_core(dispatch_backoff_seconds=1.0, dispatch_backoff_max_seconds=8.0)
    lead = core.lead()
    bob = core.spawn(lead, "bob")
    assert core.turns.claim(core.claim_request(queues=("another-queue",))) is None
    delays: list[float] = []
    for _ in range(5):
        core.sql("UPDATE run SET next_dispatch_at = 1")
        assert [queued.member for queued in core.recovery.due_dispatches(10)] == ["bob"]
        run = core.run(bob)
        assert run is not None
        assert run.next_dispatch_at is not None
        delays.append(run.next_dispatch_at)
    now = core.reading(core.database.now)
    assert [round(at - now) for at in delays[-2:]] == [8, 8], "it is hinted at again and again, ever more rarely"
    turn = core.sessions.view(bob).turn
    assert turn is not None
    assert (turn.state, turn.worker, turn.reason) == ("queued", None, "delegation message")
    assert core.sessions.workers() == []
    assert core.agent(bob).finish().action == "ended"


def test_t05_many_blockers_are_checked_all_or_none(make_core: MakeCore) -> None:
    core = make_core(max_tasks=400)
    lead = core.lead()
    for _ in range(301):
        core.act(lead, "team_task_create", subject="s", description="d")
    blockers = [f"task-{number}" for number in range(1, 301)]
    wanted = {"task_id": "task-301", "expected_revision": 1, "action": "set_dependencies"}
    missing = core.refused(lead, "team_task_update", **wanted, blocked_by=[*blockers, "task-999"])
    assert (missing, core.task(lead, "task-301")["blockedBy"]) == ("TEAM_TASK_NOT_FOUND", [])
    assert core.act(lead, "team_task_update", **wanted, blocked_by=blockers)["openBlockers"] == blockers
    surplus = [f"task-{number}" for number in range(10_000)]
    assert core.refused(lead, "team_task_create", subject="s", description="d", blocked_by=surplus) == (
        "TEAM_TASK_NOT_FOUND"
    )


@pytest.mark.parametrize(
    "field", ['"limit":0', '"limit":-1', '"limit":101', '"limit":1.5', '"limit":"5"', '"limit":true']
)
def test_t17_a_page_of_another_size_is_a_typed_error(core: Core, field: str) -> None:
    agent = core.agent(core.lead("go"))
    agent.answer(ToolCallBlock(call_id="c", name="team_task_list", arguments=f"{{{field}}}"), finish="tool-calls")
    assert code_of(decoded(agent.run_call())) == "TEAM_INVALID_ARGUMENT"


@pytest.mark.parametrize("cursor", ['"0"', '"task-0"', '"next"', "1", "1.5", '""', '"task-1 "', f'"task-{2**53}"'])
def test_t17_a_foreign_cursor_is_a_typed_error(core: Core, cursor: str) -> None:
    agent = core.agent(core.lead("go"))
    call = ToolCallBlock(call_id="c", name="team_task_list", arguments=f'{{"cursor":{cursor}}}')
    agent.answer(call, finish="tool-calls")
    assert code_of(decoded(agent.run_call())) == "TEAM_INVALID_ARGUMENT"


@pytest.mark.parametrize("subject", ["", " ", "\n\t", "x" * 201])
def test_t14_a_subject_is_never_empty_and_never_too_long(core: Core, subject: str) -> None:
    lead = core.lead()
    core.act(lead, "team_task_create", subject="s", description="d")
    assert core.refused(lead, "team_task_create", subject=subject, description="d") == "TEAM_INVALID_ARGUMENT"
    edit = {**UPDATE, "action": "edit", "subject": subject}
    assert core.refused(lead, "team_task_update", **edit) == "TEAM_INVALID_ARGUMENT"
    assert core.task(lead, "task-1")["revision"] == 1
