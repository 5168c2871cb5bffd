"""Waiting: open waits, what resolves them, and when waiting cannot help (DESIGN sections 5 and 6)."""

from collections.abc import Sequence
from typing import Final

from team.log import invites, runs, waits
from team.log.transaction import Transaction
from team.log.waits import Wait
from team.model.errors import InvalidTimeout
from team.model.ids import SessionId, TeamId
from team.model.slices import CallSlice
from team.model.views import NoProgress, WaitView
from team.rules.queue import resume_if_free
from team.rules.results import give_result

MIN_TIMEOUT_MS: Final = 10_000
MAX_TIMEOUT_MS: Final = 3_600_000
DEFAULT_TIMEOUT_MS: Final = 30_000


def check_timeout(timeout_ms: int | None) -> int:
    """The timeout of a wait in milliseconds. Raises InvalidTimeout."""
    value = DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
    if not MIN_TIMEOUT_MS <= value <= MAX_TIMEOUT_MS:
        raise InvalidTimeout(f"timeout_ms must be between {MIN_TIMEOUT_MS} and {MAX_TIMEOUT_MS}; it is {value}.")
    return value


def is_registered(tx: Transaction, call: CallSlice) -> bool:
    """Whether the call waits already: a worker may ask for it twice."""
    return any(
        (wait.step, wait.index) == (call.step, call.index) for wait in waits.turn_waits(tx.connection, call.turn_id)
    )


def register(
    tx: Transaction, team_id: TeamId, call: CallSlice, session_id: SessionId, timeout_ms: int
) -> WaitView | None:
    """Register a wait_agent call under the Team's lock: earlier edges are not replayed.

    Returns a result at once when steerable input is pending already; otherwise None, and the call is waiting.
    """
    if tx.head(session_id).pending_steer:
        return WaitView(timed_out=False)
    waits.insert_wait(
        tx.connection,
        Wait(
            turn_id=call.turn_id,
            step=call.step,
            index=call.index,
            kind="wait-agent",
            session_id=session_id,
            team_id=team_id,
            call_id=call.call_id,
            counter=tx.lock_team(team_id),
            deadline=tx.now + timeout_ms / 1000,
        ),
    )
    return None


def settle_before_parking(tx: Transaction, session_id: SessionId, open_waits: Sequence[Wait]) -> bool:
    """Resolve the wait_agent waits of a turn that is about to park, when parking would miss or await nothing.

    True when something was resolved: steerable input is pending, an edge passed since the registration, a deadline is
    due, or no other member can produce an edge. A prompt for a turn of its own, there before the registration, is no
    reason: it must wait for the end of this turn. Decided under the Team's lock, so that of two members that park at
    once the second sees the first.
    """
    waiting = [wait for wait in open_waits if wait.kind == "wait-agent"]
    if not waiting:
        return False
    team_id = waiting[0].team_id
    counter = tx.lock_team(team_id)
    if tx.head(session_id).pending_steer or any(wait.counter < counter for wait in waiting):
        view = WaitView(timed_out=False)
    else:
        stuck = no_progress(tx, team_id, session_id)
        view = WaitView(timed_out=False, no_progress=stuck) if stuck else None
    resolved = False
    for wait in waiting:
        verdict = view or (WaitView(timed_out=True) if wait.is_due(tx.now) else None)
        if verdict is not None:
            resolved |= _give(tx, wait, verdict)
    return resolved


def no_progress(tx: Transaction, team_id: TeamId, session_id: SessionId | None) -> NoProgress | None:
    """Why no other member can produce an edge, or None when one can. The Team row must be locked.

    An external member that holds an invitation can at any time; nothing here tells whether it means to, so a wait for
    it ends with its deadline.
    """
    if any(member.phase == "provisioning" for member in tx.members(team_id)):
        return None
    if invites.invited_members(tx.connection, team_id) - {session_id}:
        return None
    members = {SessionId(team_id), *(member.id for member in tx.members(team_id))}
    others = [
        run
        for run in runs.team_runs(tx.connection, team_id)
        if run.session_id != session_id and run.session_id in members
    ]
    if not others:
        return NoProgress(
            reason="no-active-peer",
            message="No other member is running, so nothing will change by waiting. Send a message to a member that "
            "should work, take a task yourself, or finish.",
        )
    counter = tx.lock_team(team_id)
    open_waits = waits.turns_waits(tx.connection, [run.turn_id for run in others])
    for run in others:
        own = [wait for wait in open_waits if wait.turn_id == run.turn_id]
        idle = (
            run.state == "parked"
            and bool(own)
            and all(wait.kind == "wait-agent" and wait.counter == counter and not wait.is_due(tx.now) for wait in own)
        )
        if not idle or tx.peek_head(run.session_id).pending:
            return None
    return NoProgress(
        reason="all-peers-waiting",
        message="Every other running member waits too, so nothing will change by waiting. Send a message to the one "
        "that should act, take a task yourself, or finish.",
    )


def resolve(tx: Transaction, resolved: Sequence[Wait], view: WaitView) -> int:
    """Resolve open wait_agent waits of locked Sessions with one result; queue turns whose last wait this was."""
    count = 0
    for wait in resolved:
        if _give(tx, wait, view):
            count += 1
            resume_if_free(tx, wait.session_id, "its wait was resolved")
    return count


def _give(tx: Transaction, wait: Wait, view: WaitView) -> bool:
    if not waits.take_wait(tx.connection, wait):
        return False
    call = tx.find(wait.session_id, ("call", wait.call_id or ""), CallSlice)
    assert call is not None
    give_result(tx, wait.session_id, call, "ok", view.to_json())
    return True


def expire(tx: Transaction, wait: Wait) -> None:
    """A deadline has passed: a wait_agent call times out, a back-off ends."""
    if wait.kind == "wait-agent":
        resolve(tx, [wait], WaitView(timed_out=True))
    elif waits.take_wait(tx.connection, wait):
        resume_if_free(tx, wait.session_id, "its back-off is over")
