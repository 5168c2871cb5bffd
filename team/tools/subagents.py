"""The tools of an agent with subagents: parameters as models send them, and what each runs."""

from collections.abc import Callable, Mapping
from typing import Final

from pydantic import BaseModel, Field

from team.model.snapshots import Context
from team.model.values import Parameters
from team.rules.children import Order
from team.service.callers import Caller, Recorded
from team.service.subagents import SubagentService

_AGENT = "agent_id of one of your subagents, from list_agents or from the call that created it."


class Subagent(Parameters):
    label: str = Field(description="Two to five words on what it does, such as 'find the parser tests'.", min_length=1)
    prompt: str = Field(
        description="The whole task: goal, what it must know, what to report. It sees nothing else of yours."
    )
    background: bool | None = Field(
        default=None,
        description="false (default): wait, and get its last text as the result. true: return its agent_id at once; a "
        "notice tells you when it has ended its turn, and send_message gives it more work.",
    )
    tools: tuple[str, ...] | None = Field(
        default=None, description="Leave it only these tools, such as ['read', 'glob', 'grep']; default all."
    )


class SubagentFork(Parameters):
    label: str = Field(description="Two to five words on what it does, such as 'try the second design'.", min_length=1)
    prompt: str = Field(
        description="What it should do. It knows your conversation up to your last finished turn, not the current one."
    )
    background: bool | None = Field(
        default=None,
        description="false (default): wait, and get its last text as the result. true: return its agent_id at once.",
    )
    tools: tuple[str, ...] | None = Field(
        default=None, description="Leave it only these tools, such as ['read', 'glob', 'grep']; default all."
    )


class SendSubagentMessage(Parameters):
    agent_id: str = Field(description=_AGENT)
    message: str = Field(description="The text. Put long content into a file of the checkout and send its path.")


class ListSubagents(Parameters):
    pass


class InterruptSubagent(Parameters):
    agent_id: str = Field(description=_AGENT)


PARAMETERS: Final[Mapping[str, type[Parameters]]] = {
    "subagent": Subagent,
    "subagent_fork": SubagentFork,
    "send_message": SendSubagentMessage,
    "list_agents": ListSubagents,
    "interrupt_agent": InterruptSubagent,
}

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "subagent": (
        "Give a task to a new agent with an empty conversation that works in the same checkout. Several calls in one "
        "answer run at the same time. By default the call returns what the agent said last; SUBAGENT_FAILED says why "
        "it did not complete. Its file changes are real either way."
    ),
    "subagent_fork": (
        "Like subagent, but the new agent starts with a copy of your conversation up to your last finished turn. What "
        "you said and saw in the current turn is not in it: put that into the prompt."
    ),
    "send_message": (
        "Send a message to one of your background subagents. It is accepted at once and read at its next step; one "
        "without a turn starts one, and a notice tells you when that has ended."
    ),
    "list_agents": (
        "List your subagents in order of creation. status: running has an open turn; inactive is between turns and "
        "starts one when it gets a message. A row with error cannot be read and says why. diagnostics says what needs "
        "attention."
    ),
    "interrupt_agent": (
        "End the current turn of one of your subagents, and of the agents that this turn waits for. Its unread "
        "messages stay; the next message to it starts a new turn."
    ),
}


def _delegate(
    subagents: SubagentService, caller: Caller, wanted: Subagent | SubagentFork, context: Context
) -> BaseModel | Recorded | None:
    order = Order(
        label=wanted.label,
        prompt=wanted.prompt,
        mode="continuable" if wanted.background else "one-shot",
        context=context,
        tools=wanted.tools,
    )
    return subagents.delegate(caller, order)


def _fresh(subagents: SubagentService, caller: Caller, wanted: Subagent) -> BaseModel | Recorded | None:
    return _delegate(subagents, caller, wanted, "fresh")


def _fork(subagents: SubagentService, caller: Caller, wanted: SubagentFork) -> BaseModel | Recorded | None:
    return _delegate(subagents, caller, wanted, "fork")


def _send(subagents: SubagentService, caller: Caller, wanted: SendSubagentMessage) -> BaseModel | Recorded:
    return subagents.send(caller, agent_id=wanted.agent_id, message=wanted.message)


def _list(subagents: SubagentService, caller: Caller, _wanted: ListSubagents) -> BaseModel | Recorded:
    return subagents.list_children(caller)


def _interrupt(subagents: SubagentService, caller: Caller, wanted: InterruptSubagent) -> BaseModel | Recorded:
    return subagents.interrupt(caller, agent_id=wanted.agent_id)


HANDLERS: Final[
    Mapping[type[Parameters], Callable[[SubagentService, Caller, Parameters], BaseModel | Recorded | None]]
] = {
    Subagent: _fresh,
    SubagentFork: _fork,
    SendSubagentMessage: _send,
    ListSubagents: _list,
    InterruptSubagent: _interrupt,
}  # pyright: ignore[reportAssignmentType] -- each handler takes the parameters it is filed under
