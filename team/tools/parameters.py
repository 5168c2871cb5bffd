"""Parameters of the nine Team tools, as models send them: strict and snake_case."""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from team.model.snapshots import TaskStatus
from team.model.values import Parameters
from team.rules.board import Action

_TARGET = "Exact target from list_agents, such as 'lead' or 'reviewer'."
_TASK = "Task id, such as 'task-3'."


class SpawnTeammate(Parameters):
    name: str = Field(
        description="Name of the new teammate: lowercase kebab-case, at most 64 characters, never reused."
    )
    description: str = Field(max_length=200, description="One line on what the teammate is for; every member sees it.")
    prompt: str = Field(
        description="Its first message: the task, the context it needs, what to report. It knows nothing else of yours "
        "when context is fresh."
    )
    context: Literal["fresh", "fork"] | None = Field(
        default=None,
        description="fresh (default): an empty conversation. fork: a copy of your conversation up to your last "
        "finished turn.",
    )
    model: str | None = Field(
        default=None, description="The model it runs on; default yours. A smaller one costs less and does simple work."
    )


class SendMessage(Parameters):
    target: str = Field(description=_TARGET)
    message: str = Field(description="The text. Put long content into a file of the checkout and send its path.")


class ListAgents(Parameters):
    pass


class WaitAgent(Parameters):
    timeout_ms: int | None = Field(
        default=None, description="How long to wait: 10000 to 3600000 milliseconds, default 30000."
    )


class InterruptAgent(Parameters):
    target: str = Field(description=_TARGET)


class TaskCreate(Parameters):
    subject: str = Field(description="What is to be done, in at most 200 characters.")
    description: str = Field(
        description="Everything that its owner must know: goal, limits, how to verify. At most 16384 bytes."
    )
    blocked_by: tuple[str, ...] | None = Field(default=None, description="Ids of tasks that must be completed first.")
    write_scopes: tuple[str, ...] | None = Field(
        default=None, description="Relative path prefixes that the task will write, such as 'src/parser'. Advice only."
    )


class TaskList(Parameters):
    status: TaskStatus | None = Field(default=None, description="Only tasks of this status; default all but deleted.")
    owner: str | None = Field(default=None, description="Only tasks of this target, or 'unowned'.")
    ready: bool | None = Field(default=None, description="Only tasks that are (true) or are not (false) ready.")
    cursor: str | None = Field(default=None, description="nextCursor of the page before.")
    limit: int | None = Field(default=None, ge=1, le=100, description="Tasks per page, 1 to 100, default 50.")


class TaskGet(Parameters):
    task_id: str = Field(description=_TASK)


class TaskUpdate(Parameters):
    task_id: str = Field(description=_TASK)
    expected_revision: int = Field(ge=1, description="The revision that you last saw; a stale one changes nothing.")
    action: Action = Field(
        description="claim: make a ready task yours and in progress. release: give it back. edit: subject, description "
        "or write_scopes. set_dependencies: replace blocked_by. complete: its result is verified. reopen: completed "
        "back to pending. reassign: Lead only, to owner. delete: leaves a tombstone."
    )
    subject: str | None = Field(default=None, description="For edit.")
    description: str | None = Field(default=None, description="For edit.")
    blocked_by: tuple[str, ...] | None = Field(default=None, description="For set_dependencies: the complete new list.")
    write_scopes: tuple[str, ...] | None = Field(default=None, description="For edit: the complete new list.")
    owner: str | None = Field(default=None, description="For reassign: the target who gets the task.")


PARAMETERS: Final[Mapping[str, type[Parameters]]] = {
    "spawn_teammate": SpawnTeammate,
    "send_message": SendMessage,
    "list_agents": ListAgents,
    "wait_agent": WaitAgent,
    "interrupt_agent": InterruptAgent,
    "team_task_create": TaskCreate,
    "team_task_list": TaskList,
    "team_task_get": TaskGet,
    "team_task_update": TaskUpdate,
}

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "spawn_teammate": (
        "Create a teammate that works in parallel in the same checkout. Lead only. It starts with the prompt at once "
        "and stays a member for ever; give it more work later with send_message. Names are never reused, even after a "
        "failure. Create the tasks it should work on first."
    ),
    "send_message": (
        "Send a message to another member. It is accepted at once and read at the target's next step; a target without "
        "a turn starts one. The result says that it was accepted, not that it was read."
    ),
    "list_agents": (
        "List all members, the Lead first. status: running has an open turn; inactive is between turns and starts one "
        "when it gets a message; provisioning is being created; failed cannot be used. diagnostics says what needs "
        "attention."
    ),
    "wait_agent": (
        "Wait until anything in the Team changes (a member, a task, a message to anyone, who is running), or the "
        "timeout passes. It reports no earlier change and not what changed: read list_agents and team_task_list "
        "afterwards. timedOut true is a normal result. noProgress means that waiting cannot help now."
    ),
    "interrupt_agent": (
        "End a teammate's current turn. Lead only. Its unread messages, its tasks and their ownership stay as they "
        "are; the next message to it starts a new turn."
    ),
    "team_task_create": (
        "Put a task on the shared board: pending, owned by nobody. Name blockers instead of describing an order in "
        "prose."
    ),
    "team_task_list": (
        "List tasks in order of creation, with owner, blockers, readiness and overlapping write scopes. Continue with "
        "cursor while nextCursor is there."
    ),
    "team_task_get": "Read one task with its current revision; deleted tasks stay readable.",
    "team_task_update": (
        "Change one task, if it is still at expected_revision. The owner and the Lead edit and move it; anyone claims "
        "a ready task that nobody owns; only the Lead reassigns. Owning a task starts nobody's turn: send its owner a "
        "message as well."
    ),
}
