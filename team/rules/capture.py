"""Captured results: a child that was given a schema reports through one call, and its turn ends with that.

A wrong report gets an error that says what is wrong, an end without a report a reminder; after a few of them together
the turn fails.
"""

from typing import Final, Literal

from team.log.events import read_history
from team.log.transaction import Transaction
from team.model.content import ToolCallBlock, text_block, text_of
from team.model.errors import ResultInvalid
from team.model.events import UserMessage
from team.model.history import AssistantEntry, ToolResultEntry, UserEntry
from team.model.ids import SessionId, new_message_id
from team.model.slices import HeadSlice, TurnSlice
from team.model.snapshots import RuntimeContextSource
from team.model.values import JsonObject, decode_json
from team.rules.schemas import value_fault

TOOL: Final = "report_result"
ATTEMPTS: Final = 3
CODE: Final = "no-result"
DESCRIPTION: Final = (
    "Report the result of your task. Call it once, alone, when the work is done: the parameters are the result, and "
    "your turn ends with the call. A result that does not fit the schema is refused with the reason; correct it and "
    "call again."
)
REMINDER: Final = (
    f"You ended without a result. Nobody reads what you say: call {TOOL} now, with what you have found so far."
)
FAILURE: Final = f"It reported no valid result in {ATTEMPTS} attempts."

Standing = Literal["free", "open", "reported", "missing", "failed"]
"""free: nothing is asked for. open: not reported, and at work. missing: not reported, and at its end."""


def schema_of(head: HeadSlice) -> JsonObject | None:
    """The schema of the result that a Session must report, if it must."""
    return None if head.descriptor is None else head.descriptor.capture


def standing(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> Standing:
    """How the turn of a locked Session stands behind its newest step."""
    if schema_of(tx.head(session_id)) is None:
        return "free"
    failed, reported = _attempts(tx, session_id, turn)
    if reported is not None:
        return "reported"
    at_end = turn.calls == 0
    if at_end and turn.finish != "stop":
        return "free"
    if failed + at_end >= ATTEMPTS:
        return "failed"
    return "missing" if at_end else "open"


def remind(tx: Transaction, session_id: SessionId) -> None:
    """Tell the step that has just begun that the result is missing."""
    source = RuntimeContextSource(session_id=session_id)
    tx.append(session_id, UserMessage(message_id=new_message_id(), content=text_block(REMINDER), source=source))


def reported(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> str | None:
    """The result that a child reported in its turn, as JSON text. Raises LogDamaged."""
    return _attempts(tx, session_id, turn)[1]


def require_valid(tx: Transaction, schema: JsonObject, arguments: str) -> None:
    """Raises ResultInvalid for a result that its schema or the size limit refuses."""
    size, limit = len(arguments.encode()), tx.settings.max_message_bytes
    try:
        fault = value_fault(schema, decode_json(arguments or "{}"))
    except ValueError as error:
        fault = f"it is not usable JSON: {error}"
    if fault is None and size > limit:
        fault = f"it has {size} bytes and the limit is {limit}; write the details to a file and report its path"
    if fault is not None:
        raise ResultInvalid(f"The result was not accepted: {fault}. Call {TOOL} again with a corrected result.")


def _attempts(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> tuple[int, str | None]:
    """Failed attempts of a turn, wrong reports and reminders together, and the accepted report."""
    asked = dict[str, str]()
    failed, accepted = 0, None
    for entry in read_history(tx.connection, session_id, turn.start_seq, 0):
        match entry:
            case AssistantEntry():
                calls = [block for block in entry.content if isinstance(block, ToolCallBlock) and block.name == TOOL]
                asked |= {block.call_id: block.arguments for block in calls}
            case ToolResultEntry() if entry.call_id in asked:
                accepted = asked[entry.call_id] if entry.outcome == "ok" else accepted
                failed += entry.outcome == "error"
            case UserEntry() if entry.source.kind == "runtime-context":
                failed += text_of(entry.content) == REMINDER
            case _:
                pass
    return failed, accepted
