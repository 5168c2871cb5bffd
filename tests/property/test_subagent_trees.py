"""Random trees of subagents: whatever is claimed, lost, interrupted and sent, they stay sound and come to rest."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from team.log import runs
from team.log.database import Database
from team.model.claims import FailRequest, HeartbeatRequest, Held, ReleaseRequest
from team.model.content import TextBlock
from team.model.errors import TeamError, TurnFenced
from team.model.ids import SessionId, TeamId
from tests.support.core import Agent, Core, create_tables, empty
from tests.support.invariants import assert_sound
from tests.support.subagents import children_of

OPERATIONS: Final = 40
EXPECTED: Final = {
    "SUBAGENT_DEPTH",
    "SUBAGENT_ENDED",
    "SUBAGENT_NOT_FOUND",
    "TEAM_INBOX_FULL",
    "TEAM_INVALID_ARGUMENT",
    "TEAM_INVALID_TARGET",
}
"""Refusals that a random caller may meet."""


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="subagent-trees-"))
    url = f"sqlite:///{folder / 'team.db'}"
    create_tables(url)
    opened = Database(url)
    yield opened
    opened.close()
    shutil.rmtree(folder)


class Tree:
    """One root and what becomes of it; every choice follows from the seed."""

    def __init__(self, database: Database, folder: Path, seed: int) -> None:
        empty(database)
        self.random = Random(seed)
        url = database.url.render_as_string(hide_password=False)
        self.core = Core(url, folder, database, max_depth=3, max_inbox=6, max_steps=30)
        self.root = self.core.lead("go", profile="base")
        self.agents: dict[SessionId, Agent] = {}

    def sessions(self) -> list[SessionId]:
        """The root and everybody below it, parents first."""
        found = [self.root]
        for session_id in found:
            found += children_of(self.core, session_id)
        return found

    def play(self) -> None:
        weights: dict[Callable[[], None], int] = {
            self.claim: 6,
            self.delegate: 5,
            self.finish: 4,
            self.send: 2,
            self.prompt: 2,
            self.interrupt_child: 1,
            self.interrupt: 1,
            self.lose: 1,
            self.fail: 1,
            self.hand_over: 1,
        }
        for _ in range(OPERATIONS):
            self.random.choices(list(weights), list(weights.values()))[0]()

    def claim(self) -> None:
        claim = self.core.turns.claim(self.core.claim_request())
        if claim is not None:
            self.agents[claim.session_id] = self.core.agent_of(claim)

    def acting(self, action: Callable[[Agent], bool]) -> None:
        """Let some claim act; it is dropped when it is over."""
        if not self.agents:
            return
        session_id = self.random.choice(list(self.agents))
        agent = self.agents[session_id]
        try:
            goes_on = self.settle(agent) and action(agent)
        except TurnFenced:
            self.core.turns.heartbeat(self.stopped(agent))
            goes_on = False
        if not goes_on:
            self.agents.pop(session_id, None)

    def settle(self, agent: Agent) -> bool:
        """Run what the open step still asks for; False when the turn parked or ended behind it."""
        if agent.step == 0 or not agent.answered:
            return True
        for index in [call.index for call in agent.claim.pending]:
            agent.run_call(index, agent.step)
        return agent.boundary().action == "step"

    def stopped(self, agent: Agent) -> HeartbeatRequest:
        held = Held(turn_id=agent.claim.turn_id, epoch=agent.claim.epoch)
        return HeartbeatRequest(worker="w1", claims=(), stopped=(held,), slots=1)

    def delegate(self) -> None:
        def act(agent: Agent) -> bool:
            calls = [
                (
                    self.random.choice(("subagent", "subagent_fork")),
                    {"label": "helper", "prompt": "help", "background": self.random.random() < 0.4},
                )
                for _ in range(self.random.randint(1, 2))
            ]
            agent.ask(*calls)
            for index in range(len(calls)):
                agent.run_call(index)
                if self.random.random() < 0.2:
                    agent.run_call(index)
            return agent.boundary().action == "step"

        self.acting(act)

    def finish(self) -> None:
        def act(agent: Agent) -> bool:
            agent.answer(TextBlock(text="done"), finish=self.random.choice(("stop", "stop", "max-tokens")))
            return agent.boundary().action == "step"

        self.acting(act)

    def fail(self) -> None:
        def act(agent: Agent) -> bool:
            self.core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="provider", message="down"))
            return False

        self.acting(act)

    def hand_over(self) -> None:
        def act(agent: Agent) -> bool:
            self.core.turns.release(agent.ref, ReleaseRequest(**agent.numbered(), reason="drain"))
            return False

        self.acting(act)

    def lose(self) -> None:
        if self.agents:
            self.core.lose_worker(self.random.choice(list(self.agents)))

    def operate(self, tool: str, **arguments: Any) -> None:
        session_id = self.random.choice(self.sessions())
        targets = children_of(self.core, session_id) or self.sessions()
        try:
            self.core.act(session_id, tool, agent_id=self.random.choice(targets), **arguments)
        except TeamError as error:
            assert error.code in EXPECTED, error  # noqa: PT017 -- any refusal but these is a fault

    def send(self) -> None:
        self.operate("send_message", message="more")

    def interrupt_child(self) -> None:
        self.operate("interrupt_agent")

    def interrupt(self) -> None:
        self.core.sessions.interrupt(self.random.choice(self.sessions()), actor="tester")

    def prompt(self) -> None:
        try:
            self.core.prompt(self.random.choice(self.sessions()), "hear", steer=self.random.random() < 0.5)
        except TeamError as error:
            assert error.code in EXPECTED, error  # noqa: PT017 -- the same

    def rest(self) -> None:
        """Let every turn that can go on end; a parked one that nothing ends would stay."""
        for session_id, agent in self.agents.items():
            self.core.turns.heartbeat(self.stopped(agent))
            self.core.sql("UPDATE run SET lease_until = 1 WHERE session_id = :id AND state = 'running'", id=session_id)
        self.core.sql("UPDATE run SET losses = 0")
        self.core.sql("UPDATE session SET guard_until = NULL")
        self.core.turns.reap()
        for _ in range(2_000):
            claim = self.core.turns.claim(self.core.claim_request())
            if claim is None:
                break
            agent = self.core.agent_of(claim)
            if agent.step and agent.answered:
                for call in claim.pending:
                    agent.run_call(call.index)
                if agent.boundary().action != "step":
                    continue
            while agent.finish("at rest").action == "step":
                pass
        assert self.core.reading(lambda connection: runs.team_runs(connection, TeamId(self.root))) == []


@pytest.mark.timeout(300)
@settings(
    max_examples=8,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_a_tree_of_subagents_stays_sound_and_comes_to_rest(database: Database, tmp_path: Path, seed: int) -> None:
    tree = Tree(database, tmp_path / "checkout", seed)
    tree.play()
    assert_sound(tree.core)
    tree.rest()
    assert_sound(tree.core)
    results = [event for session in tree.sessions() for event in tree.core.log(session) if event.type == "tool/result"]
    for result in results:
        json.loads(result.data["content"])
