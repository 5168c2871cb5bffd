"""Turns survive the loss of whatever runs them, on a real stack: the bounds that docs/faults.md promises."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.cluster import Cluster
from tests.faults.scenario import scenario_text
from tests.faults.store import Onlooker, Running
from tests.faults.workload import Person, Told
from tests.support.coordinator import OPERATOR_TOKEN
from tests.support.invariants import assert_sound_store
from tests.support.postgres import PostgresProcess
from tests.support.waiting import wait_until

LEASE_SECONDS = 3.0
_END_SECONDS = 150.0

pytestmark = pytest.mark.timeout(600)

MakeStack = Callable[..., "Stack"]


class Stack:
    """A cluster with an onlooker, and one Session in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.start()
        self.onlooker = Onlooker(cluster.database_url)
        self.http = httpx2.Client(
            base_url=cluster.public_url,
            headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            timeout=10,
            trust_env=False,
        )

    def close(self) -> None:
        self.http.close()
        self.onlooker.close()
        self.cluster.close()

    def prompt(self, profile: str = "base") -> str:
        """A Session that has work."""
        body = {"cwd": str(self.cluster.checkout), "profile": profile, "prompt": "go"}
        response = self.http.post("/v1/sessions", json=body)
        assert response.status_code == httpx2.codes.CREATED, response.text
        return response.json()["id"]

    def running(self) -> Running | None:
        """The one turn, while a worker executes it."""
        return next((turn for turn in self.onlooker.open_turns() or [] if turn.state == "running"), None)

    def member(self, lead: str, name: str) -> str:
        """The Session of the Lead's teammate, once there is one."""

        def find() -> str | None:
            members = self.http.get(f"/v1/teams/{lead}").json()["members"]
            return next(
                (one["sessionId"] for one in members if (one["target"], one["phase"]) == (name, "active")), None
            )

        found = wait_until(find, f"the member {name}", 30)
        assert found is not None
        return found

    def claims(self) -> list[tuple[int, str, float]]:
        """(epoch, worker, time on the database's clock) of every claim, in order."""

        def find(connection: Any) -> list[tuple[int, str, float]]:
            rows = connection.exec_driver_sql("SELECT epoch, worker, claimed_at FROM claim ORDER BY claimed_at, epoch")
            return [(row[0], row[1], row[2]) for row in rows]

        return self.onlooker.patiently(find)

    def now(self) -> float:
        """The database's clock."""
        return self.onlooker.patiently(self.onlooker.clock)

    def events(self, session: str) -> list[dict[str, Any]]:
        return self.http.get(f"/v1/sessions/{session}/events", params={"limit": 1000}).json()["events"]

    def finish(self, people: list[Person], told: Told) -> None:
        """Every job is answered, and the store is sound."""
        for person in people:
            person.finishing.set()
        wait_until(lambda: not any(person.is_alive() for person in people), "every job to be answered", _END_SECONDS)
        assert [person.fault for person in people if person.fault is not None] == []
        wait_until(lambda: self.onlooker.open_turns() == [], "every turn to end", _END_SECONDS)
        assert {job.answers for job in told.jobs.values()} == {1}
        assert told.refused + told.contradictions == []
        self.onlooker.patiently(assert_sound_store)

    def work(self, jobs: int) -> tuple[list[Person], Told]:
        """One person with a Team; returns once so many jobs were given."""
        told = Told()
        people = [Person(1, self.cluster.public_url, self.onlooker, told, str(self.cluster.checkout))]
        for person in people:
            person.start()
        wait_until(lambda: len(told.jobs) >= jobs, f"{jobs} jobs", _END_SECONDS)
        return people, told


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[MakeStack]:
    made: list[Stack] = []

    def make(scenario: str, database: PostgresProcess | None = None, **options: Any) -> Stack:
        file = tmp_path / "scenario.yaml"
        file.write_text(scenario)
        chosen: dict[str, Any] = {"lease_seconds": LEASE_SECONDS} | options
        cluster = Cluster(tmp_path / "stack", database, model=f"script:{file}", **chosen)
        try:
            made.append(Stack(cluster))
        except BaseException:
            cluster.close()
            raise
        return made[-1]

    yield make
    for stack in made:
        stack.close()


LONG = """
version: 1
default:
  start: first
  states:
    first: {think_ms: 600000}
"""


def test_c04_a_turn_whose_worker_was_killed_runs_again_within_lease_and_a_second(make_stack: MakeStack) -> None:
    """The best of a few kills: the bound is the product's, not that of a machine with other work."""
    stack = make_stack(LONG, workers=2)
    stack.prompt()
    waited: list[float] = []
    for _ in range(3):
        turn = wait_until(stack.running, "a claim", 30)
        assert turn is not None
        victim = next(worker for worker in stack.cluster.workers if worker.name == turn.worker)
        killed_at = stack.now()
        assert victim.send(signal.SIGKILL)
        wait_until(lambda turn=turn: len(stack.claims()) > turn.epoch, "the next claim", 60)
        waited.append(stack.claims()[turn.epoch][2] - killed_at)
        if waited[-1] <= LEASE_SECONDS + 1:
            break
        wait_until(lambda victim=victim: "worker ready" in victim.words(), "the worker to be back", 120)
    assert min(waited) <= LEASE_SECONDS + 1, waited


CALM = """
version: 1
default:
  start: first
  states:
    first:
      calls: [{tool: bash, args: {command: "echo once >> calls"}}]
      next: think
    think: {say: done, think_ms: %d}
"""


