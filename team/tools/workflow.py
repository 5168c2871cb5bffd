"""The ``workflow`` tool: a script that runs agents."""

from typing import Any, Final

from pydantic import Field

from team.model.values import Parameters
from team.service.callers import Caller, Recorded
from team.service.workflows import WorkflowRequest, WorkflowService

NAME: Final = "workflow"


class Workflow(Parameters):
    name: str = Field(description="Two to five words on what it does, such as 'review every module'.", min_length=1)
    script: str = Field(description="The Python script.", min_length=1)
    description: str | None = Field(default=None, max_length=1_000, description="One or two sentences on its plan.")
    args: Any = Field(default=None, description="Any JSON value; the script reads it as args.")


DESCRIPTION: Final = """\
Run many agents under the control of a Python script that you write, and wait for the value that it returns. Use it \
for work with a known shape: the same task over many items, several views of one question, a pipeline whose stages \
check each other. For one task alone do it yourself.

await agent(prompt, label=..., schema=..., tools=[...]) gives a task to a new agent in the same checkout and returns \
its last text. Each has an empty conversation and sees nothing of yours, so put everything it must know into the \
prompt. With schema, an object JSON Schema without references and patterns, the agent must report a value that fits \
it, and you get that value. An agent that fails gives None: always handle it. await parallel([agent(...), ...]) runs \
agents at once and returns their results in order. phase(text) and log(text) show progress. Return a compact value \
at the end.

The script has Python's own types, json, re, math and asyncio, and no files, network, clock or sleep: the agents do \
the work. Agents that run at once must not write the same files. A misuse, such as an unknown option, ends the whole \
workflow with the line.

phase("review")
async def review(path):
    found = await agent(f"Look for defects in {path}. Change nothing.", label=path[-60:], tools=["read", "grep"],
        schema={"type": "object", "required": ["defects"], "properties": {
            "defects": {"type": "array", "items": {"type": "string"}}}})
    return [] if found is None else found["defects"]
lists = await parallel([review(path) for path in args])
phase("fix")
fixed = [await agent(f"Fix in {path}: {defects}") for path, defects in zip(args, lists) if defects]
return {"defects": sum(len(one) for one in lists), "fixed": len([text for text in fixed if text])}"""


def run(workflows: WorkflowService, caller: Caller, wanted: Workflow) -> Recorded | None:
    """Begin the workflow; the call waits for its result."""
    request = WorkflowRequest(name=wanted.name, script=wanted.script, description=wanted.description, args=wanted.args)
    return workflows.begin(caller, request)
