"""Wait rows: what open turns wait for. A row exists exactly while its wait is open."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from team.log.tables import TeamRow, WaitRow, table
from team.model.ids import SessionId, TeamId, TurnId

_wait = table(WaitRow)
_team = table(TeamRow)


@dataclass(frozen=True)
class Wait:
    turn_id: TurnId
    step: int
    index: int
    kind: str
    session_id: SessionId
    team_id: TeamId
    call_id: str | None
    counter: int
    deadline: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether its deadline, if it has one, has passed."""
        return self.deadline is not None and self.deadline <= now


def insert_wait(connection: Connection, wait: Wait) -> None:
    connection.execute(insert(_wait).values(**vars(wait)))


def take_wait(connection: Connection, wait: Wait) -> bool:
    """Compare-and-set open to resolved: exactly one caller gets True."""
    taken = connection.execute(
        delete(_wait).where(_wait.c.turn_id == wait.turn_id, _wait.c.step == wait.step, _wait.c.index == wait.index)
    )
    return taken.rowcount > 0


def find_wait(connection: Connection, turn_id: str, step: int, index: int) -> Wait | None:
    """The open wait of one call."""
    query = select(_wait).where(_wait.c.turn_id == turn_id, _wait.c.step == step, _wait.c.index == index)
    row = connection.execute(query).one_or_none()
    return None if row is None else Wait(*row)


def turn_waits(connection: Connection, turn_id: str) -> list[Wait]:
    query = select(_wait).where(_wait.c.turn_id == turn_id).order_by(_wait.c.step, _wait.c.index)
    return [Wait(*row) for row in connection.execute(query)]


def turns_waits(connection: Connection, turn_ids: Sequence[str]) -> list[Wait]:
    query = select(_wait).where(_wait.c.turn_id.in_(list(turn_ids)))
    return [Wait(*row) for row in connection.execute(query)]


def team_waits(connection: Connection, team_id: str) -> list[Wait]:
    query = select(_wait).where(_wait.c.team_id == team_id)
    return [Wait(*row) for row in connection.execute(query)]


def woken_waits(connection: Connection, team_id: str, counter: int) -> list[Wait]:
    """Open wait_agent waits of the Team that were registered before this edge."""
    query = select(_wait).where(_wait.c.team_id == team_id, _wait.c.kind == "wait-agent", _wait.c.counter < counter)
    return [Wait(*row) for row in connection.execute(query)]


def missed_teams(connection: Connection) -> list[tuple[TeamId, int]]:
    """Teams with an open wait that an edge has passed: what pub/sub lost."""
    query = (
        select(_team.c.team_id, func.max(_team.c.edge_counter))
        .join(_wait, _wait.c.team_id == _team.c.team_id)
        .where(_wait.c.kind == "wait-agent", _wait.c.counter < _team.c.edge_counter)
        .group_by(_team.c.team_id)
    )
    return [(TeamId(row[0]), row[1]) for row in connection.execute(query)]


def due_waits(connection: Connection, now: float, limit: int = 500) -> list[Wait]:
    query = select(_wait).where(_wait.c.deadline <= now).order_by(_wait.c.deadline).limit(limit)
    return [Wait(*row) for row in connection.execute(query)]
