"""Delegation rows: which one-shot children an open call waits for. A child is awaited by at most one call."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from team.log.tables import DelegationRow, RunRow, table
from team.model.ids import SessionId, TurnId

_delegation = table(DelegationRow)
_run = table(RunRow)


@dataclass(frozen=True)
class Delegation:
    """``turn_id``, ``step`` and ``index`` name the waiting call."""

    child_id: SessionId
    turn_id: TurnId
    step: int
    index: int
    ended_turn: TurnId | None = None


def insert_delegation(connection: Connection, delegation: Delegation) -> None:
    connection.execute(insert(_delegation).values(**vars(delegation)))


def find_delegation(connection: Connection, child_id: str) -> Delegation | None:
    """Who waits for this child."""
    row = connection.execute(select(_delegation).where(_delegation.c.child_id == child_id)).one_or_none()
    return None if row is None else Delegation(*row)


def end_delegation(connection: Connection, child_id: str, ended_turn: str) -> None:
    """Note that the child's turn has ended; the row stays until the call takes the outcome."""
    connection.execute(update(_delegation).where(_delegation.c.child_id == child_id).values(ended_turn=ended_turn))


def drop_delegation(connection: Connection, child_id: str) -> None:
    connection.execute(delete(_delegation).where(_delegation.c.child_id == child_id))


def call_delegations(connection: Connection, turn_id: str, step: int, index: int) -> list[Delegation]:
    """The children that one call waits for, ended ones too."""
    query = select(_delegation).where(
        _delegation.c.turn_id == turn_id, _delegation.c.step == step, _delegation.c.index == index
    )
    return [Delegation(*row) for row in connection.execute(query)]


def ended_delegations(connection: Connection, limit: int = 500) -> list[Delegation]:
    """Ended children whose outcome no call has taken: what a sweep hands on after a crash."""
    query = select(_delegation).where(_delegation.c.ended_turn.is_not(None)).limit(limit)
    return [Delegation(*row) for row in connection.execute(query)]


def drop_turn(connection: Connection, turn_id: str) -> list[SessionId]:
    """Forget the children of all calls of a turn; returns them."""
    children = [
        SessionId(child)
        for child in connection.execute(
            select(_delegation.c.child_id).where(_delegation.c.turn_id == turn_id)
        ).scalars()
    ]
    if children:
        connection.execute(delete(_delegation).where(_delegation.c.turn_id == turn_id))
    return children


def open_children(connection: Connection, turn_ids: Sequence[str]) -> list[tuple[SessionId, TurnId]]:
    """The children that calls of these turns wait for, each with its open turn."""
    query = (
        select(_delegation.c.child_id, _run.c.turn_id)
        .join(_run, _run.c.session_id == _delegation.c.child_id)
        .where(_delegation.c.turn_id.in_(list(turn_ids)))
    )
    return [(SessionId(row[0]), TurnId(row[1])) for row in connection.execute(query)]
