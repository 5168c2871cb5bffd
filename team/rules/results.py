"""Results of calls: each call of a history has exactly one."""

from team.log.transaction import Transaction
from team.model.events import Outcome, ToolReturned
from team.model.ids import SessionId
from team.model.slices import CallSlice


def give_result(
    tx: Transaction,
    session_id: SessionId,
    call: CallSlice,
    outcome: Outcome,
    content: str,
    duration_ms: int | None = None,
) -> int:
    """Append the one result of a call; returns its seq."""
    return tx.append(
        session_id,
        ToolReturned(
            turn_id=call.turn_id,
            step=call.step,
            index=call.index,
            call_id=call.call_id,
            outcome=outcome,
            content=content,
            duration_ms=duration_ms,
        ),
    )
