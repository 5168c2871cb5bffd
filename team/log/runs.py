"""Runtime of open turns: queue, claims, leases, recorded writes. Not events; lost only together with the database."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from team.log.tables import ClaimRow, RunRow, SessionRow, WorkerRow, WriteRow, table
from team.model.ids import SessionId, TeamId, TurnId

_run = table(RunRow)
_write = table(WriteRow)
_claim = table(ClaimRow)
_worker = table(WorkerRow)
_session = table(SessionRow)


@dataclass(frozen=True)
class Run:
    """The runtime row of one open turn."""

    turn_id: TurnId
    session_id: SessionId
    team_id: TeamId
    member: str
    queue: str
    state: str
    state_since: float
    reason: str
    epoch: int
    losses: int
    attempts: int
    worker: str | None
    token: str | None
    request_id: str | None
    lease_until: float | None
    next_dispatch_at: float | None
    dispatches: int


def ids_of(run: Run) -> dict[str, str]:
    """What every line of a log about a turn names, as far as it is known."""
    found = {"team": run.team_id, "member": run.member, "session": run.session_id, "turn": run.turn_id}
    return found if run.worker is None else {**found, "worker": run.worker}


def find_run(connection: Connection, turn_id: str) -> Run | None:
    row = connection.execute(select(_run).where(_run.c.turn_id == turn_id)).one_or_none()
    return None if row is None else Run(*row)


def lock_run(connection: Connection, turn_id: str) -> Run | None:
    """The run with its row locked, after its Session's: a heartbeat renews leases under the row's lock alone, so a
    lease that decides something is read here.
    """
    row = connection.execute(select(_run).where(_run.c.turn_id == turn_id).with_for_update()).one_or_none()
    return None if row is None else Run(*row)


def find_request(connection: Connection, request_id: str) -> Run | None:
    """The run that this claim request already got."""
    row = connection.execute(select(_run).where(_run.c.request_id == request_id)).one_or_none()
    return None if row is None else Run(*row)


def session_run(connection: Connection, session_id: str) -> Run | None:
    row = connection.execute(select(_run).where(_run.c.session_id == session_id)).one_or_none()
    return None if row is None else Run(*row)


def team_runs(connection: Connection, team_id: str) -> list[Run]:
    """Open turns of a Team's tree, roster or not."""
    return [Run(*row) for row in connection.execute(select(_run).where(_run.c.team_id == team_id))]


def insert_run(
    connection: Connection,
    *,
    turn_id: str,
    session_id: str,
    team_id: str,
    member: str,
    queue: str,
    now: float,
    dispatch_at: float,
    reason: str,
) -> None:
    connection.execute(
        insert(_run).values(
            turn_id=turn_id,
            session_id=session_id,
            team_id=team_id,
            member=member,
            queue=queue,
            state="queued",
            state_since=now,
            reason=reason,
            epoch=0,
            losses=0,
            attempts=0,
            next_dispatch_at=dispatch_at,
            dispatches=0,
        )
    )


def queue_run(
    connection: Connection, turn_id: str, *, now: float, dispatch_at: float, reason: str, losses: int
) -> None:
    """Back to the queue: from running (hand-over, lost lease) or parked."""
    connection.execute(
        update(_run)
        .where(_run.c.turn_id == turn_id)
        .values(
            state="queued",
            state_since=now,
            reason=reason,
            losses=losses,
            worker=None,
            token=None,
            request_id=None,
            lease_until=None,
            next_dispatch_at=dispatch_at,
            dispatches=0,
        )
    )


def park_run(connection: Connection, turn_id: str, *, now: float, reason: str) -> None:
    connection.execute(
        update(_run)
        .where(_run.c.turn_id == turn_id)
        .values(
            state="parked",
            state_since=now,
            reason=reason,
            losses=0,
            worker=None,
            token=None,
            request_id=None,
            lease_until=None,
            next_dispatch_at=None,
        )
    )


