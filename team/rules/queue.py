"""Opening turns and putting them back into the queue. SQL is the queue; the broker only carries hints."""

from config.profiles import DEFAULT_QUEUE, ProfileError, load_profile
from team.log import runs, waits
from team.log.transaction import Queued, Transaction
from team.model.events import TurnResumed, TurnStarted
from team.model.ids import SessionId, new_turn_id
from team.model.slices import TurnSlice
from team.model.snapshots import SessionHeader
from team.rules.roster import is_member, name_of


def queue_for(tx: Transaction, header: SessionHeader, member: str) -> str:
    """The queue on which a Session's turns are placed, by its profile and the name of its member."""
    try:
        return load_profile(header.profile, tx.settings.profile_dir).queue_of(member)
    except ProfileError:
        # Whoever claims such a turn ends it as error/configuration, so it goes where somebody will.
        return DEFAULT_QUEUE


def queued_of(run: runs.Run) -> Queued:
    return Queued(run.turn_id, run.team_id, run.member, run.queue)


def begin(tx: Transaction, session_id: SessionId, reason: str) -> None:
    """Open a turn and queue it; the Session has none open. An edge when it makes a member available differently.

    The Team is locked.
    """
    header, turn_id = tx.header(session_id), new_turn_id()
    tx.append(session_id, TurnStarted(turn_id=turn_id))
    tx.count_turn(header.team_id)
    member = name_of(tx, header)
    queued = Queued(turn_id, header.team_id, member, queue_for(tx, header, member))
    runs.insert_run(
        tx.connection,
        turn_id=turn_id,
        session_id=session_id,
        team_id=header.team_id,
        member=queued.member,
        queue=queued.queue,
        now=tx.now,
        dispatch_at=tx.now + tx.settings.dispatch_backoff_seconds,
        reason=reason,
    )
    tx.effects.queued.append(queued)
    if is_member(tx, header):
        tx.raise_edge(header.team_id)


def resume_if_free(tx: Transaction, session_id: SessionId, reason: str) -> None:
    """Queue a parked turn that waits for nothing any more; a running one goes on by itself."""
    turn = tx.open_turn(session_id)
    if turn is None or turn.phase != "parked" or waits.turn_waits(tx.connection, turn.turn_id):
        return
    run = runs.find_run(tx.connection, turn.turn_id)
    assert run is not None
    requeue(tx, turn, run, reason)


def requeue(tx: Transaction, turn: TurnSlice, run: runs.Run, reason: str, *, losses: int = 0) -> None:
    """Back to the queue, from running or parked."""
    if turn.phase == "parked":
        tx.append(run.session_id, TurnResumed(turn_id=turn.turn_id))
    dispatch_at = tx.now + tx.settings.dispatch_backoff_seconds
    runs.queue_run(tx.connection, turn.turn_id, now=tx.now, dispatch_at=dispatch_at, reason=reason, losses=losses)
    tx.effects.queued.append(queued_of(run))
