"""Workflows whose coordinator or sandbox is lost: another coordinator comes to the same state."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from team.service.scripts import Outcome, SandboxLost
from tests.support.core import Core, together
from tests.support.subagents import children_of, root
from tests.support.workflows import FAN, advance, begin, events_of, failure_of, finish, items_of, launch, result_of

MakeCore = Callable[..., Core]


class TestCrashes:
    """Whatever is lost between two commits, another coordinator comes to the same state."""

    def crash_once(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next run of a script ends with the loss of its coordinator, before anything is committed."""
        run = core.scripts.run

        class Gone(BaseException):
            pass

        def dying(*arguments: Any) -> Outcome:
            run(*arguments)
            raise Gone

        (key,) = core.workflows.due()
        with monkeypatch.context() as patch:
            patch.setattr(core.scripts, "run", dying)
            with pytest.raises(Gone):
                core.workflows.advance(key)
        assert core.workflows.due() == [], "another coordinator takes a run that may still be at work"
        core.sql("UPDATE workflow SET busy_until = 1")

    def test_a_coordinator_that_dies_in_a_run_is_replaced_and_no_agent_runs_twice(
        self, core: Core, make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lead, agent = root(core)
        begin(agent, FAN, args={"parts": 2})
        self.crash_once(core, monkeypatch)
        other = make_core()
        advance(other)
        parts = items_of(core, lead)
        core.agent(parts[0]).finish("r0")
        core.agent(parts[1]).finish("r1")
        self.crash_once(core, monkeypatch)
        assert events_of(core, lead).count("answered") == 2
        advance(other)
        (join,) = set(children_of(core, lead)) - set(parts)
        assert finish(other, join, "joined") == ["join ['r0', 'r1']"]
        assert result_of(core, lead)["result"] == "joined"
        assert events_of(core, lead).count("agent") == len(children_of(core, lead)) == 3

    def test_s07_of_two_runs_of_one_step_the_later_counts(self, core: Core, make_core: MakeCore) -> None:
        lead, agent = root(core)
        begin(agent, FAN, args={"parts": 2})
        (key,) = core.workflows.due()
        slow, other = core.scripts.run, make_core()

        def overtaken(*arguments: Any) -> Outcome:
            outcome = slow(*arguments)
            core.sql("UPDATE workflow SET busy_until = 1")
            assert other.workflows.advance(key)
            return outcome

        core.scripts.run = overtaken  # pyright: ignore[reportAttributeAccessIssue] -- the same run, with a pause behind it
        assert core.workflows.advance(key)
        assert events_of(core, lead).count("agent") == len(children_of(core, lead)) == 2

    def test_coordinators_that_advance_at_once_begin_each_agent_once(self, core: Core, make_core: MakeCore) -> None:
        lead, agent = root(core)
        begin(agent, FAN, args={"parts": 4})
        (key,) = core.workflows.due()
        other = make_core()
        together(*[lambda each=each: each.workflows.advance(key) for each in (core, other, core, other)])
        assert events_of(core, lead).count("agent") == len(children_of(core, lead)) == 4

    def test_a_changed_sandbox_replays_the_script_from_the_log(self, core: Core) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 2})
        finish(core, parts[0], "r0")
        core.sql("UPDATE workflow SET engine = 'pydantic-monty 0.1', snapshot = :s", s=b"of another version")
        finish(core, parts[1], "r1")
        join = items_of(core, lead)[2]
        assert finish(core, join, "joined") == ["join ['r0', 'r1']"]
        assert events_of(core, lead).count("progress") == 2

    def test_s08_a_script_that_kills_its_sandbox_every_time_fails(
        self, core: Core, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 2})

        def lost(*_arguments: Any) -> Outcome:
            raise SandboxLost("gone")

        monkeypatch.setattr(core.scripts, "run", lost)
        finish(core, parts[0], "r0")
        assert core.run(parts[1]) is None
        assert "The sandbox was lost 3 times" in failure_of(core, lead)

    def test_a_run_that_brings_something_resets_the_count_of_lost_ones(self, core: Core) -> None:
        _lead, agent = root(core)
        begin(agent, FAN, args={"parts": 1})
        core.sql("UPDATE workflow SET attempts = 2")
        advance(core)
        assert core.reading(lambda c: c.execute(text("SELECT attempts FROM workflow")).scalar_one()) == 0

    def test_every_commit_that_leaves_work_names_it_in_its_effects(self, core: Core) -> None:
        _lead, agent = root(core)
        core.effects.clear()
        begin(agent, FAN, args={"parts": 1})
        assert [effect.workflows for effect in core.effects if effect.workflows] == [{agent.claim.turn_id}]
