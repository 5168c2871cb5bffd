"""Parts of a deployment that end at once and come back: what was accepted goes on without anybody's help."""

import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.site import Site
from tests.support.postgres import PostgresProcess
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

LONG = """
version: 1
default:
  start: choose
  on_message: choose
  states:
    reply: {{say: "re: ${{message.text}}"}}
    work:
      calls:
      - tool: bash
        args: {{timeout_ms: 600000, command: "echo x >> {runs}; while [ ! -e {gate} ]; do sleep 0.1; done"}}
      next: over
    think: {{say: "late", think_ms: 600000}}
    over: {{say: "re: work"}}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ValkeyProcess]:
    server = ValkeyProcess(tmp_path)
    server.start()
    yield server
    server.stop()


Make = Callable[..., Site]


@pytest.fixture
def make(tmp_path: Path, broker: ValkeyProcess) -> Iterator[Make]:
    """Starts sites; ``work`` makes a turn that runs until ``gate`` is there, ``think`` one that never ends."""
    made: list[Site] = []

    def make(database_url: str | None = None, **more: Any) -> Site:
        scenario = LONG.format(runs=tmp_path / "runs", gate=tmp_path / "gate").replace(
            "start: choose\n  on_message: choose",
            "start: &rules\n"
            "  - {when: {message: {contains: again}}, goto: over}\n"
            "  - {when: {message: {contains: work}}, goto: work}\n"
            "  - {when: {message: {contains: think}}, goto: think}\n"
            "  - {goto: reply}\n"
            "  on_message: *rules",
        )
        url = database_url or f"sqlite:///{tmp_path / 'data' / 'team.db'}"
        made.append(Site(tmp_path, url, broker, scenario=scenario, **more))
        return made[-1].start()

    yield make
    for site in made:
        site.close()


def ends(site: Site, session: str) -> list[str]:
    """How its turns ended, in order."""
    return [end["reason"] for end in site.events(session, "turn/end")]


def executing(site: Site, session: str) -> bool:
    turn = site.session(session).get("turn")
    return turn is not None and turn["state"] == "running"


def commands(gate: Path) -> list[psutil.Process]:
    """Processes of commands that wait for the gate."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if any(str(gate) in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


PARTS = ("worker", "coordinator", "broker", "database", "everything")


@pytest.mark.parametrize("part", PARTS)
def test_r05_m20_a_restart_lets_running_and_waiting_work_go_on_by_itself(
    make: Make, postgres: PostgresProcess, postgres_url: str, tmp_path: Path, part: str
) -> None:
    lost = part in ("worker", "everything")
    # A claim outlives a restart of the others; a lost worker's is to be over soon.
    site = make(postgres_url, variables={"TEAM_SLOTS": "1", "TEAM_LEASE_SECONDS": "2" if lost else "60"})
    idle = site.lead("hello")
    site.answered(idle, "hello")
    busy = site.lead("work")
    site.until((tmp_path / "runs").exists, "the command", 30)
    # The only slot is taken: this one waits for a wake that nobody may lose.
    site.say(idle, "waiting")

    if part == "everything":
        site.supervised = False
        for process in site.processes:
            process.send(signal.SIGKILL)
        wait_until(lambda: all(process.pid is None for process in site.processes), "everything to be gone")
    if part in ("broker", "everything"):
        site.broker.kill()
        site.broker.start()
    if part in ("database", "everything"):
        postgres.restart()
    if part == "everything":
        site.supervised = True
    if part == "worker":
        site.restart(site.workers["one"])
    if part == "coordinator":
        site.restart(site.coordinator)
    (tmp_path / "gate").touch()

    site.ready()
    site.answered(idle, "hello", "waiting")
    site.answered(busy, "work")
    site.say(idle, "afterwards")
    site.answered(idle, "afterwards")
    assert ends(site, busy) == ["completed"]
    assert len(site.events(idle, "turn/start")) == 3
    # A command is never run again by itself; after a lost worker its outcome is told as unknown.
    assert (tmp_path / "runs").read_text() == "x\n"
    outcomes = [result["outcome"] for result in site.events(busy, "tool/result")]
    assert outcomes == ["unknown" if lost else "ok"], site.tails()
    site.is_sound()


