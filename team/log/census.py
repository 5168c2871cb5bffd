"""Census: how much is open right now. Counted over runtime rows, whose number does not grow with any log."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from team.log.tables import RunRow, WaitRow, table

_run = table(RunRow)
_wait = table(WaitRow)


@dataclass(frozen=True)
class Census:
    """Open turns by (state, queue), Teams that have one, the age of the oldest queued turn, open waits by kind."""

    turns: dict[tuple[str, str], int]
    teams: int
    oldest_queued_seconds: dict[str, float]
    waits: dict[str, int]


def take_census(connection: Connection, now: float) -> Census:
    """Count what is open. ``now`` is the database's clock."""
    turns = select(_run.c.state, _run.c.queue, func.count(), func.min(_run.c.state_since)).group_by(
        _run.c.state, _run.c.queue
    )
    rows = connection.execute(turns).all()
    teams = connection.execute(select(func.count(func.distinct(_run.c.team_id)))).scalar_one()
    waits = connection.execute(select(_wait.c.kind, func.count()).group_by(_wait.c.kind)).all()
    return Census(
        turns={(row[0], row[1]): row[2] for row in rows},
        teams=teams,
        oldest_queued_seconds={row[1]: max(0.0, now - row[3]) for row in rows if row[0] == "queued"},
        waits={row[0]: row[1] for row in waits},
    )
