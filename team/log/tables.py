# pyright: reportAssignmentType=false, reportIncompatibleVariableOverride=false
# SQLModel types __tablename__ as a declared attribute and metadata as an instance variable.
"""SQL tables of the log. Projections can be rebuilt from events; runtime rows are not events and are not compared.

Every ``data`` column holds the whole value as compact camelCase JSON text (never JSONB: it reorders keys); the columns
beside it are the ones that queries need.
"""

from typing import Any, ClassVar, cast

from sqlalchemy import BigInteger, Index, MetaData, Table, UniqueConstraint, text
from sqlmodel import Field, SQLModel

PROJECTION_VERSION = 2
"""Raised when a slice changes its meaning: a store with another version is rebuilt at start."""


class Row(SQLModel):
    """Base of all tables."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class MetaRow(Row, table=True):
    """Facts about the store: projection version, workspace id."""

    __tablename__ = "meta"
    key: str = Field(primary_key=True)
    value: str


class SessionRow(Row, table=True):
    """One Session: its immutable header, its head slice (projection) and its claim guard (runtime).

    ``tokens``: what the head counts, for the sum of a Team.

    ``guard_*``: an interrupted turn whose worker has not confirmed yet; nothing of this Session is claimed until it
    does or ``guard_until`` passes.
    """

    __tablename__ = "session"
    __table_args__ = (Index("ix_session_root", "root_id", "depth", "created_order"),)
    id: str = Field(primary_key=True)
    root_id: str
    parent_id: str | None = Field(default=None, index=True)
    depth: int
    created_order: float
    header: str
    head: str
    seq: int
    tokens: int = Field(default=0, sa_type=BigInteger)
    guard_turn: str | None = None
    guard_epoch: int | None = None
    guard_until: float | None = None


class EventRow(Row, table=True):
    """The log itself. ``visible`` marks what the history builder reads."""

    __tablename__ = "event"
    __table_args__ = (
        Index(
            "ix_event_visible",
            "session_id",
            "seq",
            postgresql_where=text("visible"),
            sqlite_where=text("visible"),
        ),
    )
    session_id: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    time: str
    type: str
    visible: bool
    data: str


class MemberRow(Row, table=True):
    """Roster projection, in the Lead's log. ``position`` is the order of creation."""

    __tablename__ = "member"
    session_id: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    member_id: str = Field(index=True)
    phase: str
    position: int
    data: str


class TaskRow(Row, table=True):
    """Board projection, in the Lead's log. A task's number runs to 2^53-1."""

    __tablename__ = "task"
    session_id: str = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BigInteger)
    status: str
    owner_id: str | None = None
    data: str


class InboxRow(Row, table=True):
    """Inbox projection: pending, claimed and discarded messages; content stays in the event ``seq``."""

    __tablename__ = "inbox"
    __table_args__ = (
        Index(
            "ix_inbox_pending",
            "session_id",
            "seq",
            postgresql_where=text("state = 'pending'"),
            sqlite_where=text("state = 'pending'"),
        ),
        Index("ix_inbox_sender_turn", "session_id", "sender_turn"),
    )
    session_id: str = Field(primary_key=True)
    message_id: str = Field(primary_key=True)
    seq: int
    state: str
    sender_turn: str | None = None
    data: str


class TurnRow(Row, table=True):
    """Turn history projection. At most one turn of a Session has not ended."""

    __tablename__ = "turn"
    __table_args__ = (
        Index("ix_turn_session", "session_id", "ordinal"),
        Index(
            "uq_turn_open",
            "session_id",
            unique=True,
            postgresql_where=text("phase <> 'ended'"),
            sqlite_where=text("phase <> 'ended'"),
        ),
    )
    turn_id: str = Field(primary_key=True)
    session_id: str
    ordinal: int
    phase: str
    data: str


class CallRow(Row, table=True):
    """Call projection: the exactly-once key of a tool call is (turn, step, index)."""

    __tablename__ = "call"
    __table_args__ = (UniqueConstraint("session_id", "turn_id", "step", "index"),)
    session_id: str = Field(primary_key=True)
    call_id: str = Field(primary_key=True)
    turn_id: str
    step: int
    index: int
    seq: int
    result_seq: int | None = None
    data: str


class FileRow(Row, table=True):
    """File versions that a Session has seen."""

    __tablename__ = "file"
    session_id: str = Field(primary_key=True)
    path: str = Field(primary_key=True)
    data: str


class TeamRow(Row, table=True):
    """Runtime: the edge counter and the lock of one Team.

    ``run_*``: when the newest human prompt was accepted, the tokens that the Team had used by then, and the turns that
    it has begun since. Budgets count from there.
    """

    __tablename__ = "team"
    team_id: str = Field(primary_key=True)
    edge_counter: int = 0
    closed: bool = False
    run_since: float = 0.0
    run_tokens: int = Field(default=0, sa_type=BigInteger)
    run_turns: int = 0


