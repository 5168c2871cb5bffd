"""What a worker lets go of is free at once: a guard, a lease, a Session; and nobody is blocked by the telling."""

from sqlalchemy import text

from team.model.claims import HeartbeatRequest, HeartbeatResult, Held
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, codes, together


def tell(core: Core, *stopped: Agent, worker: str = "w1", claims: tuple[Agent, ...] = ()) -> HeartbeatResult:
    return core.turns.heartbeat(
        HeartbeatRequest(
            worker=worker,
            claims=tuple(held(agent) for agent in claims),
            stopped=tuple(held(agent) for agent in stopped),
            slots=1,
        )
    )


def held(agent: Agent) -> Held:
    return Held(turn_id=agent.ref.turn_id, epoch=agent.ref.epoch)


def test_a_claim_that_its_worker_dropped_goes_on_without_waiting_for_its_lease(core: Core) -> None:
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.begin()
    assert core.turns.reap() == 0
    tell(core, agent)
    assert core.turns.reap() == 1
    again = core.agent(lead, "w2")
    assert again.claim.epoch == agent.claim.epoch + 1
    # The word of the old claim comes once more, late.
    tell(core, agent)
    assert core.turns.reap() == 0
    assert again.finish().action == "ended"


def test_an_interrupt_after_a_dropped_claim_guards_nothing(core: Core) -> None:
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.begin()
    tell(core, agent)
    core.sessions.interrupt(lead, actor="me")
    core.prompt(lead, "again")
    assert core.agent(lead, "w2").begin() == ["again"]


def test_only_the_worker_of_a_claim_can_let_go_of_it(core: Core) -> None:
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.begin()
    tell(core, agent, worker="w2")
    assert core.turns.reap() == 0
    assert agent.finish().action == "ended"


def test_guards_are_lifted_before_leases_are_renewed_and_never_under_their_locks(core: Core) -> None:
    first, second = core.lead("go"), core.lead("go")
    interrupted, running = core.agent(first), core.agent(second)
    core.sessions.interrupt(first, actor="me")
    sent = core.statements(lambda: tell(core, interrupted, claims=(running,)))
    changes = [
        place.split()[1].strip('"') if place.startswith("UPDATE") else "commit"
        for place in sent
        if place.startswith(("UPDATE run", "UPDATE session"))
    ]
    assert changes == ["session", "run", "run"]
    commit = core.reading(lambda c: c.execute(text("SELECT count(*) FROM session WHERE guard_turn IS NOT NULL")))
    assert commit.scalar_one() == 0


def test_heartbeats_interrupts_and_claims_of_the_same_sessions_do_not_deadlock(make_core: MakeCore) -> None:
    core, other = make_core(), make_core()
    leads = [core.lead("go") for _ in range(6)]
    agents = [core.agent(lead) for lead in leads]

    def beat() -> None:
        for _ in range(8):
            tell(core, *agents[:3], claims=tuple(agents[3:]))

    def beat_again() -> None:
        for _ in range(8):
            tell(other, *reversed(agents[:3]), claims=tuple(reversed(agents[3:])))

    def interrupt() -> None:
        for lead in [*leads[3:], *leads[:3]]:
            other.sessions.interrupt(lead, actor="me")
            other.prompt(lead, "again")

    def claim() -> None:
        for _ in range(8):
            core.turns.claim(core.claim_request(worker="w2"))
            core.turns.reap()

    assert codes(together(beat, beat_again, interrupt, claim)) == ["ok"] * 4