def test_c09_a_worker_in_a_long_model_call_hands_over_and_no_call_is_repeated(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(CALM % 60_000, workers=1, variables={"TEAM_DRAIN_SECONDS": "2"})
    session = stack.prompt()
    calls = stack.cluster.checkout / "calls"
    wait_until(calls.exists, "the command", 30)
    wait_until(lambda: [event["type"] for event in stack.events(session)][-1:] == ["step/start"], "the model call", 30)
    # The next worker reads a quicker scenario: what is at stake is that it gets the turn.
    (tmp_path / "scenario.yaml").write_text(CALM % 100)
    worker = stack.cluster.workers[0]
    asked_at = stack.now()
    assert worker.send(signal.SIGTERM)
    wait_until(lambda: worker.deaths, "the worker to end", 2 + LEASE_SECONDS + 20)
    assert worker.deaths[0].code == 0
    wait_until(lambda: stack.onlooker.open_turns() == [], "the turn to end elsewhere", 40)
    types = [event["type"] for event in stack.events(session)]
    assert types.count("tool/call") == types.count("tool/result") == 1
    assert types[-1] == "turn/end"
    assert calls.read_text() == "once\n"
    assert [epoch for epoch, _worker, _at in stack.claims()] == [1, 2]
    # Released, not lost: its lease was renewed up to then, and nobody had to wait for its end.
    assert "turn handed over" in worker.words(everything=True)
    assert "its worker was lost" not in stack.cluster.coordinators[0].words(everything=True)
    assert stack.claims()[1][2] > asked_at


POISON = """
version: 1
members:
  lead:
    start: choose
    on_message: heard
    states:
      choose:
        say: spawning
        calls: [{tool: spawn_teammate, args: {name: bob, description: Breaks, prompt: Break it.}}]
        next: over
      heard: {say: "heard ${message.text}"}
      over: {say: done}
  bob:
    start: &bob
    - {when: {message: {contains: again}}, goto: whole}
    - {goto: hang}
    on_message: *bob
    states:
      hang: {think_ms: 600000}
      whole: {say: whole}
"""


def test_c06_a_member_whose_turn_loses_each_worker_ends_as_poison_and_is_of_use_again(make_stack: MakeStack) -> None:
    stack = make_stack(POISON, workers=2, lease_seconds=1.5, variables={"TEAM_POISON_LOSSES": "3"})
    lead = stack.prompt("team")
    bob = stack.member(lead, "bob")

    def claimed_after(epoch: int) -> Running | None:
        turns = stack.onlooker.open_turns() or []
        return next((one for one in turns if (one.session, one.state) == (bob, "running") and one.epoch > epoch), None)

    epoch = 0
    for ending in (signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL):
        turn = wait_until(partial(claimed_after, epoch), f"a claim after {epoch}", 60)
        assert turn is not None
        victim = next(worker for worker in stack.cluster.workers if worker.name == turn.worker)
        assert victim.send(ending)
        epoch = turn.epoch
    wait_until(lambda: stack.onlooker.open_turns() == [], "the turns to end", 60)
    end = stack.events(bob)[-1]
    assert [one[0] for one in stack.claims() if one[0] > epoch] == [], "no attempt after the third"
    assert (end["type"], end["data"]["reason"], end["data"]["code"]) == ("turn/end", "error", "poison")
    assert "poison" in str(stack.events(lead)), "the Lead is told"
    assert stack.http.post(f"/v1/sessions/{bob}/messages", json={"text": "again"}).is_success
    wait_until(lambda: stack.events(bob)[-1]["data"].get("reason") == "completed", "bob to work again", 60)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def test_m20_r05_all_redis_state_lost_and_every_process_killed_at_once_the_run_finishes_by_itself(
    make_stack: MakeStack, kind: str, request: pytest.FixtureRequest
) -> None:
    database: PostgresProcess | None = None if kind == "sqlite" else request.getfixturevalue("postgres")
    stack = make_stack(scenario_text(), database, workers=1)
    people, told = stack.work(jobs=3)
    with stack.cluster.unattended():
        stack.cluster.broker_away_until = float("inf")
        stack.cluster.kill_everything()
        wait_until(lambda: not any(process.look() for process in stack.cluster.processes), "nothing to be left", 20)
    stack.cluster.broker_away_until = 0.0
    stack.finish(people, told)
    assert all(process.deaths for process in stack.cluster.processes)


def test_either_of_two_coordinators_on_one_postgresql_may_die(make_stack: MakeStack, postgres: PostgresProcess) -> None:
    """While one is away the other serves; the turns, waits and messages of both go on."""
    stack = make_stack(scenario_text(), postgres, workers=1, coordinators=2)
    first, second = stack.cluster.coordinators
    people, told = stack.work(jobs=2)
    for dying, staying in ((first, second), (second, first)):
        with stack.cluster.unattended(dying):
            assert dying.send(signal.SIGKILL)
            wait_until(lambda dying=dying: not dying.look(), "its end", 20)
            answered = sum(job.answers for job in told.jobs.values())
            wait_until(
                lambda answered=answered: sum(job.answers for job in told.jobs.values()) > answered,
                f"{staying.name} to serve alone",
                _END_SECONDS,
            )
            assert staying.pid is not None
        wait_until(lambda dying=dying: "coordinator ready" in dying.words(), f"{dying.name} to be back", 120)
    stack.finish(people, told)
