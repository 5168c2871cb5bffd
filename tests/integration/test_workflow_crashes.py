"""Workflows whose coordinator or sandbox is lost: another coordinator comes to the same state."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from team.model.errors import TeamError
from team.model.events import WorkflowAsked
from team.service.scripts import Outcome, SandboxLost
from tests.support.core import Core, create_tables, together
from tests.support.invariants import assert_sound
from tests.support.subagents import children_of, root
from tests.support.transfers import export, import_
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
        assert "could not be brought on in 3 attempts" in failure_of(core, lead)

    def test_s08_a_defect_before_the_run_is_counted_and_put_off_so_that_nothing_loops(
        self, core: Core, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lead, agent = root(core)
        begin(agent, FAN, args={"parts": 1})
        (key,) = core.workflows.due()

        def broken(*_arguments: Any) -> bool:
            raise ZeroDivisionError

        monkeypatch.setattr("team.rules.workflow.go_on", broken)
        for _attempt in range(3):
            with pytest.raises(ZeroDivisionError):
                core.workflows.advance(key)
            assert core.workflows.due() == []
            core.sql("UPDATE workflow SET busy_until = 1")
        advance(core)
        assert "could not be brought on in 3 attempts" in failure_of(core, lead)

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


class TestImports:
    """A workflow whose log was exported in the middle goes on in another store, where no paused script came with it."""

    @pytest.mark.parametrize("with_agents", [True, False])
    def test_it_is_run_again_from_the_log_and_joins_the_agents_that_came_along(
        self, core: Core, tmp_path: Path, with_agents: bool
    ) -> None:
        lead, agent = root(core)
        parts = launch(agent, FAN, args={"parts": 3})
        finish(core, parts[0], "r0")
        core.agent(parts[1]).finish("r1")
        lines = export(core, lead)
        if not with_agents:
            lines = [line for line in lines if json.loads(line).get("session", {"id": lead})["id"] == lead]
            kept = 1 + json.loads(lines[0])["events"]
            lines = [lines[0].replace(f'"sessions":{len(parts) + 1}', '"sessions":1'), *export(core, lead)[1:kept]]
        create_tables(f"sqlite:///{tmp_path / 'other.db'}")
        other = Core(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "checkout")
        try:
            import_(other, lines)
            resumed = other.agent(lead)
            assert resumed.run_call().state == "waiting"
            assert resumed.boundary().action == "parked"
            advance(other)
            if not with_agents:
                finish(other, parts[1], "r1")
            finish(other, parts[2], "r2")
            assert finish(other, items_of(other, lead)[3], "joined") == ["join ['r0', 'r1', 'r2']"]
            assert result_of(other, lead) == {"result": "joined", "agents": 4, "failed": 0}
            assert_sound(other)
        finally:
            other.close()

    def test_a_log_whose_workflow_names_a_foreign_child_is_refused(self, core: Core) -> None:
        lead, agent = root(core)
        (part,) = launch(agent, FAN, args={"parts": 1})
        call_id = core.reading(lambda c: c.execute(text("SELECT call_id FROM call")).scalar_one())
        stranger = WorkflowAsked(call_id=call_id, item=1, child_id=part, label="l", prompt="p")
        with pytest.raises(TeamError, match="another child"):
            core.append(lead, stranger)