class RunRow(Row, table=True):
    """Runtime of an open turn: queued, running or parked; epoch, lease, dispatch. Gone when the turn has ended."""

    __tablename__ = "run"
    __table_args__ = (
        Index("ix_run_dispatch", "state", "next_dispatch_at"),
        Index("ix_run_lease", "state", "lease_until"),
    )
    turn_id: str = Field(primary_key=True)
    session_id: str = Field(index=True)
    team_id: str = Field(index=True)
    member: str
    queue: str
    state: str
    state_since: float
    reason: str
    epoch: int = 0
    losses: int = 0
    attempts: int = 0
    worker: str | None = None
    token: str | None = None
    request_id: str | None = Field(default=None, unique=True)
    lease_until: float | None = None
    next_dispatch_at: float | None = None
    dispatches: int = 0


class ClaimRow(Row, table=True):
    """Runtime record of who claimed what: one row per epoch of a turn, kept for operators."""

    __tablename__ = "claim"
    turn_id: str = Field(primary_key=True)
    epoch: int = Field(primary_key=True)
    session_id: str = Field(index=True)
    worker: str
    claimed_at: float


class WriteRow(Row, table=True):
    """Runtime: the recorded response of one numbered worker write; dropped when no retry can ask for it."""

    __tablename__ = "write"
    turn_id: str = Field(primary_key=True)
    epoch: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    session_id: str
    token: str
    kind: str
    response: str
    created_at: float = Field(index=True)


class WaitRow(Row, table=True):
    """Runtime: what an open turn waits for. ``counter`` is the Team's edge counter at registration.

    Without a deadline it ends with what it waits for, or with its turn.
    """

    __tablename__ = "wait"
    __table_args__ = (
        Index("ix_wait_team", "team_id", "counter"),
        Index("ix_wait_deadline", "deadline"),
    )
    turn_id: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    index: int = Field(primary_key=True)
    kind: str
    session_id: str
    team_id: str
    call_id: str | None = None
    counter: int
    deadline: float | None = None


class DelegationRow(Row, table=True):
    """Runtime: a one-shot child that an open call waits for; a call may wait for several. ``ended_turn`` is set when
    the child's turn has ended and the call has not taken its outcome yet.
    """

    __tablename__ = "delegation"
    __table_args__ = (Index("ix_delegation_call", "turn_id", "step", "index"),)
    child_id: str = Field(primary_key=True)
    turn_id: str
    step: int
    index: int
    ended_turn: str | None = None


class WorkflowRow(Row, table=True):
    """Runtime: the paused script of a workflow call. ``due`` says that the script has something to do.

    ``snapshot`` belongs to the ``engine`` that wrote it and stands behind batch ``delivered``; ``pending`` maps its
    calls to items. Whoever runs the script raises ``revision`` and is left alone until ``busy_until``; ``attempts``
    counts runs without an outcome.
    """

    __tablename__ = "workflow"
    __table_args__ = (Index("ix_workflow_due", "due", "busy_until"),)
    turn_id: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    index: int = Field(primary_key=True)
    session_id: str
    team_id: str
    call_id: str
    due: bool = True
    revision: int = 0
    attempts: int = 0
    busy_until: float | None = None
    engine: str | None = None
    snapshot: bytes | None = None
    pending: str = "{}"
    delivered: int = 0


class OperationRow(Row, table=True):
    """Runtime: a provisioning between its two commits, or one that failed.

    ``lease_until`` keeps recovery away from a live creator; without it the provisioning has failed, and the row tells
    its own call from another one that wants the name.
    """

    __tablename__ = "operation"
    team_id: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    call_key: str
    lease_until: float | None = None


class InviteRow(Row, table=True):
    """Runtime: the one invitation of an external member. Its token is nowhere: ``token_hash`` is its SHA-256.

    Without a row the member cannot act. It does not travel with an exported log.
    """

    __tablename__ = "invite"
    session_id: str = Field(primary_key=True)
    team_id: str = Field(index=True)
    token_hash: str = Field(unique=True)
    created_at: float


class IdempotencyRow(Row, table=True):
    """Runtime: the recorded response of a public POST."""

    __tablename__ = "idempotency"
    actor: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    request: str
    response: str
    created_at: float = Field(index=True)


class WorkerRow(Row, table=True):
    """Runtime: workers by their last heartbeat; ``queues`` are joined by commas."""

    __tablename__ = "worker"
    name: str = Field(primary_key=True)
    last_seen: float
    slots: int
    queues: str


def table(row: type[Row]) -> Table:
    """The SQLAlchemy table of a row class."""
    return cast("Table", cast("Any", row).__table__)
