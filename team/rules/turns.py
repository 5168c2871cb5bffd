"""Turns: begin, step boundaries, answers, results, park, end (DESIGN section 5). Pure rules over a transaction."""

from team.log import delegations, projections, runs, sessions, waits, workflows
from team.log.transaction import Ended, Lost, Transaction
from team.model.claims import AnswerRequest, PendingCall
from team.model.content import ContentBlock, ToolCallBlock
from team.model.errors import TurnConflict, WaitAborted, error_json
from team.model.events import (
    HOLDING,
    AssistantMessage,
    EndReason,
    InboxClaimed,
    InboxDiscarded,
    InboxInserted,
    OpenWait,
    RequestHeader,
    StepEnded,
    StepStarted,
    ToolCalled,
    TurnEnded,
    TurnParked,
    UserMessage,
)
from team.model.ids import SessionId, new_message_id
from team.model.slices import InboxSlice, TurnSlice
from team.model.snapshots import RuntimeContextSource, SessionHeader
from team.rules import children, settlement
from team.rules.inbox import is_one_shot
from team.rules.queue import begin, requeue
from team.rules.results import give_result
from team.rules.roster import is_member
from team.rules.times import iso_time

FINAL_REASONS: dict[str, EndReason] = {"max-tokens": "max-tokens", "refusal": "refusal"}


def sessions_of_end(tx: Transaction, header: SessionHeader) -> tuple[SessionId, ...]:
    """The Sessions that the end of a turn may write; the Team row is locked, so that their set stands still.

    Its own, its parent's for the result or the notice, and the one-shot children that its calls wait for, with theirs.
    """
    above = () if header.parent_id is None else (header.parent_id,)
    return (*above, header.id, *children.awaited(tx.connection, header.id))


def start_step(
    tx: Transaction, session_id: SessionId, turn: TurnSlice, header: RequestHeader, identity: tuple[ContentBlock, ...]
) -> int:
    """Begin the next step: log what the model will see anew, then claim steerable input. Returns its number.

    The first step of a turn also claims the `turn` item that the turn was opened for: the oldest pending one, unless
    steer input arrived before it.
    """
    step, head = turn.step + 1, tx.head(session_id)
    if head.header_digest != header.digest:
        tx.append(session_id, header)
    tx.append(session_id, StepStarted(turn_id=turn.turn_id, step=step))
    if not head.identified:
        source = RuntimeContextSource(session_id=session_id)
        tx.append(session_id, UserMessage(message_id=new_message_id(), content=identity, source=source))
    pending = tx.pending(session_id) if head.pending else []
    opened_by_turn = step == 1 and bool(pending) and pending[0].delivery == "turn"
    for place, item in enumerate(pending):
        if item.delivery == "steer" or (opened_by_turn and place == 0):
            _claim_input(tx, session_id, turn, step, item)
    return step


def _claim_input(tx: Transaction, session_id: SessionId, turn: TurnSlice, step: int, item: InboxSlice) -> None:
    inserted = tx.event(session_id, item.seq)
    assert isinstance(inserted, InboxInserted)
    tx.append(session_id, InboxClaimed(message_id=item.message_id, turn_id=turn.turn_id, step=step))
    tx.append(session_id, UserMessage(message_id=item.message_id, content=inserted.content, source=inserted.source))


