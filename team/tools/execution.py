"""Running a tool of the coordinator by name: strict parameters in, one typed result out."""

from collections.abc import Callable, Mapping
from typing import Final

from pydantic import BaseModel, ValidationError

from team.model.claims import ToolResult
from team.model.errors import InvalidArgument, InvalidTimeout, StoreUnavailable, TeamError, ToolUnknown, error_json
from team.model.events import first_fault
from team.model.values import Parameters, decode_json
from team.rules import capture
from team.rules.board import Update
from team.service.callers import Caller, CallRef, Recorded
from team.service.subagents import SubagentService
from team.service.teams import TeamService
from team.service.turns import TurnService
from team.service.workflows import WorkflowService
from team.tools import parameters as p
from team.tools.catalog import parameters_of
from team.tools.subagents import HANDLERS
from team.tools.workflow import Workflow
from team.tools.workflow import run as run_workflow

Outcome = BaseModel | Recorded | None
"""An operator's result, the recorded result of a turn's call, or None for a call that waits now."""


def parse(name: str, arguments: str | bytes, *, is_team: bool = True) -> Parameters:
    """The parameters of a tool from JSON text. Raises ToolUnknown, InvalidTimeout, InvalidArgument."""
    known = parameters_of(is_team=is_team)
    cls = known.get(name)
    if cls is None:
        raise ToolUnknown(f"There is no tool {name[:80]!r} here; there are {', '.join(known)}.")
    try:
        decode_json(arguments or "{}")
        return cls.model_validate_json(arguments or "{}")
    except ValidationError as error:
        kind = InvalidTimeout if error.errors()[0]["loc"][:1] == ("timeout_ms",) else InvalidArgument
        raise kind(f"{name}: {first_fault(error)}. Correct the arguments and call it again.") from error
    except ValueError as error:
        raise InvalidArgument(f"{name}: the arguments are not usable JSON: {error}.") from error


class ToolExecutor:
    """Runs the coordinator's tools for turns and for operators."""

    def __init__(
        self, teams: TeamService, subagents: SubagentService, turns: TurnService, workflows: WorkflowService
    ) -> None:
        self._teams, self._subagents, self._turns, self._workflows = teams, subagents, turns, workflows

    def execute(self, caller: Caller, name: str, arguments: str | bytes) -> Outcome:
        """Run one tool as a Session: its profile decides whom the tool addresses.

        Raises every TeamError of the operation; nothing is changed then.
        """
        return self._run(caller, name, arguments, is_team=self._subagents.is_team(caller.session_id))

    def _run(self, caller: Caller, name: str, arguments: str | bytes, *, is_team: bool) -> Outcome:
        wanted = parse(name, arguments, is_team=is_team)
        if isinstance(wanted, Workflow):
            return run_workflow(self._workflows, caller, wanted)
        subagent_handler = HANDLERS.get(type(wanted))
        if subagent_handler is not None:
            return subagent_handler(self._subagents, caller, wanted)
        return _HANDLERS[type(wanted)](self._teams, caller, wanted)

    def run_call(self, ref: CallRef) -> ToolResult:
        """Run a turn's coordinator-side call exactly once; an error becomes the call's result.

        Raises TurnFenced, TurnConflict and StoreUnavailable: those say nothing about the call, which may be retried.
        """
        found = self._turns.call(ref)
        if isinstance(found, Recorded):
            return ToolResult(state="done", entry=found.entry)
        call, caller = found.call, Caller(found.session_id, ref)
        if call.waiting:
            return ToolResult(state="waiting")
        try:
            if call.name not in found.offered:
                raise ToolUnknown(f"There is no tool {call.name[:80]!r} here; there are {', '.join(found.offered)}.")
            if found.capture is not None and call.name == capture.TOOL:
                outcome = self._workflows.report(caller, found.capture, call.arguments)
            else:
                outcome = self._run(caller, call.name, call.arguments, is_team=found.is_team)
        except StoreUnavailable:
            raise
        except TeamError as error:
            if error.code in ("TURN_FENCED", "TURN_CONFLICT"):
                raise
            return ToolResult(state="done", entry=self._teams.fail_call(caller, error_json(error.code, error.message)))
        if outcome is None:
            return ToolResult(state="waiting")
        assert isinstance(outcome, Recorded)
        return ToolResult(state="done", entry=outcome.entry)


def _spawn(teams: TeamService, caller: Caller, wanted: p.SpawnTeammate) -> Outcome:
    return teams.spawn(
        caller,
        name=wanted.name,
        description=wanted.description,
        prompt=wanted.prompt,
        context=wanted.context or "fresh",
        model=wanted.model,
    )


def _send(teams: TeamService, caller: Caller, wanted: p.SendMessage) -> Outcome:
    return teams.send(caller, target=wanted.target, message=wanted.message)


def _list(teams: TeamService, caller: Caller, _wanted: p.ListAgents) -> Outcome:
    return teams.list_members(caller)


def _wait(teams: TeamService, caller: Caller, wanted: p.WaitAgent) -> Outcome:
    return teams.begin_wait(caller, timeout_ms=wanted.timeout_ms)


def _interrupt(teams: TeamService, caller: Caller, wanted: p.InterruptAgent) -> Outcome:
    return teams.interrupt(caller, target=wanted.target)


def _create(teams: TeamService, caller: Caller, wanted: p.TaskCreate) -> Outcome:
    return teams.create_task(
        caller,
        subject=wanted.subject,
        description=wanted.description,
        blocked_by=wanted.blocked_by or (),
        write_scopes=wanted.write_scopes or (),
    )


def _list_tasks(teams: TeamService, caller: Caller, wanted: p.TaskList) -> Outcome:
    return teams.list_tasks(
        caller,
        status=wanted.status,
        owner=wanted.owner,
        ready=wanted.ready,
        cursor=wanted.cursor,
        limit=wanted.limit or 50,
    )


def _get_task(teams: TeamService, caller: Caller, wanted: p.TaskGet) -> Outcome:
    return teams.get_task(caller, task_id=wanted.task_id)


def _update(teams: TeamService, caller: Caller, wanted: p.TaskUpdate) -> Outcome:
    request = Update(
        task_id=wanted.task_id,
        expected_revision=wanted.expected_revision,
        action=wanted.action,
        subject=wanted.subject,
        description=wanted.description,
        blocked_by=wanted.blocked_by,
        write_scopes=wanted.write_scopes,
    )
    return teams.update_task(caller, request, owner=wanted.owner)


_HANDLERS: Final[Mapping[type[Parameters], Callable[[TeamService, Caller, Parameters], Outcome]]] = {
    p.SpawnTeammate: _spawn,
    p.SendMessage: _send,
    p.ListAgents: _list,
    p.WaitAgent: _wait,
    p.InterruptAgent: _interrupt,
    p.TaskCreate: _create,
    p.TaskList: _list_tasks,
    p.TaskGet: _get_task,
    p.TaskUpdate: _update,
}  # pyright: ignore[reportAssignmentType] -- each handler takes the parameters it is filed under