def claim_run(
    connection: Connection, run: Run, *, worker: str, token: str, request_id: str, now: float, lease_until: float
) -> bool:
    """Compare-and-set queued to running with the next epoch; False when somebody else was first."""
    changed = connection.execute(
        update(_run)
        .where(_run.c.turn_id == run.turn_id, _run.c.state == "queued", _run.c.epoch == run.epoch)
        .values(
            state="running",
            state_since=now,
            reason="",
            epoch=run.epoch + 1,
            worker=worker,
            token=token,
            request_id=request_id,
            lease_until=lease_until,
            next_dispatch_at=None,
        )
    )
    if changed.rowcount == 0:
        return False
    connection.execute(
        insert(_claim).values(
            turn_id=run.turn_id,
            epoch=run.epoch + 1,
            session_id=run.session_id,
            worker=worker,
            claimed_at=now,
        )
    )
    return True


def delete_run(connection: Connection, turn_id: str) -> None:
    """Forget the runtime of a turn that has ended, its recorded writes too."""
    connection.execute(delete(_write).where(_write.c.turn_id == turn_id))
    connection.execute(delete(_run).where(_run.c.turn_id == turn_id))


def step_done(connection: Connection, turn_id: str) -> None:
    """A step was committed: lost workers and failed requests before it no longer count."""
    connection.execute(
        update(_run)
        .where(_run.c.turn_id == turn_id, or_(_run.c.losses > 0, _run.c.attempts > 0))
        .values(losses=0, attempts=0)
    )


def count_attempt(connection: Connection, turn_id: str) -> None:
    """One more request of this step failed and was put off."""
    connection.execute(update(_run).where(_run.c.turn_id == turn_id).values(attempts=_run.c.attempts + 1))


def first_claimed(connection: Connection, turn_id: str) -> float | None:
    """When a turn was claimed for the first time, in seconds since 1970; None before that."""
    query = select(_claim.c.claimed_at).where(_claim.c.turn_id == turn_id, _claim.c.epoch == 1)
    return connection.execute(query).scalar_one_or_none()


def queued_runs(connection: Connection, queues: Sequence[str], now: float, limit: int) -> list[Run]:
    """Claimable turns, longest queued first; a Session guarded for an unconfirmed worker is left out."""
    query = (
        select(_run)
        .join(_session, _session.c.id == _run.c.session_id)
        .where(
            _run.c.state == "queued",
            _run.c.queue.in_(list(queues)),
            or_(_session.c.guard_until.is_(None), _session.c.guard_until < now),
        )
        .order_by(_run.c.state_since, _run.c.turn_id)
        .limit(limit)
    )
    return [Run(*row) for row in connection.execute(query)]


def renew(connection: Connection, turn_id: str, epoch: int, worker: str, lease_until: float) -> bool:
    """Extend the lease of exactly this claim; False when the claim is over."""
    changed = connection.execute(
        update(_run)
        .where(_run.c.turn_id == turn_id, _run.c.epoch == epoch, _run.c.state == "running", _run.c.worker == worker)
        .values(lease_until=lease_until)
    )
    return changed.rowcount > 0


def end_lease(connection: Connection, turn_id: str, epoch: int, worker: str, now: float) -> None:
    """The lease of exactly this claim is over: its own worker has let go of it."""
    connection.execute(
        update(_run)
        .where(_run.c.turn_id == turn_id, _run.c.epoch == epoch, _run.c.state == "running", _run.c.worker == worker)
        .values(lease_until=now)
    )


def expired_runs(connection: Connection, now: float, limit: int) -> list[Run]:
    query = (
        select(_run)
        .where(_run.c.state == "running", _run.c.lease_until < now)
        .order_by(_run.c.lease_until)
        .limit(limit)
    )
    return [Run(*row) for row in connection.execute(query)]


def due_runs(
    connection: Connection, now: float, limit: int, *, queues: Sequence[str] | None = None, take: bool = False
) -> list[Run]:
    """Queued turns of these queues, or of all, whose dispatch is due, in order; ``take`` locks them and leaves out
    another coordinator's.
    """
    query = select(_run).where(_run.c.state == "queued", _run.c.next_dispatch_at <= now)
    if queues is not None:
        query = query.where(_run.c.queue.in_(list(queues)))
    query = query.order_by(_run.c.next_dispatch_at).limit(limit)
    if take:
        query = query.with_for_update(skip_locked=True)
    return [Run(*row) for row in connection.execute(query)]


def postpone_dispatch(connection: Connection, turn_ids: Sequence[str], next_at: Sequence[float]) -> None:
    for turn_id, at in zip(turn_ids, next_at, strict=True):
        connection.execute(
            update(_run)
            .where(_run.c.turn_id == turn_id, _run.c.state == "queued")
            .values(next_dispatch_at=at, dispatches=_run.c.dispatches + 1)
        )