def end_step(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> TurnSlice:
    tx.append(session_id, StepEnded(turn_id=turn.turn_id, step=turn.step))
    runs.step_done(tx.connection, turn.turn_id)
    return current(tx, session_id, turn)


def end(
    tx: Transaction,
    session_id: SessionId,
    turn: TurnSlice,
    reason: EndReason,
    *,
    code: str | None = None,
    message: str | None = None,
    notify: bool = True,
) -> None:
    """End a turn, and open the next one if accepted input is waiting: one transaction, so none is ever lost.

    After aborted, error and max-steps the pending input is held instead; a one-shot child's is discarded. Whoever
    waits for this child is told; children that this turn waits for end with it. Unanswered calls must have their
    results. Locked: the Team and ``sessions_of_end``.
    """
    header = tx.header(session_id)
    tx.append(session_id, TurnEnded(turn_id=turn.turn_id, reason=reason, code=code, message=message))
    run = runs.find_run(tx.connection, turn.turn_id)
    tx.effects.ended.append(Ended(session_id, turn.turn_id, run, reason, code))
    for wait in waits.turn_waits(tx.connection, turn.turn_id):
        waits.take_wait(tx.connection, wait)
    awaited = delegations.drop_turn(tx.connection, turn.turn_id)
    workflows.drop_turn(tx.connection, turn.turn_id)
    runs.delete_run(tx.connection, turn.turn_id)
    if is_member(tx, header):
        tx.raise_edge(header.team_id)
    if is_one_shot(tx.head(session_id)):
        for item in tx.pending(session_id):
            tx.append(session_id, InboxDiscarded(message_id=item.message_id, reason="its only turn has ended"))
    elif tx.head(session_id).pending and reason not in HOLDING:
        begin(tx, session_id, "input arrived during the last turn")
    ended = current(tx, session_id, turn)
    if not children.tell_waiting_call(tx, header, ended) and notify:
        settlement.notify(tx, session_id, ended)
    for child_id in awaited:
        _end_child(tx, child_id)


def _end_child(tx: Transaction, child_id: SessionId) -> None:
    """A child whose waiting call is gone ends too; one that cannot be read is left alone, unclaimable as it is."""
    if not tx.is_locked(child_id):
        if children.is_running(tx.connection, child_id):
            raise RuntimeError("a turn ends with sessions_of_end locked")
        return
    turn = tx.open_turn(child_id)
    if turn is not None:
        run = runs.lock_run(tx.connection, turn.turn_id)
        abort(tx, child_id, turn, run, "the turn that waited for it ended")


def abandon_calls(tx: Transaction, session_id: SessionId, turn: TurnSlice, text: str) -> TurnSlice:
    """Give every unanswered call of the open step its one result, so that the history stays paired.

    A wait is known to have had no effect; of any other call the outcome is unknown.
    """
    if turn.open_calls:
        waiting = {(wait.step, wait.index): wait for wait in waits.turn_waits(tx.connection, turn.turn_id)}
        for call in tx.calls(session_id, turn):
            if call.result_seq is not None:
                continue
            wait = waiting.get((call.step, call.index))
            if wait is not None:
                aborted = ABORTED_WAIT if wait.kind == "wait-agent" else ABORTED_DELEGATION
                give_result(tx, session_id, call, "error", error_json(WaitAborted.code, aborted))
            else:
                give_result(tx, session_id, call, "unknown", text)
    return current(tx, session_id, turn)


def answer(tx: Transaction, session_id: SessionId, turn: TurnSlice, request: AnswerRequest) -> int:
    """Append a model answer with its calls, returns its seq; rewrites call ids that this log has used before.

    Raises TurnConflict when the open step is another one or has its answer.
    """
    if not turn.step_open or turn.answered or turn.step != request.step:
        raise TurnConflict(f"The turn is at step {turn.step}; claim it again to continue from its log.")
    content = _unique_calls(tx, session_id, turn, request)
    seq = tx.append(
        session_id,
        AssistantMessage(
            turn_id=turn.turn_id,
            step=turn.step,
            model=request.model,
            content=content,
            usage=request.usage,
            finish_reason=request.finish_reason,
            provider_detail=request.provider_detail,
        ),
    )
    calls = [block for block in content if isinstance(block, ToolCallBlock)]
    for index, call in enumerate(calls):
        tx.append(
            session_id,
            ToolCalled(
                turn_id=turn.turn_id,
                step=turn.step,
                index=index,
                call_id=call.call_id,
                name=call.name,
                arguments=call.arguments,
            ),
        )
    return seq


def _unique_calls(
    tx: Transaction, session_id: SessionId, turn: TurnSlice, request: AnswerRequest
) -> tuple[ContentBlock, ...]:
    wanted = [block.call_id for block in request.content if isinstance(block, ToolCallBlock)]
    taken = projections.call_ids_taken(tx.connection, session_id, wanted) if wanted else set[str]()
    content: list[ContentBlock] = []
    for block in request.content:
        if isinstance(block, ToolCallBlock):
            call_id, tries = block.call_id, 0
            while call_id in taken or not call_id:
                tries += 1
                call_id = f"{block.call_id or 'call'}-{turn.ordinal}-{turn.step}-{tries}"
                if call_id not in taken and projections.call_ids_taken(tx.connection, session_id, [call_id]):
                    taken.add(call_id)
            taken.add(call_id)
            content.append(block if call_id == block.call_id else block.model_copy(update={"call_id": call_id}))
        else:
            content.append(block)
    return tuple(content)


def pending_calls(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> tuple[PendingCall, ...]:
    """The open step's calls without a result, with their arguments and any logged intent."""
    if not turn.open_calls:
        return ()
    waiting = {(wait.step, wait.index) for wait in waits.turn_waits(tx.connection, turn.turn_id)}
    intents = {} if turn.phase == "parked" else tx.intents(session_id, turn)
    found: list[PendingCall] = []
    for call in tx.calls(session_id, turn):
        if call.result_seq is not None:
            continue
        called = tx.event(session_id, call.seq)
        assert isinstance(called, ToolCalled)
        intent = intents.get(call.index)
        found.append(
            PendingCall(
                step=call.step,
                index=call.index,
                call_id=call.call_id,
                name=call.name,
                arguments=called.arguments,
                intent_path=intent.path if intent else None,
                intent_before=intent.before if intent else None,
                intent_after=intent.after if intent else None,
                waiting=(call.step, call.index) in waiting,
            )
        )
    return tuple(found)


def park(tx: Transaction, session_id: SessionId, turn: TurnSlice, open_waits: list[waits.Wait], reason: str) -> None:
    """Release the claim; the turn is queued again when its last wait is resolved."""
    described = tuple(
        OpenWait(
            kind=wait.kind,  # pyright: ignore[reportArgumentType] -- the column holds a WaitKind
            call_id=wait.call_id,
            deadline=None if wait.deadline is None else iso_time(wait.deadline),
        )
        for wait in open_waits
    )
    tx.append(session_id, TurnParked(turn_id=turn.turn_id, waits=described))
    runs.park_run(tx.connection, turn.turn_id, now=tx.now, reason=reason)


def lose(tx: Transaction, session_id: SessionId, turn: TurnSlice, run: runs.Run) -> None:
    """A worker is gone: queue the turn again, or end it when it has killed too many workers in a row."""
    losses = run.losses + 1
    tx.effects.lost.append(Lost(run, losses))
    if losses < tx.settings.poison_losses:
        requeue(tx, turn, run, f"its worker was lost ({losses} in a row)", losses=losses)
        return
    turn = abandon_calls(tx, session_id, turn, LOST_CALL)
    message = f"The turn lost its worker {losses} times without finishing a step; last worker {run.worker}."
    end(tx, session_id, turn, "error", code="poison", message=message)


def abort(
    tx: Transaction,
    session_id: SessionId,
    turn: TurnSlice,
    run: runs.Run | None,
    message: str,
    *,
    notify: bool = True,
) -> None:
    """End a turn at once, wherever it is.

    The Session stays guarded until the old worker confirms or its lease ends, so that two workers never act for it.
    """
    if run is not None and run.state == "running":
        sessions.set_guard(tx.connection, session_id, run.turn_id, run.epoch, run.lease_until)
    turn = abandon_calls(tx, session_id, turn, INTERRUPTED_CALL)
    end(tx, session_id, turn, "aborted", message=message, notify=notify)


ABORTED_WAIT = "The turn ended while this call was waiting. Read the roster and the board to see where things stand."
ABORTED_DELEGATION = (
    "The turn ended while this call was waiting, and the subagents that it waited for were ended with it. What they "
    "did so far is in the checkout: look at it before you start another one."
)
LOST_CALL = (
    "The worker of this call was lost. Its outcome is unknown: it may have happened in whole, in part or not at all. "
    "Look at the actual state before you repeat it."
)
INTERRUPTED_CALL = (
    "The turn was interrupted before this call had a result. Its outcome is unknown: look at the actual state before "
    "you repeat it."
)


def end_reason(turn: TurnSlice) -> EndReason:
    """Why a turn ends whose last answer asked for no tools."""
    return FINAL_REASONS.get(turn.finish or "stop", "completed")


def current(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> TurnSlice:
    """The turn with what this transaction appended."""
    found = tx.find(session_id, ("turn", turn.turn_id), TurnSlice)
    assert found is not None
    return found
