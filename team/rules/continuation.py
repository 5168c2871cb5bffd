"""Continuation: what an imported log needs so that its open work goes on here. Runtime rows do not travel with it."""

from typing import Final

from team.log import operations, runs, waits
from team.log.events import read_last
from team.log.transaction import Transaction
from team.log.waits import Wait
from team.model.events import OpenWait, TurnParked, TurnResumed
from team.model.ids import SessionId
from team.model.slices import TurnSlice
from team.model.snapshots import SessionHeader
from team.rules.queue import begin, queue_for, queued_of
from team.rules.roster import name_of
from team.rules.times import seconds_of

CALL_KEY: Final = "imported"
_REASON: Final = "its log was imported"
_LONGEST_WAIT_SECONDS: Final = 3_600.0


def continue_session(tx: Transaction, header: SessionHeader) -> None:
    """Give a Session that this transaction imported what a running one has; its Team and its row are locked.

    An open turn is queued. A parked one waits on with its own deadlines; where its waits cannot be restored it is
    resumed and makes its calls again. Accepted input without a turn gets one, unless it is held. A creation that was
    cut off gets an operation whose lease has run out, so that recovery settles it from the child's log.
    """
    for member in tx.members(header.team_id) if header.depth == 0 else ():
        if member.phase == "provisioning":
            operations.open_operation(tx.connection, header.team_id, member.name, CALL_KEY, lease_until=0.0)
    turn, head = tx.open_turn(header.id), tx.head(header.id)
    if turn is not None:
        _continue_turn(tx, header, turn)
    elif head.pending and not head.held and not head.is_external:
        begin(tx, header.id, _REASON)


def _continue_turn(tx: Transaction, header: SessionHeader, turn: TurnSlice) -> None:
    member = name_of(tx, header)
    runs.insert_run(
        tx.connection,
        turn_id=turn.turn_id,
        session_id=header.id,
        team_id=header.team_id,
        member=member,
        queue=queue_for(tx, header, member),
        now=tx.now,
        dispatch_at=tx.now + tx.settings.dispatch_backoff_seconds,
        reason=_REASON,
    )
    restored = _waits(tx, header, turn) if turn.phase == "parked" else []
    if restored:
        for wait in restored:
            waits.insert_wait(tx.connection, wait)
        runs.park_run(tx.connection, turn.turn_id, now=tx.now, reason=_REASON)
        return
    if turn.phase == "parked":
        tx.append(header.id, TurnResumed(turn_id=turn.turn_id))
    run = runs.find_run(tx.connection, turn.turn_id)
    assert run is not None
    tx.effects.queued.append(queued_of(run))


def _waits(tx: Transaction, header: SessionHeader, turn: TurnSlice) -> list[Wait]:
    """The waits of a parked turn that are still open; empty when one of them cannot be restored."""
    parked = read_last(tx.connection, header.id, TurnParked.event_type)
    assert isinstance(parked, TurnParked)
    unanswered = {call.call_id: call.index for call in tx.calls(header.id, turn) if call.result_seq is None}
    restored: list[Wait] = []
    for wait in parked.waits:
        if wait.call_id is None or wait.call_id in unanswered:
            deadline = seconds_of(wait.deadline) if wait.deadline else None
            if deadline is None or not _is_restorable(wait):
                return []
            restored.append(
                Wait(
                    turn_id=turn.turn_id,
                    step=turn.step,
                    index=-1 if wait.call_id is None else unanswered[wait.call_id],
                    kind=wait.kind,
                    session_id=SessionId(header.id),
                    team_id=header.team_id,
                    call_id=wait.call_id,
                    counter=tx.lock_team(header.team_id),
                    deadline=min(deadline, tx.now + _LONGEST_WAIT_SECONDS),
                )
            )
    complete = {wait.call_id for wait in restored if wait.call_id is not None} == set(unanswered)
    return restored if complete else []


def _is_restorable(wait: OpenWait) -> bool:
    """Whether its deadline alone resolves it: others end with a child, which lives in no row here."""
    return (wait.kind, wait.call_id is None) in {("wait-agent", False), ("backoff", True)}
