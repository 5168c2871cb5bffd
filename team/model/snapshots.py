"""Durable values: the Session header, whole roster and task snapshots, sources of messages."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Discriminator, Field

from team.model.ids import (
    LEAD_NAME,
    MAX_SAFE_INTEGER,
    MessageId,
    SessionId,
    TaskId,
    TeamId,
    TurnId,
    task_number,
)
from team.model.values import Value

MAX_NAME_LENGTH: Final = 64
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")

Provider = Literal["fresh", "fork", "external"]
Context = Literal["fresh", "fork"]
Phase = Literal["provisioning", "active", "failed"]
TaskStatus = Literal["pending", "in_progress", "completed", "deleted"]
SequenceNumber = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]


UNOWNED: Final = "unowned"
"""The owner filter for tasks of nobody; no member can have this name."""


def is_member_name(name: str) -> bool:
    """Lowercase kebab-case, at most 64 characters, not a reserved word."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None and name not in (LEAD_NAME, UNOWNED)


def _member_name(name: str) -> str:
    if not is_member_name(name):
        raise ValueError(f"{name!r} is not a member name")
    return name


def _task_id(value: str) -> str:
    if task_number(value) is None:
        raise ValueError(f"{value!r} is not a task id")
    return value


MemberName = Annotated[str, AfterValidator(_member_name)]
CheckedTaskId = Annotated[TaskId, AfterValidator(_task_id)]


class MemberSnapshot(Value):
    """One roster member, whole. ``name`` is immutable and reserved for ever by the first record."""

    id: SessionId
    name: MemberName
    description: str
    provider: Provider
    context: Context
    phase: Phase
    error: str | None = None
    model: str | None = None


class TaskSnapshot(Value):
    """One task of the board, whole; ``revision`` grows by one with each snapshot."""

    id: CheckedTaskId
    revision: SequenceNumber
    subject: str
    description: str
    status: TaskStatus
    owner_id: SessionId | None = None
    blocked_by: tuple[CheckedTaskId, ...] = ()
    write_scopes: tuple[str, ...] = ()


class ForkOrigin(Value):
    session_id: SessionId
    through: int = Field(ge=0)


class SessionHeader(Value):
    """What never changes of a Session; stored beside its log, first line of an export.

    ``seed_through`` counts the events copied from ``forked_from`` at creation: they are conversation only.
    """

    version: Literal[1] = 1
    id: SessionId
    created_at: str
    profile: str
    cwd: str
    depth: int = Field(ge=0)
    root_id: SessionId
    parent_id: SessionId | None = None
    forked_from: ForkOrigin | None = None
    seed_through: int = Field(default=0, ge=0)

    @property
    def team_id(self) -> TeamId:
        """The Team that the root of this Session leads."""
        return TeamId(self.root_id)


class HumanSource(Value):
    kind: Literal["human"] = "human"
    actor: str | None = None


class DelegationSource(Value):
    """A prompt of a child, written by its parent: the first one, and what it sends later to a subagent."""

    kind: Literal["delegation"] = "delegation"
    sender_id: SessionId
    sender_name: str


class TeamMessageSource(Value):
    """A message of a Team member. ``sender_turn`` is absent when an operator acted as the member."""

    kind: Literal["team-message"] = "team-message"
    message_id: MessageId
    sender_id: SessionId
    sender_name: str
    sender_turn: TurnId | None = None
    actor: str | None = None


class RuntimeContextSource(Value):
    """Identity and surroundings of one Session, injected by the coordinator."""

    kind: Literal["runtime-context"] = "runtime-context"
    session_id: SessionId


class SettlementSource(Value):
    """A notice that the turn of a member ended, or of a background subagent, whose name is its label."""

    kind: Literal["settlement"] = "settlement"
    member_id: SessionId
    member_name: str
    turn_id: TurnId


Source = Annotated[
    HumanSource | DelegationSource | TeamMessageSource | RuntimeContextSource | SettlementSource,
    Discriminator("kind"),
]

WAKING: Final = frozenset({"human", "team-message", "delegation"})
"""Sources that release held input; a system notice does not (DESIGN section 5)."""
