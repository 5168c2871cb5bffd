"""Runtime rows are deleted by age, a bounded number at a time; what is young stays."""

from collections.abc import Mapping

import pytest
from sqlalchemy import text

from team.log.retention import Records
from team.model.claims import HeartbeatRequest
from team.service import housekeeping
from team.service.callers import Once
from team.service.housekeeping import AGES_SECONDS, Housekeeping
from tests.support.core import Core


def count(core: Core, table: str) -> int:
    return int(core.reading(lambda c: c.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one()))  # noqa: S608 -- names of this file


def age(core: Core, table: str, clock: str, seconds: float) -> None:
    core.sql(f'UPDATE "{table}" SET {clock} = {clock} - :s', s=seconds)  # noqa: S608 -- the same


KINDS: Mapping[Records, tuple[str, str]] = {
    "requests": ("idempotency", "created_at"),
    "writes": ("write", "created_at"),
    "claims": ("claim", "claimed_at"),
    "workers": ("worker", "last_seen"),
}


def fill(core: Core) -> None:
    """One row of each kind."""
    lead = core.lead()
    core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=Once("me", "k", "hash"))
    agent = core.agent(lead)
    agent.begin()
    core.turns.heartbeat(HeartbeatRequest(worker="w1", claims=(), slots=1))


def test_every_kind_of_record_is_deleted_at_its_age_and_not_before(core: Core) -> None:
    fill(core)
    before = {kind: count(core, table) for kind, (table, _) in KINDS.items()}
    assert min(before.values()) > 0
    assert set(KINDS) == set(AGES_SECONDS)
    tidy = Housekeeping(core.store).tidy
    for kind, (table, clock) in KINDS.items():
        age(core, table, clock, AGES_SECONDS[kind] - 60)
    assert tidy() == 0
    for table, clock in KINDS.values():
        age(core, table, clock, 120)
    assert tidy() == sum(before.values())
    assert tidy() == 0


def test_a_pass_is_bounded_and_the_next_one_goes_on(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 25
    for number in range(rows):
        core.sql(
            "INSERT INTO claim (turn_id, epoch, session_id, worker, claimed_at) VALUES (:t, 1, 's', 'w', 1)",
            t=f"turn-{number}",
        )
    monkeypatch.setattr(housekeeping, "BATCH", 4)
    monkeypatch.setattr(housekeeping, "BATCHES", 3)
    tidy = Housekeeping(core.store).tidy
    assert [tidy(), tidy(), tidy(), tidy()] == [12, 12, 1, 0]
