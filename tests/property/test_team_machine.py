"""A random Team against a model of it: whatever members, workers and people do, the store stays true and sound."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from team.log.database import Database
from team.model.claims import BackoffRequest, BoundaryRequest, FailRequest, ReleaseRequest
from team.model.content import TextBlock
from team.model.errors import TeamError, TurnFenced
from team.model.ids import SessionId
from tests.support.core import Agent, Core, create_tables, empty
from tests.support.invariants import assert_sound
from tests.support.team_model import Model, Task

NAMES: Final = ("bob", "carol", "dave", "erin")
MAX_MEMBERS: Final = 3
MAX_TASKS: Final = 5
MAX_INBOX: Final = 6
ACTIONS: Final = (
    *("set_dependencies", "claim", "complete") * 3,
    *("release", "reopen", "reassign") * 2,
    "delete",
)
"""Drawn with these weights: a board that is soon deleted proves little."""


seeds = st.integers(min_value=0, max_value=2**32 - 1)


class TeamMachine(RuleBasedStateMachine):
    """Each rule is a burst of operations drawn from a seed, so that few steps go deep; a failure notes them all.

    ``agents`` are the claims that a worker holds now, ``zombies`` those that it lost or gave back.
    """

    database: ClassVar[Database | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="team-machine-"))
        assert self.database is not None
        empty(self.database)
        self.core = Core(
            self.database.url.render_as_string(hide_password=False),
            self.folder / "checkout",
            self.database,
            settlement="off",
            max_members=MAX_MEMBERS,
            max_tasks=MAX_TASKS,
            max_inbox=MAX_INBOX,
        )
        self.model = Model()
        self.agents: dict[str, Agent] = {}
        self.zombies: list[Agent] = []
        self.random, self.bursts = Random(), 0
        self.sessions: dict[str, SessionId] = {}
        self.sent = 0

    @initialize()
    def begin(self) -> None:
        self.sessions["lead"] = self.core.lead()
        self.spawn_as("lead", "bob", fork=False)
        for blockers in ((), (), (1,)):
            self.create_as("lead", blockers)

    @rule(seed=seeds)
    def people_and_members(self, seed: int) -> None:
        operations = {self.send: 6, self.prompt: 3, self.spawn: 2, self.interrupt: 1, self.operator_interrupts: 1}
        self.burst(seed, operations | {self.creator_vanishes: 1}, 6)

    @rule(seed=seeds)
    def workers(self, seed: int) -> None:
        turns = {self.claim: 4, self.local_step: 4, self.finish: 4, self.wait: 3, self.create_in_a_turn: 2}
        faults = {self.lose: 2, self.hand_over: 1, self.put_off: 1, self.fail: 1, self.zombie_writes: 2}
        self.burst(seed, turns | faults, 8)

    @rule(seed=seeds)
    def board(self, seed: int) -> None:
        self.burst(seed, {self.update: 7, self.create: 2}, 10)

    @rule(seed=seeds)
    def clock(self, seed: int) -> None:
        self.burst(seed, {self.wake: 2, self.deadlines: 1}, 2)

    def burst(self, seed: int, operations: dict[Callable[[], None], int], most: int) -> None:
        """About ``most`` operations, each drawn by its weight; their own choices follow from the seed too.

        Hypothesis likes to repeat a seed: the number of the burst makes the same seed another burst.
        """
        self.bursts += 1
        self.random.seed(f"{seed} {self.bursts}")
        for _ in range(self.random.randint(most // 2, most)):
            operation = self.random.choices(list(operations), list(operations.values()))[0]
            note(operation.__name__)
            operation()

    def teardown(self) -> None:
        try:
            if self.sessions:
                self.check()
        finally:
            self.core.close()
            shutil.rmtree(self.folder)

    def who(self) -> str:
        """Some active member."""
        return self.random.choice(self.model.members)

    def anybody(self) -> str:
        """Mostly an active member, sometimes a name that is none."""
        return self.who() if self.random.random() < 0.8 else self.random.choice(NAMES)

    def outcome(self, who: str, tool: str, /, **arguments: Any) -> str | None:
        """The code of a refused operation, None for an accepted one."""
        try:
            self.core.act(self.sessions[who], tool, **arguments)
        except TeamError as error:
            return error.code
        return None

    def words(self) -> str:
        self.sent += 1
        return f"message {self.sent}"

    # The roster.

    def spawn(self) -> None:
        who = "lead" if self.random.random() < 0.8 else self.who()
        self.spawn_as(who, self.random.choice(NAMES), fork=self.random.random() < 0.5)

    def spawn_as(self, who: str, name: str, *, fork: bool) -> None:
        prompt = self.words()
        expected = None
        if who != "lead":
            expected = "TEAM_LEAD_REQUIRED"
        elif name in self.model.phases:
            expected = "TEAM_MEMBER_NAME_TAKEN"
        elif len(self.model.phases) >= MAX_MEMBERS:
            expected = "TEAM_MEMBER_LIMIT"
        context = "fork" if fork else "fresh"
        got = self.outcome(who, "spawn_teammate", name=name, description="d", prompt=prompt, context=context)
        assert got == expected
        if got is None:
            self.model.phases[name] = "active"
            self.model.inbox[name] = [(prompt, True)]
            self.sessions[name] = self.core.sessions.member_session(self.sessions["lead"], name)
            assert self.core.run(self.sessions[name]) is not None

    def creator_vanishes(self) -> None:
        name = self.random.choice(NAMES)
        if name not in self.model.phases and len(self.model.phases) < MAX_MEMBERS:
            self.core.reserve_only(self.sessions["lead"], name)
            self.core.recovery.settle_creation(self.core.head_team(self.sessions["lead"]), name)
            self.model.phases[name] = "failed"

    def interrupt(self) -> None:
        who, target = self.who(), self.anybody()
        expected = None
        if target != "lead" and target not in self.model.phases:
            expected = "TEAM_MEMBER_NOT_FOUND"
        elif who != "lead":
            expected = "TEAM_LEAD_REQUIRED"
        elif target == "lead":
            expected = "TEAM_INVALID_TARGET"
        assert self.outcome(who, "interrupt_agent", target=target) == expected
        if expected is None and target in self.sessions:
            assert self.core.run(self.sessions[target]) is None
            self.drop(target)

    def operator_interrupts(self) -> None:
        name = self.who()
        self.core.sessions.interrupt(self.sessions[name], actor="me")
        assert self.core.run(self.sessions[name]) is None
        self.drop(name)

    def drop(self, name: str) -> None:
        """Its claim is over; the worker confirms."""
        agent = self.agents.pop(name, None)
        if agent is not None:
            self.core.sql("UPDATE session SET guard_until = NULL WHERE id = :s", s=self.sessions[name])

    # Messages.

    def send(self) -> None:
        who, target, text = self.who(), self.anybody(), self.words()
        phase = "active" if target == "lead" else self.model.phases.get(target)
        expected = None
        if phase is None:
            expected = "TEAM_MEMBER_NOT_FOUND"
        elif who == target:
            expected = "TEAM_SELF_MESSAGE"
        elif phase != "active":
            expected = "TEAM_INVALID_TARGET"
        elif len(self.model.inbox[target]) >= MAX_INBOX:
            expected = "TEAM_INBOX_FULL"
        assert self.outcome(who, "send_message", target=target, message=text) == expected
        if expected is None:
            self.model.inbox[target].append((text, True))
            assert self.core.run(self.sessions[target]) is not None

    def prompt(self) -> None:
        name, text, steer = self.who(), self.words(), self.random.random() < 0.4
        if len(self.model.inbox[name]) >= MAX_INBOX:
            return
        self.core.prompt(self.sessions[name], text, steer=steer)
        self.model.inbox[name].append((text, steer))
        assert self.core.run(self.sessions[name]) is not None

    # Turns.

    def claim(self) -> None:
        for name in self.model.members:
            run = self.core.run(self.sessions[name])
            if run is not None and run.state == "queued" and self.random.random() < 0.8:
                self.agents[name] = self.core.agent(self.sessions[name])

    def holder(self) -> tuple[str, Agent] | None:
        """One of the members whose turn a worker runs now."""
        if not self.agents:
            self.claim()
        return self.random.choice(list(self.agents.items())) if self.agents else None

    def stepping(self) -> tuple[str, Agent] | None:
        """One of them, in a step that waits for its answer."""
        held = self.holder()
        return held if held is not None and self.resume(held[1]) else None

    def resume(self, agent: Agent) -> bool:
        """Bring a claim to a step without an answer. False when its turn parked or ended instead."""
        for call in agent.claim.pending if agent.written == 0 else ():
            if not call.waiting:
                agent.local_result(call.index)
        if agent.step and not agent.answered:
            return True
        return self.boundary(agent)

    def boundary(self, agent: Agent) -> bool:
        name = next(name for name, held in self.agents.items() if held is agent)
        first = not any(
            event == "step/start" for event in self.core.types(agent.claim.session_id, self.turn_start(agent))
        )
        known = agent.seq
        result = agent.boundary()
        if result.action != "step":
            del self.agents[name]
            return False
        shown = [
            entry.content[-1].text
            for entry in agent.history
            if entry.kind == "user"
            and entry.seq > known
            and entry.source.kind in ("team-message", "human", "delegation")
            and isinstance(entry.content[-1], TextBlock)
        ]
        inherited = self.core.sessions.events(agent.claim.session_id, 0, 1)[0]
        if known == 0 and inherited and inherited[0].type == "subagent/descriptor":
            shown = [text for text in shown if text in {item[0] for item in self.model.inbox[name]}]
        assert shown == self.model.take(name, first_step=first)
        return True

    def turn_start(self, agent: Agent) -> int:
        log = self.core.log(agent.claim.session_id)
        return next(e.seq for e in log if e.type == "turn/start" and e.data["turnId"] == agent.ref.turn_id)

    def local_step(self) -> None:
        held = self.stepping()
        if held is not None:
            _, agent = held
            agent.ask(("read", {"path": "f"}), ("bash", {"command": "x"}))
            agent.local_result(1)
            agent.local_result(0)
            self.boundary(agent)

    def finish(self) -> None:
        held = self.stepping()
        if held is not None:
            name, agent = held
            steer = any(steer for _, steer in self.model.inbox[name])
            agent.answer(TextBlock(text="done"))
            assert self.boundary(agent) is steer
            assert steer or bool(self.model.inbox[name]) == (self.core.run(self.sessions[name]) is not None)

    def wait(self) -> None:
        held = self.stepping()
        if held is not None:
            _, agent = held
            agent.ask(("wait_agent", {}))
            agent.run_call()
            self.boundary(agent)

    def create_in_a_turn(self) -> None:
        held = self.stepping()
        if held is not None:
            _, agent = held
            agent.ask(("team_task_create", {"subject": "s", "description": "d"}))
            first = agent.run_call()
            assert agent.run_call() == first
            assert first.entry is not None
            assert first.entry.kind == "tool-result"
            self.created(json.loads(first.entry.content), ())

    def lose(self) -> None:
        held = self.holder()
        if held is None:
            return
        name, agent = held
        del self.agents[name]
        assert self.core.lose_worker(self.sessions[name]) == 1
        self.zombies.append(agent)

    def hand_over(self) -> None:
        held = self.holder()
        if held is None:
            return
        name, agent = held
        del self.agents[name]
        self.core.turns.release(agent.ref, ReleaseRequest(**agent.numbered(), reason="drain"))
        self.zombies.append(agent)

    def put_off(self) -> None:
        held = self.stepping()
        if held is not None:
            name, agent = held
            request = BackoffRequest(**agent.numbered(), step=agent.step, delay_ms=60_000, reason="429")
            self.core.turns.backoff(agent.ref, request)
            del self.agents[name]

    def fail(self) -> None:
        held = self.holder()
        if held is None:
            return
        name, agent = held
        del self.agents[name]
        self.core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="provider", message="m"))
        assert self.core.run(self.sessions[name]) is None

    def zombie_writes(self) -> None:
        if not self.zombies:
            return
        agent = self.random.choice(self.zombies)
        before = self.core.count()
        for request in (FailRequest(**agent.numbered(), code="c", message="m"),):
            self.fenced(lambda r=request: self.core.turns.fail(agent.ref, r))
        boundary = BoundaryRequest(**agent.numbered(), history_after=0)
        self.fenced(lambda: self.core.turns.boundary(agent.ref, boundary))
        self.fenced(lambda: agent.run_call(0, 1))
        assert self.core.count() == before

    def fenced(self, write: Any) -> None:
        try:
            write()
        except TurnFenced:
            return
        raise AssertionError("a stale claim wrote")

    def wake(self) -> None:
        self.core.wake(self.sessions["lead"])
        assert self.core.recovery.wake_missed() == 0

    def deadlines(self) -> None:
        self.core.pass_deadlines()
        assert self.core.next_deadline_seconds() is None

    # The board.

    def created(self, view: Any, blockers: tuple[int, ...]) -> None:
        if sum(task.status != "deleted" for task in self.model.tasks.values()) >= MAX_TASKS:
            assert view["error"]["code"] == "TEAM_TASK_LIMIT"
            return
        number = len(self.model.tasks) + 1
        assert view["id"] == f"task-{number}"
        self.model.tasks[number] = Task(blockers=blockers)

    def numbers(self, count: int) -> tuple[int, ...]:
        """Up to ``count`` task numbers; sometimes one that is not on the board yet."""
        most = len(self.model.tasks) + (self.random.random() < 0.1)
        return tuple({self.random.randint(1, most) for _ in range(self.random.randint(0, count))})

    def create(self) -> None:
        self.create_as(self.who(), self.numbers(2))

    def create_as(self, who: str, blockers: tuple[int, ...]) -> None:
        full = sum(task.status != "deleted" for task in self.model.tasks.values()) >= MAX_TASKS
        expected = "TEAM_TASK_LIMIT" if full else self.model.graph_refusal(None, blockers)
        names = [f"task-{blocker}" for blocker in blockers]
        got = self.outcome(who, "team_task_create", subject="s", description="d", blocked_by=names)
        assert got == expected
        if got is None:
            self.model.tasks[len(self.model.tasks) + 1] = Task(blockers=blockers)

    def update(self) -> None:
        who, new_owner, action = self.who(), self.who(), self.random.choice(ACTIONS)
        number, blockers = next(iter(self.numbers(1)), 1), self.numbers(2)
        task = self.model.tasks.get(number)
        revision = task.revision if task is not None else 1
        stale = revision > 1 and self.random.random() < 0.15
        fields: dict[str, Any] = {}
        if action == "set_dependencies":
            fields["blocked_by"] = [f"task-{blocker}" for blocker in blockers]
        elif action == "reassign":
            fields["owner"] = new_owner
        if task is None:
            expected = "TEAM_TASK_NOT_FOUND"
        elif task.status == "deleted":
            expected = "TEAM_TASK_DELETED"
        elif stale:
            expected = "TEAM_TASK_STALE_REVISION"
        else:
            expected = self.model.refusal(who, number, action, blockers, new_owner)
        got = self.outcome(
            who,
            "team_task_update",
            task_id=f"task-{number}",
            expected_revision=revision - 1 if stale else revision,
            action=action,
            **fields,
        )
        assert got == expected
        if got is None:
            self.model.apply(who, number, action, blockers, new_owner)

    # What everybody can see.

    @rule()
    def check(self) -> None:
        assert_sound(self.core)
        lead = self.sessions["lead"]
        shown = {task["id"]: task for task in self.core.act(lead, "team_task_list")["tasks"]}
        for number, task in self.model.tasks.items():
            view = shown.pop(f"task-{number}", None) or self.core.task(lead, f"task-{number}")
            assert (view["revision"], view["status"], view.get("ownerName")) == (
                task.revision,
                task.status,
                task.owner,
            )
            assert view["blockedBy"] == [f"task-{blocker}" for blocker in task.blockers]
            blocked = any(self.model.tasks[blocker].status != "completed" for blocker in task.blockers)
            assert view["ready"] == (task.status == "pending" and not blocked)
        assert not shown
        roster = {member["target"]: member["status"] for member in self.core.act(lead, "list_agents")}
        assert list(roster) == ["lead", *self.model.phases]
        for name, phase in self.model.phases.items():
            assert (roster[name] == "failed") == (phase == "failed")
        for name in self.model.members:
            head = self.core.head(self.sessions[name])
            pending = self.model.inbox[name]
            assert (head.pending, head.pending_steer) == (len(pending), sum(steer for _, steer in pending))


CHOSEN: Final = settings(
    deadline=None,
    database=None,
    stateful_step_count=14,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def run(url: str, examples: int) -> None:
    create_tables(url)
    opened = Database(url)

    class OnDatabase(TeamMachine):
        database = opened

    try:
        run_state_machine_as_test(OnDatabase, settings=settings(CHOSEN, max_examples=examples))
    finally:
        opened.close()


def test_a_random_team_on_sqlite(sqlite_url: str) -> None:
    run(sqlite_url, 25)


def test_a_random_team_on_postgresql(postgres_url: str) -> None:
    run(postgres_url, 8)
