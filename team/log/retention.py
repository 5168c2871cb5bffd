"""Runtime rows that outlived their use. Each call deletes a bounded number, so that no transaction is long."""

from typing import Final, Literal

from sqlalchemy import Connection, delete, select, tuple_

from team.log.tables import ClaimRow, IdempotencyRow, WorkerRow, WriteRow, table

Records = Literal["requests", "writes", "claims", "workers"]

_CLOCKS: Final = {
    "requests": table(IdempotencyRow).c.created_at,
    "writes": table(WriteRow).c.created_at,
    "claims": table(ClaimRow).c.claimed_at,
    "workers": table(WorkerRow).c.last_seen,
}


def forget(connection: Connection, records: Records, before: float, limit: int) -> int:
    """Delete at most ``limit`` rows that are older than ``before``; returns how many there were."""
    clock = _CLOCKS[records]
    keys = tuple(clock.table.primary_key.columns)
    aged = select(*keys).where(clock < before).limit(limit)
    return connection.execute(delete(clock.table).where(tuple_(*keys).in_(aged))).rowcount
