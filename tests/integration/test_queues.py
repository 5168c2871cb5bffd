"""Queues by capability: a profile places turns, a queue that nobody serves is told and delays no other."""

from pathlib import Path
from typing import Final

import pytest

from config.profiles import ProfileError, load_profile
from config.settings import Settings
from team.cli.views import Executing, WorkerView, unserved_queues
from team.dispatch.loops import Loops
from team.dispatch.outbox import Outbox
from team.log.transaction import Queued
from team.model.claims import ClaimRequest, HeartbeatRequest
from team.model.ids import TeamId, TurnId
from team.service.housekeeping import Housekeeping
from tests.integration.conftest import MakeCore
from tests.support.core import Core, empty
from tests.support.transfers import export, import_
from tests.support.valkey import ValkeyProcess

PROFILE: Final = """
description = "A Team with a large machine and one with a browser."
tools = ["spawn_teammate", "send_message", "list_agents", "wait_agent"]
prompt = ["Work."]

[queues]
lead = "small"
"tester-*" = "browser"
"*" = "big"
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "placed.toml").write_text(PROFILE)
    return folder


@pytest.fixture
def core(make_core: MakeCore, profiles: Path) -> Core:
    return make_core(profile_dir=profiles)


def placed_team(core: Core) -> dict[str, str]:
    """A Lead with two members; the queue of each by its name."""
    lead = core.lead("go", profile="placed")
    for name in ("tester-one", "builder"):
        core.spawn(lead, name)
    return {member.target: member.turn.queue for member in core.sessions.team(lead).members if member.turn}


def claim(core: Core, *queues: str) -> str | None:
    request = ClaimRequest(request_id=f"r-{queues}", worker="w", queues=queues)
    claimed = core.turns.claim(request)
    return None if claimed is None else claimed.member


def test_members_are_placed_by_the_first_pattern_of_their_profile_that_matches(core: Core) -> None:
    assert placed_team(core) == {"lead": "small", "tester-one": "browser", "builder": "big"}
    assert {queued.member: queued.queue for effects in core.effects for queued in effects.queued} == {
        "lead": "small",
        "tester-one": "browser",
        "builder": "big",
    }


def test_a_worker_gets_turns_of_its_own_queues_only(core: Core) -> None:
    placed_team(core)
    assert claim(core, "turns", "browser") == "tester-one"
    assert claim(core, "turns", "browser", "other") is None
    assert claim(core, "small") == "lead"


def test_a_turn_that_comes_back_stays_on_its_queue(core: Core) -> None:
    placed_team(core)
    request = ClaimRequest(request_id="r", worker="w", queues=("big",))
    claimed = core.turns.claim(request)
    assert claimed is not None
    core.lose_worker(claimed.session_id)
    assert claim(core, "turns", "small", "browser") in {"lead", "tester-one"}
    assert claim(core, "big") == "builder"


def test_an_imported_turn_is_placed_by_the_profile_of_where_it_goes_on(
    core: Core, make_core: MakeCore, profiles: Path
) -> None:
    placed_team(core)
    row = core.sessions.page(None, 10)[0][0]
    lines = export(core, row.id)
    empty(core.database)
    other = make_core(profile_dir=profiles)
    import_(other, lines)
    turns = {member.target: member.turn for member in other.sessions.team(TeamId(row.id)).members}
    assert {name: turn.queue for name, turn in turns.items() if turn} == {
        "lead": "small",
        "tester-one": "browser",
        "builder": "big",
    }


@pytest.mark.parametrize("queue", ["", "a,b", "Big", "unacked", "edge", "ping-1", "x" * 65, "a b", "a\\n"])
def test_a_profile_cannot_name_a_queue_that_the_broker_would_confuse(profiles: Path, queue: str) -> None:
    (profiles / "bad.toml").write_text(PROFILE.replace('"big"', f'"{queue}"'))
    with pytest.raises(ProfileError, match="queues"):
        load_profile("bad", profiles)


def test_r09_a_queue_that_no_worker_serves_is_told(core: Core) -> None:
    placed_team(core)
    lead = TeamId(core.sessions.page(None, 10)[0][0].id)
    beat = HeartbeatRequest(worker="w", claims=(), slots=2, queues=("turns", "small"))
    core.turns.heartbeat(beat)
    assert [worker.queues for worker in core.sessions.workers()] == [("turns", "small")]
    assert core.sessions.served_queues() == {"turns": 1, "small": 1}
    workers = [WorkerView(name=row.name, slots=row.slots, queues=row.queues) for row in core.sessions.workers()]
    assert unserved_queues(core.sessions.team(lead).members, workers) == ["big", "browser"]
    assert unserved_queues(core.sessions.team(lead).members, []) == ["big", "browser", "small"]
    busy = [WorkerView(name="w", queues=("small", "big", "browser"), executing=(Executing(turn_id="t"),))]
    assert unserved_queues(core.sessions.team(lead).members, busy) == []


def test_r09_a_full_queue_that_nobody_serves_delays_no_other(core: Core, valkey: ValkeyProcess) -> None:
    placed_team(core)
    settings = Settings(broker_url=valkey.url, key_prefix="queues:", dispatch_backoff_seconds=0.001)
    outbox = Outbox(settings)
    loops = Loops(settings, outbox, core.turns, core.recovery, Housekeeping(core.store))
    outbox.publish_turns([Queued(TurnId("turn-0"), TeamId("t"), "builder", "big")] * 3)
    core.sql("UPDATE run SET next_dispatch_at = 0")
    assert loops.dispatch_due() == 2
    assert [outbox.queue_length(name) for name in ("small", "browser", "big")] == [1, 1, 3]
    # A queue is a list without a TTL: the broker's check of left keys knows the default one only.
    valkey.flush()
