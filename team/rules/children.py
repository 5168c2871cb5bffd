"""Children outside the roster: a Session that works for another one, and what its parent learns of its end.

``create`` makes the child in the transaction of the call that asks for it. A background child is continuable: each of
its turns ends with a notice to the parent (``settlement``). A child that a call waits for is one-shot: it has one turn,
and ``tell_waiting_call`` brings the end of that turn to the call, in the transaction of the end (``turns.end``).

A rule that waits for children does this, with the Team and the parent locked:

1. ``child_session_id(parent, call_key, item)`` names the child of a call. The same call names the same child however
   often it is made, so one that is there already is joined, not created again.
2. ``create(tx, parent_id, child_id, Order(...))``.
3. ``register_wait`` once for the call, and ``expect`` for each child.

For a wait of the kind ``subagent`` the child's end writes the call's result and queues the parent's turn. For the kind
``workflow`` it marks the delegation as ended and names the parent's turn in ``tx.effects.workflows``: the workflow
reads its children with ``delegations.call_delegations``, takes the outcome of each that has ended with ``take_ending``
and resolves its wait when it has a result. ``delegations.ended_delegations`` finds what a crash left untaken. When the
waiting turn itself ends, its awaited children end with it.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection

from team.log import delegations, projections, runs, sessions, waits
from team.log.delegations import Delegation
from team.log.transaction import Transaction
from team.log.waits import Wait
from team.model.content import text_block
from team.model.errors import (
    InvalidArgument,
    LogDamaged,
    MessageTooLarge,
    SubagentDepth,
    SubagentFailed,
    error_json,
)
from team.model.events import EndReason, Outcome, SubagentDescribed, WaitKind
from team.model.ids import MessageId, SessionId, TurnId, new_message_id
from team.model.slices import CallSlice, TurnSlice
from team.model.snapshots import Context, DelegationSource, SessionHeader
from team.model.values import JsonObject
from team.model.views import SubagentResultView
from team.rules import forks
from team.rules.inbox import accept, require_size
from team.rules.queue import resume_if_free
from team.rules.results import give_result
from team.rules.roster import name_of
from team.rules.settlement import last_text, why_ended

PROFILE: Final = "base"
"""The profile of every child outside the roster, whatever its parent runs under."""

MAX_LABEL_CHARACTERS: Final = 64

Mode = Literal["one-shot", "continuable"]


@dataclass(frozen=True)
class Order:
    """What a child is asked to do. ``tools`` leaves it only these of its profile's.

    ``capture`` is the schema of the result that it must report (``capture``).
    """

    label: str
    prompt: str
    mode: Mode
    context: Context = "fresh"
    model: str | None = None
    tools: tuple[str, ...] | None = None
    capture: JsonObject | None = None


@dataclass(frozen=True)
class Ending:
    """How the only turn of a one-shot child ended; ``why`` is the reason in words, ``text`` its last text."""

    label: str
    reason: EndReason
    why: str
    text: str


def require_order(tx: Transaction, parent: SessionHeader, order: Order) -> None:
    """Refuse what no child can be created for. Raises SubagentDepth, InvalidArgument, MessageTooLarge."""
    limit = tx.settings.max_depth
    if parent.depth >= limit:
        raise SubagentDepth(
            f"You are {parent.depth} levels below the root and {limit} is the limit: no subagent can be created here. "
            "Do the work yourself, or report to the agent that asked you what is left."
        )
    label = order.label
    if not label.strip() or len(label) > MAX_LABEL_CHARACTERS or not label.isprintable():
        raise InvalidArgument(f"A subagent needs a label of one line, at most {MAX_LABEL_CHARACTERS} characters.")
    if not order.prompt.strip():
        raise InvalidArgument("A subagent needs a prompt: what it should do, and what it must know for that.")
    size, bytes_limit = len(order.prompt.encode()), tx.settings.max_message_bytes
    if size > bytes_limit:
        raise MessageTooLarge(
            f"The prompt has {size} bytes; the limit is {bytes_limit}. Write the details to a file of the checkout and "
            "name it in the prompt."
        )


def create(tx: Transaction, parent_id: SessionId, child_id: SessionId, order: Order) -> None:
    """Create a child with its accepted prompt and its opened turn; the Team and the parent are locked.

    Its log begins with the descriptor and, when it inherits, the parent's completed turns. A parent that is limited to
    some tools limits its children too. Raises what ``require_order`` raises, SessionExists.
    """
    parent = tx.header(parent_id)
    require_order(tx, parent, order)
    above = tx.head(parent_id).descriptor
    descriptor = SubagentDescribed(
        mode=order.mode,
        provider=order.context,
        label=order.label,
        model=order.model,
        tool_filter=narrowed(order.tools, above.tool_filter if above else None),
        capture=order.capture,
    )
    forks.create_session(
        tx,
        child_id,
        parent,
        parent=parent,
        inherits=order.context == "fork",
        model=order.model,
        profile=PROFILE,
        descriptor=descriptor,
    )
    source = DelegationSource(sender_id=parent_id, sender_name=name_of(tx, parent))
    accept(tx, child_id, text_block(order.prompt), source, "steer", new_message_id())


def send(tx: Transaction, parent: SessionHeader, child_id: SessionId, message: str) -> MessageId:
    """Accept a parent's message into a child's inbox: Steer, whatever the child does now.

    Raises InvalidArgument, MessageTooLarge, InboxFull, SubagentEnded.
    """
    if not message.strip():
        raise InvalidArgument("A message needs text.")
    content, message_id = text_block(message), new_message_id()
    require_size(tx, content)
    source = DelegationSource(sender_id=parent.id, sender_name=name_of(tx, parent))
    accept(tx, child_id, content, source, "steer", message_id)
    return message_id


def narrowed(wanted: tuple[str, ...] | None, limit: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The tools that are wanted within a limit; None is all."""
    if wanted is None or limit is None:
        return wanted if limit is None else limit
    return tuple(name for name in wanted if name in limit)