def test_w08_c07_an_interrupt_reaches_a_silent_model_a_command_and_a_queued_turn_without_the_broker(
    make: Make, tmp_path: Path
) -> None:
    site = make()
    thinking, working = site.lead("think"), site.lead("work")
    site.until(lambda: commands(tmp_path / "gate") and executing(site, thinking), "both", 40)
    queued = site.lead("queued behind both")
    site.links.change("broker", "silent")
    for session in (thinking, working, queued):
        site.post(f"/v1/sessions/{session}/interrupt")
    wait_until(lambda: not commands(tmp_path / "gate"), "the end of the command", 10)
    site.links.change("broker", "open")
    for session in (thinking, working):
        site.say(session, "again")
        site.until(lambda s=session: ends(site, s) == ["aborted", "completed"], "the turn after the interrupt")
    # Its turn never began. What was asked waits for the next word, as after every interrupt.
    assert (ends(site, queued), site.events(queued, "step/start")) == (["aborted"], [])
    site.say(queued, "now")
    site.answered(queued, "queued behind both", "now")
    assert ends(site, queued) == ["aborted", "completed", "completed"]
    assert "late" not in site.said(thinking)
    site.is_sound()


def test_c07_an_interrupt_with_all_workers_down_or_shutting_down_is_a_fact(make: Make, tmp_path: Path) -> None:
    site = make(variables={"TEAM_DRAIN_SECONDS": "60"})
    working = site.lead("work")
    site.until(lambda: commands(tmp_path / "gate"), "the command", 40)
    site.supervised = False
    worker = site.workers["one"]
    worker.send(signal.SIGTERM)
    wait_until(lambda: "worker hands over" in worker.log.read_text(), "the hand-over to begin")
    # While it drains: the step that it would finish for a minute ends now, and with it the worker.
    site.post(f"/v1/sessions/{working}/interrupt")
    wait_until(lambda: worker.pid is None, "the worker to end", 20)
    assert not commands(tmp_path / "gate")
    # While nobody is there.
    queued = site.lead("never asked")
    site.post(f"/v1/sessions/{queued}/interrupt")
    for _ in range(50):
        assert site.post(f"/v1/sessions/{queued}/interrupt")
    assert (ends(site, queued), site.events(queued, "step/start")) == (["aborted"], [])
    site.supervised = True
    site.say(queued, "now")
    site.answered(queued, "never asked", "now")
    assert ends(site, queued) == ["aborted", "completed", "completed"]
    assert ends(site, working) == ["aborted"]
    site.is_sound()


def test_c10_a_wake_starts_while_any_slot_is_free_and_queued_ones_as_soon_as_one_is(make: Make, tmp_path: Path) -> None:
    site = make(workers=("one", "two"), variables={"TEAM_SLOTS": "1"})
    busy = site.lead("work")
    site.until(lambda: commands(tmp_path / "gate"), "the command", 40)
    for number in range(3):
        other = site.lead(f"quick {number}")
        site.answered(other, f"quick {number}", deadline=15)
    held = site.lead("think")
    wait_until(lambda: executing(site, held), "the second slot to be taken", 20)
    waiting = [site.lead(f"waiting {number}") for number in range(3)]
    assert not any(executing(site, session) for session in waiting)
    (tmp_path / "gate").touch()
    for number, session in enumerate(waiting):
        site.answered(session, f"waiting {number}", deadline=15)
    site.answered(busy, "work")


def test_r09_a_turn_that_no_worker_serves_is_queued_visibly_and_runs_once_there_is_one(make: Make) -> None:
    site = make(workers=())
    stranger = site.add_worker("stranger", TEAM_QUEUES="another")
    wait_until(lambda: "worker ready" in stranger.log.read_text(), "the stranger", 30)
    lead = site.lead("hello")
    turn = site.session(lead)["turn"]
    assert turn["state"] == "queued"
    assert turn.get("worker") is None
    client: Any = site.broker.client()
    # It is sent again and again, and nobody takes it.
    wait_until(lambda: client.llen("site:turns") >= 2, "a second dispatch", 20)
    client.close()
    assert site.session(lead)["turn"]["state"] == "queued"
    site.add_worker("ours")
    site.answered(lead, "hello")
    assert site.session(lead)["workers"] == ["ours"]


