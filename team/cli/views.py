"""What the command line reads of the coordinator's answers. Unknown fields are ignored: versions may differ."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class View(BaseModel):
    """A lenient reading of one JSON object."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class WaitView(View):
    kind: str
    call_id: str | None = None
    deadline: str | None = None


class TurnView(View):
    id: str
    state: str
    since: str | None = None
    worker: str | None = None
    waits: tuple[WaitView, ...] = ()


class EndView(View):
    reason: str
    code: str | None = None
    message: str | None = None


class SessionView(View):
    id: str
    profile: str
    cwd: str
    model: str | None = None
    parent_id: str | None = None
    root_id: str
    created_at: str
    status: str
    last_seq: int = 0
    turn: TurnView | None = None
    last_end: EndView | None = None
    pending: int = 0
    held: bool = False
    workers: tuple[str, ...] = ()


class MemberView(View):
    target: str
    role: str
    status: str
    description: str | None = None
    context: str | None = None
    model: str | None = None
    phase: str | None = None
    error: str | None = None
    session_id: str | None = None
    last_seq: int = 0
    turn: TurnView | None = None
    last_end: EndView | None = None
    pending: int = 0
    held: bool = False

    @property
    def is_busy(self) -> bool:
        """Has an open turn, input that will open one, or is being created."""
        return self.turn is not None or (self.pending > 0 and not self.held) or self.phase == "provisioning"


class TaskView(View):
    id: str
    revision: int
    subject: str
    status: str
    owner_name: str | None = None
    blocked_by: tuple[str, ...] = ()
    ready: bool = False
    write_scopes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.status in {"pending", "in_progress"}


class TeamView(View):
    team_id: str
    members: tuple[MemberView, ...]
    tasks: tuple[TaskView, ...] = ()
    failure: Any = None

    @property
    def lead(self) -> MemberView:
        """The Lead, always the first member."""
        return self.members[0]

    @property
    def is_settled(self) -> bool:
        """No member has an open turn or input that would open one."""
        return not any(member.is_busy for member in self.members)


class EventView(View):
    seq: int
    time: str
    type: str
    data: dict[str, Any]


class EventPage(View):
    events: tuple[EventView, ...]
    last_seq: int = 0


class ExecutingView(View):
    turn_id: str
    member: str | None = None
    team_id: str | None = None


class WorkerView(View):
    name: str
    last_seen: str | None = None
    executing: tuple[ExecutingView, ...] = ()
    slots: int = 0


class DoctorSession(View):
    id: str
    events: int
    ok: bool
    fault: str | None = None


class DoctorView(View):
    ok: bool
    sessions: tuple[DoctorSession, ...] = Field(default=())