def register_wait(tx: Transaction, kind: WaitKind, session_id: SessionId, call: CallSlice) -> None:
    """Let a call wait, without a deadline, for what it will ``expect``; its turn parks at the next boundary."""
    wait = Wait(
        turn_id=TurnId(call.turn_id),
        step=call.step,
        index=call.index,
        kind=kind,
        session_id=session_id,
        team_id=tx.header(session_id).team_id,
        call_id=call.call_id,
        counter=0,
    )
    waits.insert_wait(tx.connection, wait)


def expect(tx: Transaction, child_id: SessionId, call: CallSlice) -> None:
    """Let a waiting call learn the end of this child; the call has, or gets in this transaction, a wait row."""
    delegations.insert_delegation(tx.connection, Delegation(child_id, TurnId(call.turn_id), call.step, call.index))


def awaited(connection: Connection, session_id: SessionId) -> list[SessionId]:
    """The running children that calls of a Session's open turn wait for, and theirs, as far as they can be read."""
    run = runs.session_run(connection, session_id)
    level, found = ([run.turn_id] if run else []), list[SessionId]()
    while level:
        below = delegations.open_children(connection, level)
        found += [child_id for child_id, _turn in below]
        level = [turn_id for _child, turn_id in below]
    return [session.header.id for session in sessions.readable_of(connection, found)[0]] if found else []


def is_running(connection: Connection, child_id: SessionId) -> bool:
    """Whether a child has an open turn and can be read."""
    return runs.session_run(connection, child_id) is not None and bool(sessions.readable_of(connection, [child_id])[0])


