"""Workflow rows: the paused scripts of open workflow calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, insert, or_, select, update

from team.log.events import naming
from team.log.tables import DelegationRow, EventRow, WorkflowRow, table
from team.model.events import WorkflowAnswered, WorkflowAsked, decode_stored
from team.model.ids import SessionId, TeamId, TurnId

_workflow = table(WorkflowRow)
_delegation = table(DelegationRow)
_event = table(EventRow)


@dataclass(frozen=True)
class WorkflowKey:
    """The waiting call: turn, step, index."""

    turn_id: TurnId
    step: int
    index: int


@dataclass(frozen=True)
class Workflow:
    """One row; the columns are explained at ``WorkflowRow``."""

    turn_id: TurnId
    step: int
    index: int
    session_id: SessionId
    team_id: TeamId
    call_id: str
    due: bool = True
    revision: int = 0
    attempts: int = 0
    busy_until: float | None = None
    engine: str | None = None
    snapshot: bytes | None = None
    pending: str = "{}"
    delivered: int = 0

    @property
    def key(self) -> WorkflowKey:
        return WorkflowKey(self.turn_id, self.step, self.index)


def insert_workflow(connection: Connection, workflow: Workflow) -> None:
    connection.execute(insert(_workflow).values(**vars(workflow)))


def find_workflow(connection: Connection, key: WorkflowKey) -> Workflow | None:
    row = connection.execute(select(_workflow).where(_at(key))).one_or_none()
    return None if row is None else Workflow(*row)


def team_workflows(connection: Connection, team_id: str) -> Sequence[Workflow]:
    """The workflows of all Sessions of a Team's tree."""
    query = select(_workflow).where(_workflow.c.team_id == team_id)
    return [Workflow(*row) for row in connection.execute(query)]


def update_workflow(connection: Connection, key: WorkflowKey, **values: Any) -> None:
    connection.execute(update(_workflow).where(_at(key)).values(**values))


def drop_workflow(connection: Connection, key: WorkflowKey) -> None:
    connection.execute(delete(_workflow).where(_at(key)))


def drop_turn(connection: Connection, turn_id: str) -> None:
    """Forget the workflows of all calls of a turn."""
    connection.execute(delete(_workflow).where(_workflow.c.turn_id == turn_id))


def read_records(connection: Connection, session_id: str, after: int) -> list[WorkflowAsked | WorkflowAnswered]:
    """What the workflows of a Session asked and were answered behind an event, in log order. Raises LogDamaged."""
    types = (WorkflowAsked.event_type, WorkflowAnswered.event_type)
    query = (
        select(_event.c.type, _event.c.data)
        .where(_event.c.session_id == session_id, _event.c.seq > after, _event.c.type.in_(types))
        .order_by(_event.c.seq)
    )
    with naming(session_id):
        found = [decode_stored(row[0], row[1]) for row in connection.execute(query)]
    return [data for data in found if isinstance(data, WorkflowAsked | WorkflowAnswered)]


def due_workflows(connection: Connection, now: float, limit: int = 50) -> Sequence[WorkflowKey]:
    """Workflows whose script has something to do, or of which a child has ended, and that nobody runs now."""
    child_ended = exists().where(
        _delegation.c.turn_id == _workflow.c.turn_id,
        _delegation.c.step == _workflow.c.step,
        _delegation.c.index == _workflow.c.index,
        _delegation.c.ended_turn.is_not(None),
    )
    query = (
        select(_workflow.c.turn_id, _workflow.c.step, _workflow.c.index)
        .where(
            or_(_workflow.c.due, child_ended),
            or_(_workflow.c.busy_until.is_(None), _workflow.c.busy_until <= now),
        )
        .limit(limit)
    )
    return [WorkflowKey(TurnId(row[0]), row[1], row[2]) for row in connection.execute(query)]


def _at(key: WorkflowKey) -> Any:
    return and_(_workflow.c.turn_id == key.turn_id, _workflow.c.step == key.step, _workflow.c.index == key.index)