def return_dispatch(connection: Connection, turn_ids: Sequence[str], next_at: float) -> None:
    """The last dispatch of these turns did not happen."""
    connection.execute(
        update(_run)
        .where(_run.c.turn_id.in_(list(turn_ids)), _run.c.state == "queued", _run.c.dispatches > 0)
        .values(next_dispatch_at=next_at, dispatches=_run.c.dispatches - 1)
    )


def count_queued(connection: Connection) -> dict[str, int]:
    """Queued turns by queue; a queue without one is left out."""
    query = select(_run.c.queue, func.count()).where(_run.c.state == "queued").group_by(_run.c.queue)
    return {row[0]: row[1] for row in connection.execute(query)}


def recorded_write(
    connection: Connection, turn_id: str, epoch: int, number: int, token: str
) -> tuple[SessionId, str, str] | None:
    """(Session, kind, response) of a numbered write that this claim committed before."""
    query = select(_write.c.session_id, _write.c.kind, _write.c.response).where(
        _write.c.turn_id == turn_id, _write.c.epoch == epoch, _write.c.number == number, _write.c.token == token
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (SessionId(row[0]), row[1], row[2])


def record_write(connection: Connection, run: Run, number: int, *, kind: str, response: str, now: float) -> None:
    connection.execute(
        insert(_write).values(
            turn_id=run.turn_id,
            epoch=run.epoch,
            number=number,
            session_id=run.session_id,
            token=run.token,
            kind=kind,
            response=response,
            created_at=now,
        )
    )


def session_workers(connection: Connection, session_id: str) -> list[str]:
    """The workers that ever claimed a turn of this Session, in order of their first claim."""
    query = (
        select(_claim.c.worker)
        .where(_claim.c.session_id == session_id)
        .group_by(_claim.c.worker)
        .order_by(func.min(_claim.c.claimed_at))
    )
    return list(connection.execute(query).scalars())


def claims_of(connection: Connection, root_id: str) -> list[tuple[SessionId, TurnId, str, float]]:
    """(Session, turn, worker, time) of every claim in a tree, in order."""
    query = (
        select(_claim.c.session_id, _claim.c.turn_id, _claim.c.worker, _claim.c.claimed_at)
        .join(_session, _session.c.id == _claim.c.session_id)
        .where(_session.c.root_id == root_id)
        .order_by(_claim.c.claimed_at, _claim.c.epoch)
    )
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]


def tree_workers(connection: Connection, root_id: str) -> dict[str, list[str]]:
    """By Session of a tree: the workers that ever claimed a turn of it, in order of their first claim."""
    query = (
        select(_claim.c.session_id, _claim.c.worker)
        .join(_session, _session.c.id == _claim.c.session_id)
        .where(_session.c.root_id == root_id)
        .group_by(_claim.c.session_id, _claim.c.worker)
        .order_by(func.min(_claim.c.claimed_at))
    )
    found: dict[str, list[str]] = {}
    for session_id, worker in connection.execute(query):
        found.setdefault(session_id, []).append(worker)
    return found


def seen_worker(connection: Connection, name: str, now: float, slots: int, queues: Sequence[str]) -> None:
    """Take note of a worker's heartbeat; the names of ``queues`` hold no comma."""
    values = {"last_seen": now, "slots": slots, "queues": ",".join(queues)}
    make = sqlite_insert if connection.dialect.name == "sqlite" else postgresql_insert
    statement = make(_worker).values(name=name, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


def list_workers(connection: Connection, since: float) -> list[tuple[str, float, int, tuple[str, ...]]]:
    """(name, last heartbeat, slots, queues) of the workers that were heard of since then."""
    query = (
        select(_worker.c.name, _worker.c.last_seen, _worker.c.slots, _worker.c.queues)
        .where(_worker.c.last_seen >= since)
        .order_by(_worker.c.name)
    )
    return [(row[0], row[1], row[2], tuple(row[3].split(","))) for row in connection.execute(query)]


def running_runs(connection: Connection) -> list[Run]:
    return [Run(*row) for row in connection.execute(select(_run).where(_run.c.state == "running"))]
