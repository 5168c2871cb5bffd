"""A random Team against a model of it: whatever members, workers and people do, the store stays true and sound."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from team.model.claims import BackoffRequest, BoundaryRequest, FailRequest, ReleaseRequest
from team.model.content import TextBlock
from team.model.errors import TeamError, TurnFenced
from team.model.ids import SessionId
from tests.support.core import Agent, Core, create_tables, empty_tables
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


members = st.integers(min_value=0, max_value=9)
numbers = st.integers(min_value=1, max_value=20)


changes = st.tuples(
    members, numbers, st.sampled_from(ACTIONS), st.integers(0, 5), st.lists(numbers, max_size=2, unique=True), members
)


class TeamMachine(RuleBasedStateMachine):
    """Members by index into the active roster, tasks by number; agents are the claims that a worker holds now."""

    url = ""
    stale = Bundle("stale")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="team-machine-"))
        url = self.url or f"sqlite:///{self.folder / 'team.db'}"
        if self.url:
            empty_tables(url)
        else:
            create_tables(url)
        self.core = Core(
            url,
            self.folder / "checkout",
            settlement="off",
            max_members=MAX_MEMBERS,
            max_tasks=MAX_TASKS,
            max_inbox=MAX_INBOX,
        )
        self.model = Model()
        self.agents: dict[str, Agent] = {}
        self.sessions: dict[str, SessionId] = {}
        self.sent = 0

    @initialize()
    def begin(self) -> None:
        self.sessions["lead"] = self.core.lead()

    def teardown(self) -> None:
        try:
            if self.sessions:
                self.check()
        finally:
            self.core.close()
            shutil.rmtree(self.folder)

    def who(self, index: int) -> str:
        return self.model.members[index % len(self.model.members)]

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

    @rule(name=st.sampled_from(NAMES), caller=members, fork=st.booleans())
    def spawn(self, name: str, caller: int, fork: bool) -> None:
        who, prompt = self.who(caller), self.words()
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

    @precondition(lambda self: len(self.model.phases) < MAX_MEMBERS)
    @rule(name=st.sampled_from(NAMES))
    def creator_vanishes(self, name: str) -> None:
        if name not in self.model.phases:
            self.core.reserve_only(self.sessions["lead"], name)
            self.core.recovery.settle_creation(self.core.head_team(self.sessions["lead"]), name)
            self.model.phases[name] = "failed"

    @rule(caller=members, to=st.sampled_from(("lead", *NAMES)))
    def interrupt(self, caller: int, to: str) -> None:
        who, target = self.who(caller), to
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

    @rule(index=members)
    def operator_interrupts(self, index: int) -> None:
        name = self.who(index)
        self.core.sessions.interrupt(self.sessions[name], actor="me")
        assert self.core.run(self.sessions[name]) is None
        self.drop(name)

    def drop(self, name: str) -> None:
        """Its claim is over; the worker confirms."""
        agent = self.agents.pop(name, None)
        if agent is not None:
            self.core.sql("UPDATE session SET guard_until = NULL WHERE id = :s", s=self.sessions[name])

    # Messages.

    @rule(sender=members, to=st.sampled_from(("lead", *NAMES)))
    def send(self, sender: int, to: str) -> None:
        who, target, text = self.who(sender), to, self.words()
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

    @rule(to=members, steer=st.booleans())
    def prompt(self, to: int, steer: bool) -> None:
        name, text = self.who(to), self.words()
        if len(self.model.inbox[name]) >= MAX_INBOX:
            return
        self.core.prompt(self.sessions[name], text, steer=steer)
        self.model.inbox[name].append((text, steer))
        assert self.core.run(self.sessions[name]) is not None

    # Turns.

    @rule()
    def claim_all(self) -> None:
        for name in self.model.members:
            run = self.core.run(self.sessions[name])
            if run is not None and run.state == "queued":
                self.agents[name] = self.core.agent(self.sessions[name])

    def holder(self, index: int) -> tuple[str, Agent]:
        """One of the members whose turn a worker runs now."""
        return list(self.agents.items())[index % len(self.agents)]

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

    @precondition(lambda self: self.agents)
    @rule(index=members)
    def local_step(self, index: int) -> None:
        _, agent = self.holder(index)
        if self.resume(agent):
            agent.ask(("read", {"path": "f"}), ("bash", {"command": "x"}))
            agent.local_result(1)
            agent.local_result(0)
            self.boundary(agent)

    @precondition(lambda self: self.agents)
    @rule(index=members)
    def finish(self, index: int) -> None:
        name, agent = self.holder(index)
        if self.resume(agent):
            steer = any(steer for _, steer in self.model.inbox[name])
            agent.answer(TextBlock(text="done"))
            assert self.boundary(agent) is steer
            assert steer or bool(self.model.inbox[name]) == (self.core.run(self.sessions[name]) is not None)

    @precondition(lambda self: self.agents)
    @rule(index=members)
    def wait(self, index: int) -> None:
        _, agent = self.holder(index)
        if self.resume(agent):
            agent.ask(("wait_agent", {}))
            agent.run_call()
            self.boundary(agent)

    @precondition(lambda self: self.agents)
    @rule(index=members, subject=st.sampled_from(("x", "y")))
    def create_in_a_turn(self, index: int, subject: str) -> None:
        _, agent = self.holder(index)
        if self.resume(agent):
            agent.ask(("team_task_create", {"subject": subject, "description": "d"}))
            first = agent.run_call()
            assert agent.run_call() == first
            assert first.entry is not None
            assert first.entry.kind == "tool-result"
            self.created(json.loads(first.entry.content), ())

    @precondition(lambda self: self.agents)
    @rule(target=stale, index=members)
    def lose(self, index: int) -> Agent:
        name, agent = self.holder(index)
        del self.agents[name]
        assert self.core.lose_worker(self.sessions[name]) == 1
        return agent

    @precondition(lambda self: self.agents)
    @rule(target=stale, index=members)
    def hand_over(self, index: int) -> Agent:
        name, agent = self.holder(index)
        del self.agents[name]
        self.core.turns.release(agent.ref, ReleaseRequest(**agent.numbered(), reason="drain"))
        return agent

    @precondition(lambda self: self.agents)
    @rule(index=members)
    def put_off(self, index: int) -> None:
        name, agent = self.holder(index)
        if self.resume(agent):
            request = BackoffRequest(**agent.numbered(), step=agent.step, delay_ms=60_000, reason="429")
            self.core.turns.backoff(agent.ref, request)
            del self.agents[name]

    @precondition(lambda self: self.agents)
    @rule(index=members)
    def fail(self, index: int) -> None:
        name, agent = self.holder(index)
        del self.agents[name]
        self.core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="provider", message="m"))
        assert self.core.run(self.sessions[name]) is None

    @rule(agent=stale)
    def zombie_writes(self, agent: Agent) -> None:
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

    @rule()
    def wake(self) -> None:
        self.core.wake(self.sessions["lead"])
        assert self.core.recovery.wake_missed() == 0

    @rule()
    def deadlines(self) -> None:
        self.core.pass_deadlines()
        assert self.core.recovery.next_deadline_seconds() is None

    # The board.

    def created(self, view: Any, blockers: tuple[int, ...]) -> None:
        if sum(task.status != "deleted" for task in self.model.tasks.values()) >= MAX_TASKS:
            assert view["error"]["code"] == "TEAM_TASK_LIMIT"
            return
        number = len(self.model.tasks) + 1
        assert view["id"] == f"task-{number}"
        self.model.tasks[number] = Task(blockers=blockers)

    def known(self, numbers: list[int]) -> list[int]:
        """Task numbers that mostly exist: one beyond the newest does not."""
        return list(dict.fromkeys((number - 1) % (len(self.model.tasks) + 1) + 1 for number in numbers))

    @rule(caller=members, drawn=st.lists(st.lists(numbers, max_size=2, unique=True), min_size=1, max_size=3))
    def plan(self, caller: int, drawn: list[list[int]]) -> None:
        for blockers in drawn:
            self.create(caller, blockers)

    def create(self, caller: int, drawn: list[int]) -> None:
        blockers = self.known(drawn)
        full = sum(task.status != "deleted" for task in self.model.tasks.values()) >= MAX_TASKS
        expected = "TEAM_TASK_LIMIT" if full else self.model.graph_refusal(None, tuple(blockers))
        names = [f"task-{blocker}" for blocker in blockers]
        got = self.outcome(self.who(caller), "team_task_create", subject="s", description="d", blocked_by=names)
        assert got == expected
        if got is None:
            self.model.tasks[len(self.model.tasks) + 1] = Task(blockers=tuple(blockers))

    @rule(changes=st.lists(changes, min_size=2, max_size=10))
    def work_on_the_board(self, changes: list[tuple[int, int, str, int, list[int], int]]) -> None:
        for change in changes:
            self.update(*change)

    def update(self, caller: int, number: int, action: str, behind: int, drawn: list[int], owner: int) -> None:
        (number,), blockers = self.known([number]), self.known(drawn)
        who, new_owner = self.who(caller), self.who(owner)
        task = self.model.tasks.get(number)
        revision = task.revision if task is not None else 1
        stale = behind == 5 and revision > 1
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
            expected = self.model.refusal(who, number, action, tuple(blockers), new_owner)
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
            self.model.apply(who, number, action, tuple(blockers), new_owner)

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
    stateful_step_count=50,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_a_random_team_on_sqlite() -> None:
    run_state_machine_as_test(TeamMachine, settings=settings(CHOSEN, max_examples=20))


def test_a_random_team_on_postgresql(postgres_url: str) -> None:
    create_tables(postgres_url)

    class OnPostgres(TeamMachine):
        url = postgres_url

    run_state_machine_as_test(OnPostgres, settings=settings(CHOSEN, max_examples=6))
