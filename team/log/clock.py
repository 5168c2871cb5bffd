"""Runtime times that lie further ahead than they may: what is left when the database's clock went back."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, select, update

from team.log.tables import OperationRow, RunRow, SessionRow, WaitRow, table

_run, _session = table(RunRow), table(SessionRow)
_operation, _wait = table(OperationRow), table(WaitRow)


def _columns(lease_until: float, dispatch_at: float, deadline: float) -> Sequence[tuple[Any, "Column[Any]", float]]:
    """(table, column, latest value) of everything that ends by the clock."""
    return (
        (_run, _run.c.lease_until, lease_until),
        (_run, _run.c.next_dispatch_at, dispatch_at),
        (_session, _session.c.guard_until, lease_until),
        (_operation, _operation.c.lease_until, lease_until),
        (_wait, _wait.c.deadline, deadline),
    )


def lies_ahead(connection: Connection, *, lease_until: float, dispatch_at: float, deadline: float) -> bool:
    """Whether any lease, dispatch or deadline lies behind the latest moment that it can have."""
    columns = _columns(lease_until, dispatch_at, deadline)
    return any(
        connection.execute(select(column).where(column > latest).limit(1)).first() is not None
        for _table, column, latest in columns
    )


def bring_back(connection: Connection, *, lease_until: float, dispatch_at: float, deadline: float) -> int:
    """Set each such time to its latest possible moment; returns how many."""
    changed = 0
    for target, column, latest in _columns(lease_until, dispatch_at, deadline):
        statement = update(target).where(column > latest).values({column.name: latest})
        changed += connection.execute(statement).rowcount
    return changed