def tell_waiting_call(tx: Transaction, header: SessionHeader, turn: TurnSlice) -> bool:
    """Bring the end of a child's turn to the call that waits for it; False when none does. The parent is locked."""
    delegation = delegations.find_delegation(tx.connection, header.id) if header.parent_id else None
    if delegation is None:
        return False
    wait = waits.find_wait(tx.connection, delegation.turn_id, delegation.step, delegation.index)
    if wait is None or wait.kind != "workflow":
        delegations.drop_delegation(tx.connection, header.id)
        if wait is not None:
            _resolve(tx, wait, *result_of(ending(tx, header.id, turn)))
        return True
    delegations.end_delegation(tx.connection, header.id, turn.turn_id)
    tx.effects.workflows.add(wait.turn_id)
    return True


def tell_unreadable(tx: Transaction, delegation: Delegation, fault: str) -> None:
    """A call waits for a child whose state cannot be read: it can neither run nor end, so the call learns that.

    Locked: the Team and the parent.
    """
    wait = waits.find_wait(tx.connection, delegation.turn_id, delegation.step, delegation.index)
    if wait is not None and wait.kind == "workflow":
        delegations.end_delegation(tx.connection, delegation.child_id, delegation.turn_id)
        tx.effects.workflows.add(wait.turn_id)
        return
    delegations.drop_delegation(tx.connection, delegation.child_id)
    if wait is not None:
        message = f"The subagent {delegation.child_id} cannot be read, so it cannot go on: {fault}. Start another one."
        _resolve(tx, wait, "error", error_json(SubagentFailed.code, message))


def _resolve(tx: Transaction, wait: Wait, outcome: Outcome, content: str) -> None:
    if not waits.take_wait(tx.connection, wait):
        return
    call = tx.find(wait.session_id, ("call", wait.call_id or ""), CallSlice)
    assert call is not None
    give_result(tx, wait.session_id, call, outcome, content)
    resume_if_free(tx, wait.session_id, "its subagent ended")


def ending(tx: Transaction, child_id: SessionId, turn: TurnSlice) -> Ending:
    """How this turn of a child ended; its text is cut at the size that a model sees of an output."""
    found = sessions.find_session(tx.connection, child_id).head if not tx.is_locked(child_id) else tx.head(child_id)
    encoded, limit = last_text(tx, child_id, turn).encode(), tx.settings.output_bytes
    said = encoded.decode() if len(encoded) <= limit else encoded[:limit].decode(errors="ignore") + " [cut]"
    return Ending(
        label=found.descriptor.label if found.descriptor else "subagent",
        reason=turn.reason or "completed",
        why=why_ended(turn),
        text=said,
    )


def last_ending(tx: Transaction, child_id: SessionId) -> Ending | None:
    """How the newest turn of a child ended; None while it is open."""
    turn = last_turn(tx, child_id)
    return None if turn is None or turn.phase != "ended" else ending(tx, child_id, turn)


def last_turn(tx: Transaction, child_id: SessionId) -> TurnSlice | None:
    """The newest turn of a child."""
    return next(iter(projections.turns(tx.connection, child_id)), None)


def take_ending(tx: Transaction, delegation: Delegation) -> Ending:
    """How an ended child of a call ended, once: its row is dropped."""
    delegations.drop_delegation(tx.connection, delegation.child_id)
    try:
        ended = last_ending(tx, delegation.child_id)
    except LogDamaged as error:
        return Ending(label=delegation.child_id, reason="error", why=f"it cannot be read: {error.message}", text="")
    assert ended is not None
    return ended


def result_of(ended: Ending) -> tuple[Outcome, str]:
    """The result of a call that waited for one child."""
    if ended.reason == "completed":
        return "ok", SubagentResultView(label=ended.label, text=ended.text).to_json()
    said = f" Its last text:\n{ended.text}" if ended.text else " It said nothing."
    message = (
        f"The turn of the subagent {ended.label} ended: {ended.why}. What it did so far is in the checkout. Look at "
        f"it, then do the rest yourself or start another one.{said}"
    )
    return "error", error_json(SubagentFailed.code, message)
