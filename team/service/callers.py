"""Who acts, and by what right: a worker's claim, an operator's token, or an invitation."""

import hmac
from dataclasses import dataclass

import structlog

from team.log import runs
from team.log.transaction import Transaction
from team.model.errors import TurnConflict, TurnFenced
from team.model.events import Outcome, ToolReturned
from team.model.history import ToolResultEntry
from team.model.ids import SessionId, TurnId, new_token
from team.model.slices import CallSlice, TurnSlice
from team.rules.results import give_result


@dataclass(frozen=True)
class Once:
    """The Idempotency-Key of a public POST: who sent it, the key, a hash of the request."""

    actor: str
    key: str
    request: str


@dataclass(frozen=True)
class ClaimRef:
    """The right of one claim: turn, epoch and the token that only its worker was given."""

    turn_id: TurnId
    epoch: int
    token: str


@dataclass(frozen=True)
class CallRef:
    """One coordinator-side tool call of a claimed turn: the exactly-once key."""

    claim: ClaimRef
    step: int
    index: int

    @property
    def key(self) -> str:
        return f"{self.claim.turn_id}:{self.step}:{self.index}"


@dataclass(frozen=True)
class Caller:
    """A Session on whose behalf an operation runs.

    ``call`` is absent when an operator acts as it, or an outside agent by its ``invite``, the hash of its token;
    ``once`` is the Idempotency-Key of either.
    """

    session_id: SessionId
    call: CallRef | None = None
    actor: str | None = None
    once: Once | None = None
    invite: str | None = None

    @property
    def turn_id(self) -> TurnId | None:
        return self.call.claim.turn_id if self.call else None

    @property
    def key(self) -> str:
        """Names this operation: a repeated call, and a repeated Idempotency-Key, has the same one."""
        if self.call is not None:
            return self.call.key
        return f"{self.once.actor}:{self.once.key}" if self.once else new_token()


@dataclass(frozen=True)
class Recorded:
    """The result that a call got before; the operation is not run again."""

    entry: ToolResultEntry


def require_claim(tx: Transaction, ref: ClaimRef) -> tuple[runs.Run, TurnSlice]:
    """The claimed run and its turn; its Session must be locked. Raises TurnFenced when the claim is over."""
    run = runs.find_run(tx.connection, ref.turn_id)
    valid = (
        run is not None
        and run.state == "running"
        and run.epoch == ref.epoch
        and run.token is not None
        and hmac.compare_digest(run.token.encode(), ref.token.encode())
    )
    if run is None or not valid:
        raise TurnFenced(f"The claim of epoch {ref.epoch} on {ref.turn_id} is over; stop its work and drop it.")
    turn = tx.open_turn(run.session_id)
    assert turn is not None
    # For whatever the rest of this request logs; each request has a context of its own.
    structlog.contextvars.bind_contextvars(**runs.ids_of(run), step=turn.step)
    return run, turn


def session_of(tx: Transaction, ref: ClaimRef) -> SessionId:
    """The Session of a claimed turn, before its lock is taken. Raises TurnFenced when the turn has ended."""
    run = runs.find_run(tx.connection, ref.turn_id)
    if run is None:
        raise TurnFenced(f"{ref.turn_id} is not an open turn; stop its work and drop it.")
    return run.session_id


def open_call(tx: Transaction, call: CallRef) -> CallSlice | Recorded:
    """The call to answer, or its recorded result. Raises TurnFenced, and TurnConflict for a call that is not there."""
    run, turn = require_claim(tx, call.claim)
    found = tx.calls(run.session_id, turn) if call.step == turn.step else []
    if call.index >= len(found):
        raise TurnConflict(f"{call.key} is no call of the open step {turn.step}; claim the turn again.")
    slice_ = found[call.index]
    return Recorded(entry_of(tx, run.session_id, slice_)) if slice_.result_seq is not None else slice_


def entry_of(tx: Transaction, session_id: SessionId, call: CallSlice) -> ToolResultEntry:
    """The committed result of a call, as the history shows it."""
    current = tx.find(session_id, ("call", call.call_id), CallSlice)
    assert current is not None
    assert current.result_seq is not None
    returned = tx.event(session_id, current.result_seq)
    assert isinstance(returned, ToolReturned)
    return ToolResultEntry(
        seq=current.result_seq,
        index=current.index,
        call_id=current.call_id,
        outcome=returned.outcome,
        content=returned.content,
    )


def record_result(tx: Transaction, caller: Caller, outcome: Outcome, content: str) -> ToolResultEntry | None:
    """Commit the call's one result together with what it did; nothing for an operator's call."""
    if caller.call is None:
        return None
    call = open_call(tx, caller.call)
    if isinstance(call, Recorded):
        return call.entry
    give_result(tx, caller.session_id, call, outcome, content)
    return entry_of(tx, caller.session_id, call)