def test_r10_a_closed_team_leaves_no_process_and_nothing_comes_back(make: Make, tmp_path: Path) -> None:
    site = make(variables={"TEAM_SLOTS": "4"})
    lead = site.lead("hello")
    site.answered(lead, "hello")
    for name in ("alice", "bob"):
        site.tool(lead, "lead", "spawn_teammate", name=name, description="d", prompt="work")
    site.until(lambda: len(commands(tmp_path / "gate")) >= 2, "both commands", 40)
    site.post(f"/v1/teams/{lead}/close")
    wait_until(lambda: not commands(tmp_path / "gate"), "every process of the Team to be gone", 15)
    site.restart(site.coordinator, site.workers["one"])
    site.ready()
    other = site.lead("another team")
    site.answered(other, "another team")
    team = site.get(f"/v1/teams/{lead}")
    assert [member.get("turn") for member in team["members"]] == [None, None, None]
    assert not commands(tmp_path / "gate")
    site.is_sound()


POINTS = ["before-commit", "after-commit", "before-publish", "after-publish"]


@pytest.mark.parametrize("point", POINTS)
def test_p03_s02_a_coordinator_killed_around_commit_and_publication_loses_and_repeats_nothing(
    make: Make, point: str
) -> None:
    site = make()
    lead = site.lead("hello")
    site.answered(lead, "hello")
    site.arm(point)
    key = {"Idempotency-Key": f"once-{point}"}

    def send() -> bool:
        """As a client does: again, with the same key, until there is an answer."""
        try:
            body = {"text": "across the kill"}
            return site.client.post(f"/v1/sessions/{lead}/messages", json=body, headers=key).is_success
        except Exception:  # noqa: BLE001 -- a cut connection, or nobody there
            return False

    site.until(send, "the message to be accepted")
    wait_until(lambda: site.coordinator.deaths, f"the kill at {point}", 20)
    site.ready()
    site.answered(lead, "across the kill")
    assert site.coordinator.deaths[0].code == -signal.SIGKILL
    site.is_sound()
    with sqlite3.connect(site.directory / "data" / "team.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
def test_r03_a_coordinator_killed_at_any_commit_of_a_creation_leaves_an_active_or_a_failed_member(
    make: Make, point: str
) -> None:
    """By idempotency key the call joins what its first try began; by recovery what nobody asks for is settled."""
    site = make(workers=(), variables={"TEAM_SWEEP_SECONDS": "0"})
    lead = site.lead()
    # Once more for each name: a creation has several transactions, and each kill meets whichever comes next.
    for name in ("alice", "bob", "carol"):
        site.arm(point)
        _try_spawn(site, lead, name)
        wait_until(lambda: not site.armed(point), "the kill", 20)
        site.ready()
    assert site.coordinator.deaths

    def settled() -> bool:
        members = site.get(f"/v1/teams/{lead}")["members"]
        return all(member.get("phase") != "provisioning" for member in members)

    wait_until(settled, "every creation to be settled", 40)
    site.add_worker("late")
    for member in site.get(f"/v1/teams/{lead}")["members"][1:]:
        name, phase = member["target"], member["phase"]
        assert phase in ("active", "failed")
        if phase == "active":
            wait_until(lambda n=name: _replies(site, lead, n), f"{name} to answer its prompt once", 40)
    site.is_sound()


def _try_spawn(site: Site, lead: str, name: str) -> None:
    try:
        site.client.post(
            f"/v1/teams/{lead}/members/lead/tools/spawn_teammate",
            json={"name": name, "description": "d", "prompt": f"hello {name}"},
        )
    except Exception:  # noqa: BLE001 -- the coordinator was killed under the request
        return


def _replies(site: Site, lead: str, name: str) -> bool:
    member = next(item for item in site.get(f"/v1/teams/{lead}")["members"] if item["target"] == name)
    return site.said(member["sessionId"]) == [f"re: hello {name}"]
