"""Hazards of waiting, ending and status: any-of waits, expiry, members that hang, a Lead that is done too soon."""

import pytest

from team.cli.follow import unfinished_work
from team.cli.views import is_settled
from team.model.claims import BackoffRequest
from team.model.content import ToolCallBlock
from team.tools.parameters import DESCRIPTIONS
from tests.integration.conftest import MakeCore
from tests.support.core import Core, code_of, decoded, together

READ = ("read", {"path": "f"})


def test_w03_a_wait_tells_of_one_edge_and_the_caller_reads_the_rest(core: Core) -> None:
    lead = core.lead("go")
    members = [core.agent(core.spawn(lead, name)) for name in ("alice", "bob", "carol")]
    boss = core.agent(lead)
    boss.begin()
    assert boss.wait() == "parked"
    members[0].finish("first")
    assert core.wake(lead) == 1
    boss = core.agent(lead)
    boss.begin()
    assert boss.last_result() == {"timedOut": False}
    statuses = {member["target"]: member["status"] for member in boss.call("list_agents")}
    assert statuses == {"lead": "running", "alice": "inactive", "bob": "running", "carol": "running"}
    assert "read list_agents and team_task_list" in DESCRIPTIONS["wait_agent"]


def test_w03_members_that_are_done_hold_nothing_and_work_again(make_core: MakeCore) -> None:
    core = make_core(max_members=6)
    lead = core.lead()
    names = [f"m{number}" for number in range(6)]
    for name in names:
        core.idle(lead, name)
    for name in names:
        core.act(lead, "send_message", target=name, message="once more")
        assert core.agent(core.sessions.member_session(lead, name)).finish().action == "ended"
    assert core.reading(lambda c: c.exec_driver_sql("SELECT count(*) FROM run").scalar_one()) == 1


def test_w03_members_go_on_when_the_leads_turn_is_cancelled(core: Core) -> None:
    lead = core.lead("go")
    members = [core.agent(core.spawn(lead, name)) for name in ("alice", "bob", "carol")]
    core.agent(lead).begin()
    core.sessions.interrupt(lead, actor="me")
    statuses = {member["target"]: member["status"] for member in core.act(lead, "list_agents")}
    assert statuses == {"lead": "inactive", "alice": "running", "bob": "running", "carol": "running"}
    for agent in members:
        assert agent.finish("done").action == "ended"
    assert len(core.notices(lead)) == 3


def test_w04_expiry_is_a_result_and_what_ends_later_still_reaches_the_lead(core: Core) -> None:
    lead = core.lead("go")
    alice = core.agent(core.spawn(lead, "alice"))
    boss = core.agent(lead)
    boss.begin()
    assert boss.wait(10_000) == "parked"
    assert core.pass_deadlines() == 1
    boss = core.agent(lead)
    boss.begin()
    assert boss.last_result() == {"timedOut": True}
    outcomes = [event.data["outcome"] for event in core.log(lead) if event.type == "tool/result"]
    assert outcomes == ["ok"]
    boss.finish("I stop here")
    assert core.run(lead) is None
    alice.finish("the answer is 385")
    assert "the answer is 385" in core.agent(lead).begin()[0]


@pytest.mark.parametrize(
    ("timeout", "code"),
    [
        ("1", "TEAM_INVALID_TIMEOUT"),
        ("1.5", "TEAM_INVALID_TIMEOUT"),
        ("30000.0", "TEAM_INVALID_TIMEOUT"),
        ('"30000"', "TEAM_INVALID_TIMEOUT"),
        ("true", "TEAM_INVALID_TIMEOUT"),
        ("[30000]", "TEAM_INVALID_TIMEOUT"),
        ("1000000000", "TEAM_INVALID_TIMEOUT"),
        ("1e9", "TEAM_INVALID_TIMEOUT"),
        (str(2**53), "TEAM_INVALID_ARGUMENT"),
        (str(2**63), "TEAM_INVALID_ARGUMENT"),
        ("NaN", "TEAM_INVALID_ARGUMENT"),
        ("null", "waiting"),
    ],
)
def test_w05_a_timeout_of_another_kind_is_a_typed_error(core: Core, timeout: str, code: str) -> None:
    lead = core.lead("go")
    core.spawn(lead, "bob")
    agent = core.agent(lead)
    call = ToolCallBlock(call_id="c", name="wait_agent", arguments=f'{{"timeout_ms":{timeout}}}')
    agent.answer(call, finish="tool-calls")
    result = agent.run_call()
    assert (result.state if code == "waiting" else code_of(decoded(result))) == code
    assert (core.next_deadline_seconds() is not None) == (code == "waiting")
    core.sessions.interrupt(lead, actor="me")
    assert core.next_deadline_seconds() is None


def test_w10_a_member_that_hangs_stops_no_creation(core: Core) -> None:
    lead = core.lead("go")
    for name in ("bob", "carol", "dave"):
        core.idle(lead, name)
    erin = core.agent(core.spawn(lead, "erin"))
    erin.ask(("bash", {"command": "hang"}))
    core.act(lead, "interrupt_agent", target="erin")
    core.act(lead, "send_message", target="erin", message="are you there?")
    boss = core.agent(lead)
    assert core.turns.claim(core.claim_request(core.head(erin.claim.session_id).open_turn)) is None, "it is guarded"
    assert boss.call("spawn_teammate", name="frank", description="d", prompt="p")["member"]["status"] == "running"
    assert core.agent(core.sessions.member_session(lead, "frank")).finish().action == "ended"
    assert core.member(lead, "erin")["status"] == "running"
    assert boss.finish().action in ("ended", "step")


