"""Runtime records of things between two commits: provisioning operations and idempotent public requests."""

from sqlalchemy import Connection, delete, insert, select, update

from team.log.tables import IdempotencyRow, OperationRow, table

_operation = table(OperationRow)
_idempotency = table(IdempotencyRow)


def open_operation(connection: Connection, team_id: str, name: str, call_key: str, lease_until: float) -> None:
    connection.execute(
        insert(_operation).values(team_id=team_id, name=name, call_key=call_key, lease_until=lease_until)
    )


def operation_key(connection: Connection, team_id: str, name: str) -> str | None:
    """The call that provisions this name, or that failed to."""
    query = select(_operation.c.call_key).where(_operation.c.team_id == team_id, _operation.c.name == name)
    return connection.execute(query).scalar_one_or_none()


def renew_operation(connection: Connection, team_id: str, name: str, lease_until: float) -> None:
    connection.execute(
        update(_operation)
        .where(_operation.c.team_id == team_id, _operation.c.name == name)
        .values(lease_until=lease_until)
    )


def fail_operation(connection: Connection, team_id: str, name: str) -> None:
    """The provisioning has failed: nothing is left to recover, and its call can still be told so."""
    connection.execute(
        update(_operation).where(_operation.c.team_id == team_id, _operation.c.name == name).values(lease_until=None)
    )


def close_operation(connection: Connection, team_id: str, name: str) -> None:
    connection.execute(delete(_operation).where(_operation.c.team_id == team_id, _operation.c.name == name))


def is_expired(connection: Connection, team_id: str, name: str, now: float) -> bool:
    """Whether the creator of this name is gone now."""
    query = select(_operation.c.lease_until).where(_operation.c.team_id == team_id, _operation.c.name == name)
    lease_until = connection.execute(query).scalar_one_or_none()
    return lease_until is not None and lease_until < now


def expired_operations(connection: Connection, now: float) -> list[tuple[str, str, str]]:
    """(Team, name, call key) of provisionings whose creator is gone."""
    query = select(_operation.c.team_id, _operation.c.name, _operation.c.call_key).where(_operation.c.lease_until < now)
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]


def recorded_request(connection: Connection, actor: str, key: str) -> tuple[str, str] | None:
    """(request hash, response) recorded for this Idempotency-Key."""
    query = select(_idempotency.c.request, _idempotency.c.response).where(
        _idempotency.c.actor == actor, _idempotency.c.key == key
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def record_request(connection: Connection, actor: str, key: str, request: str, response: str, now: float) -> None:
    """Record a response. When the key was recorded meanwhile, the database refuses and the transaction is retried."""
    connection.execute(
        insert(_idempotency).values(actor=actor, key=key, request=request, response=response, created_at=now)
    )
