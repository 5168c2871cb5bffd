"""Workflows played by hand: the coordinator's part is advanced until nothing is due."""

from typing import Any

from team.model.claims import BoundaryResult
from team.model.ids import SessionId
from team.model.slices import CallSlice
from team.model.workflow_state import WorkflowState
from tests.support.core import Agent, Core

FAN = """
phase("fan")
found = await parallel([agent(f"do {n}", label=f"part {n}") for n in range(args["parts"])])
log(f"{len(found)} parts are done")
return await agent(f"join {found}", label="join")
"""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}


def advance(core: Core) -> int:
    """What the coordinator does until every workflow waits or has ended; returns how many runs that took."""
    runs = 0
    while keys := core.workflows.due():
        for key in keys:
            runs += core.workflows.advance(key)
    return runs


def begin(agent: Agent, script: str, **arguments: Any) -> None:
    """One step that calls workflow, and the boundary that parks behind it; the script has not run."""
    assert agent.call("workflow", name="test run", script=script, **arguments) is None
    assert agent.boundary().action == "parked"


def launch(agent: Agent, script: str, **arguments: Any) -> list[SessionId]:
    """Begin a workflow and run its script to the first wait; the children of all its items, begun or not."""
    begin(agent, script, **arguments)
    advance(agent.core)
    return items_of(agent.core, agent.claim.session_id)


def items_of(core: Core, session_id: str) -> list[SessionId]:
    """The child of each item that the only workflow of a Session has asked for."""
    return [item.child_id for item in workflow_state(core, session_id).items]


def finish(core: Core, child: str, words: str) -> list[str]:
    """A child answers and ends; the script gets to know of it. Returns the child's prompt."""
    agent = core.agent(child)
    prompts = agent.begin()
    agent.finish(words)
    advance(core)
    return prompts


def report(agent: Agent, **result: Any) -> tuple[Any, BoundaryResult]:
    """A child reports a result: what its call returned, and the boundary behind it."""
    returned = agent.call("report_result", **result)
    boundary = agent.boundary()
    advance(agent.core)
    return returned, boundary


def result_of(core: Core, session_id: str) -> Any:
    """The result of the workflow call, shown to the caller's next step, or its error."""
    agent = core.agent(session_id)
    agent.begin()
    return agent.last_result()


def failure_of(core: Core, session_id: str) -> str:
    """The text of a failed workflow's error."""
    error = result_of(core, session_id)["error"]
    assert error["code"] == "WORKFLOW_FAILED"
    return str(error["message"])


def workflow_state(core: Core, session_id: str) -> WorkflowState:
    """The state of the only workflow call of a Session."""

    def read() -> list[CallSlice]:
        rows = core.reading(
            lambda c: c.exec_driver_sql("SELECT session_id, data FROM call ORDER BY seq").all()  # the newest last
        )
        return [CallSlice.model_validate_json(row[1]) for row in rows if row[0] == session_id]

    (state,) = [call.workflow for call in read() if call.workflow is not None]
    return state


def events_of(core: Core, session_id: str) -> list[str]:
    """The workflow records of a log, in order, each by the last word of its type."""
    return [kind.removeprefix("tool-workflow/") for kind in core.types(session_id) if kind.startswith("tool-workflow/")]