def test_w11_a_lead_that_is_done_too_soon_leaves_an_unfinished_run_and_hears_the_rest(core: Core) -> None:
    lead = core.lead("go")
    boss = core.agent(lead)
    for name in ("alice", "bob"):
        boss.call("spawn_teammate", name=name, description="d", prompt="p")
    assert boss.finish("all done").action == "ended"
    view = core.sessions.team(lead)
    assert not is_settled(view)
    assert {member.target for member in view.members if member.turn is not None} == {"alice", "bob"}
    unfinished = " ".join(unfinished_work(view, reached_limit=True))
    assert "alice" in unfinished
    assert "bob" in unfinished
    for name in ("alice", "bob"):
        agent = core.agent(core.sessions.member_session(lead, name))
        agent.call("send_message", target="lead", message=f"from {name}")
        agent.finish()
    heard = core.agent(lead).begin()
    assert [text.rsplit("\n", 1)[-1] for text in heard] == ["from alice", "from bob"]


def test_w12_a_name_that_is_taken_points_to_its_member(core: Core) -> None:
    lead = core.lead("go")
    core.idle(lead, "alice")
    refused = core.agent(lead).call("spawn_teammate", name="alice", description="d", prompt="p")
    assert code_of(refused) == "TEAM_MEMBER_NAME_TAKEN"
    text = refused["error"]["message"]
    assert "list_agents" in text
    assert "send_message" in text
    assert "delete" not in text.lower()


def test_w13_every_state_of_a_member_reads_differently_and_says_since_when(make_core: MakeCore) -> None:
    core = make_core(settlement="off")
    lead = core.lead()
    core.idle(lead, "idle")
    core.spawn(lead, "queued")
    core.agent(core.spawn(lead, "executing"), "w1").begin()
    core.agent(core.spawn(lead, "orphan"), "w2").begin()
    core.lose_worker(core.sessions.member_session(lead, "orphan"))
    waiter = core.agent(core.spawn(lead, "waiter"))
    waiter.begin()
    waiter.wait()
    paused = core.agent(core.spawn(lead, "paused"))
    paused.begin()
    pause = BackoffRequest(**paused.numbered(), step=1, delay_ms=60_000, reason="HTTP 429")
    core.turns.backoff(paused.ref, pause)
    core.reserve_only(lead, "failing")
    core.recovery.settle_creation(core.head_team(lead), "failing")
    core.reserve_only(lead, "coming")
    seen: dict[str, tuple[str, str | None, list[str], str | None]] = {}
    for member in core.sessions.team(lead).members[1:]:
        turn = member.turn
        assert turn is None or turn.since > 0
        kinds = [wait.kind for wait in turn.waits] if turn else []
        seen[member.target] = (
            member.status,
            turn.state if turn else None,
            kinds,
            turn.reason if turn else member.error,
        )
    assert {name: state[:3] for name, state in seen.items()} == {
        "idle": ("inactive", None, []),
        "queued": ("running", "queued", []),
        "executing": ("running", "running", []),
        "orphan": ("running", "queued", []),
        "waiter": ("running", "parked", ["wait-agent"]),
        "paused": ("running", "parked", ["backoff"]),
        "failing": ("failed", None, []),
        "coming": ("provisioning", None, []),
    }
    for name, words in (("orphan", "worker was lost"), ("paused", "429"), ("failing", "cut off")):
        assert words in (seen[name][3] or "")
    assert len({repr(state) for state in seen.values()}) == len(seen)


def test_l07_who_ends_its_turn_to_wait_is_woken_by_mail_and_not_by_the_board(make_core: MakeCore) -> None:
    core = make_core(settlement="off")
    lead = core.lead()
    alice, bob = core.idle(lead, "alice"), core.idle(lead, "bob")
    for _ in range(2):
        core.act(lead, "team_task_create", subject="s", description="d")
    core.act(bob, "team_task_update", task_id="task-1", expected_revision=1, action="claim")
    core.act(alice, "team_task_update", task_id="task-2", expected_revision=1, action="claim")
    core.act(bob, "team_task_update", task_id="task-1", expected_revision=2, action="complete")
    assert core.run(alice) is None
    assert core.member(lead, "alice")["diagnostics"] == ["inactive, but owns task-2 (in_progress)"]
    core.prompt(lead, "go")
    boss = core.agent(lead)
    boss.begin()
    assert boss.wait() == "step"
    assert boss.last_result()["noProgress"]["reason"] == "no-active-peer"
    boss.call("send_message", target="alice", message="task-1 is done")
    assert core.agent(alice).begin()[0].endswith("task-1 is done")


def test_c03_delayed_turns_wait_in_sql_and_each_comes_back_once_whoever_sweeps(make_core: MakeCore) -> None:
    """Fifty pauses of a provider, their worker gone meanwhile: no message and no process holds one of them."""
    core = make_core()
    leads = [core.lead("go") for _ in range(50)]
    for lead in leads:
        agent = core.agent(lead)
        agent.begin()
        core.turns.backoff(agent.ref, BackoffRequest(**agent.numbered(), step=1, delay_ms=3_600_000, reason="429"))
    assert core.turns.claim(core.claim_request()) is None
    assert core.recovery.expire_waits() == 0

    core.sql("UPDATE wait SET deadline = 0")
    fired = together(core.recovery.expire_waits, core.recovery.expire_waits)
    assert sum(fired) == len(leads)
    claimed = [claim.session_id for _ in leads if (claim := core.turns.claim(core.claim_request())) is not None]
    assert sorted(claimed) == sorted(leads)
    assert core.turns.claim(core.claim_request()) is None
    assert all(core.types(lead).count("turn/resumed") == 1 for lead in leads)
