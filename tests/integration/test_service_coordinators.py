"""Several coordinators over one store: each sees what the others commit, and no database lock reaches a caller."""

from collections.abc import Callable

from team.model.content import TextBlock
from tests.integration.conftest import MakeCore
from tests.support.core import Core, codes, together


def test_s01_many_writers_of_one_team_neither_fail_nor_lose_anything(make_core: MakeCore) -> None:
    cores = [make_core(max_inbox=1_000) for _ in range(4)]
    lead = cores[0].lead("go")
    bob = cores[0].spawn(lead, "bob")

    def work(core: Core, name: str) -> Callable[[], None]:
        def many() -> None:
            for number in range(6):
                core.act(lead, "team_task_create", subject=f"{name} {number}", description="d")
                core.act(bob, "send_message", target="lead", message=f"{name} {number}")

        return many

    jobs = [work(core, f"{place}-{half}") for place, core in enumerate(cores) for half in "ab"]
    assert codes(together(*jobs)) == ["ok"] * 8
    tasks = cores[1].act(lead, "team_task_list", limit=100)["tasks"]
    assert [task["id"] for task in tasks] == [f"task-{number}" for number in range(1, 49)]
    assert len({task["subject"] for task in tasks}) == 48
    assert cores[2].head(lead).pending == 49


def test_writers_of_different_teams_do_not_disturb_each_other(make_core: MakeCore) -> None:
    cores = [make_core() for _ in range(4)]
    leads = [core.lead() for core in cores]

    def work(core: Core, lead: str) -> Callable[[], None]:
        def many() -> None:
            for number in range(8):
                core.act(lead, "team_task_create", subject=str(number), description="d")

        return many

    assert codes(together(*(work(core, lead) for core, lead in zip(cores, leads, strict=True)))) == ["ok"] * 4
    for lead in leads:
        assert cores[0].head(lead).last_task_number == 8


def test_a_turn_goes_on_through_another_coordinator(make_core: MakeCore) -> None:
    one, other = make_core(), make_core()
    lead = one.lead("go")
    agent = one.agent(lead)
    agent.call("team_task_create", subject="s", description="d")
    agent.core = other
    assert agent.call("team_task_get", task_id="task-1")["revision"] == 1
    assert agent.finish().action == "ended"


def test_loops_of_several_coordinators_do_each_thing_once(make_core: MakeCore) -> None:
    cores = [make_core() for _ in range(3)]
    for _ in range(4):
        lead = cores[0].lead("go")
        bob = cores[0].spawn(lead, "bob")
        boss, mate = cores[0].agent(lead), cores[0].agent(bob)
        boss.begin()
        assert boss.wait() == "parked"
        mate.answer(TextBlock(text="x"))
        cores[0].act(lead, "team_task_create", subject="s", description="d")
        assert sum(together(*(core.recovery.wake_missed for core in cores))) == 1
        cores[0].sql("UPDATE run SET lease_until = 1 WHERE session_id = :s", s=bob)
        assert sum(together(*(core.turns.reap for core in cores))) == 1
        cores[0].sql("UPDATE run SET next_dispatch_at = 1 WHERE state = 'queued'")
        due = together(*(lambda core=core: core.recovery.due_dispatches(50) for core in cores))
        assert codes(due) == ["ok"] * 3
        assert {item.member for found in due for item in found} == {"lead", "bob"}
        assert cores[1].recovery.due_dispatches(50) == []
        cores[0].sessions.close(lead)


def test_deadlocks_of_the_database_stay_inside(make_core: MakeCore) -> None:
    """Messages in both directions, prompts, ends of turns and interrupts take several rows each."""
    cores = [make_core(settlement="always", max_inbox=1_000) for _ in range(3)]
    lead = cores[0].lead("go")
    bob, carol = cores[0].spawn(lead, "bob"), cores[0].spawn(lead, "carol")

    def messages() -> None:
        for _ in range(8):
            cores[0].act(bob, "send_message", target="carol", message="m")
            cores[0].act(carol, "send_message", target="bob", message="m")

    def prompts() -> None:
        for _ in range(8):
            cores[1].prompt(carol, "p")
            cores[1].prompt(lead, "p", steer=True)

    def turns() -> None:
        for _ in range(6):
            claim = cores[2].turns.claim(cores[2].claim_request())
            if claim is not None:
                cores[2].agent_of(claim).finish()

    def interrupts() -> None:
        for _ in range(4):
            cores[1].act(lead, "interrupt_agent", target="bob")
            cores[1].sessions.interrupt(carol, actor="me")
            cores[1].recovery.wake_missed()

    outcomes = codes(together(messages, prompts, turns, interrupts, messages))
    assert set(outcomes) <= {"ok", "TURN_FENCED"}
    assert outcomes[0] == outcomes[1] == outcomes[3] == outcomes[4] == "ok"
