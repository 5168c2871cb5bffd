"""Compaction: a summary takes the place of a Session's history; what must not depend on it is restated.

The log keeps everything. ``session/compacted`` is a boundary of the requests alone: they go on from the summary, from
who the Session is with its Team and open tasks, and from the open turn's own input word for word.
"""

from typing import Final

from team.log.events import turn_input
from team.log.transaction import Transaction
from team.model.claims import CompactRequest
from team.model.content import TextBlock
from team.model.errors import TurnConflict
from team.model.events import KeptMessage, SessionCompacted, UserMessage
from team.model.ids import LEAD_NAME, SessionId
from team.model.slices import TurnSlice
from team.model.snapshots import TaskSnapshot
from team.rules import identity
from team.rules.roster import is_member

MAX_KEPT_BYTES: Final = 32_768
"""Of the open turn's answered input; what is not answered yet is kept whatever its size."""

MAX_ROWS: Final = 50
"""Members, and tasks, that the restatement names; the tools list all."""


def compact(tx: Transaction, session_id: SessionId, turn: TurnSlice, request: CompactRequest, *, is_team: bool) -> int:
    """Append the compaction that precedes the answer of the open step; returns its seq.

    Raises TurnConflict when that step is not open, is answered, or was compacted before: a second summary of it could
    help no more than the first.
    """
    if not turn.step_open or turn.answered or turn.step != request.step:
        raise TurnConflict(f"The turn is at step {turn.step}; claim it again to continue from its log.")
    if turn.compacted_step == turn.step:
        raise TurnConflict(f"Step {turn.step} was compacted before; request its answer.")
    return tx.append(
        session_id,
        SessionCompacted(
            summary=request.summary,
            context=_restated(tx, session_id, is_team=is_team),
            kept=_kept(tx, session_id, turn),
            model=request.model,
            usage=request.usage,
        ),
    )


def _kept(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> tuple[KeptMessage, ...]:
    kept, room = list[KeptMessage](), MAX_KEPT_BYTES
    for step, message in reversed(turn_input(tx.connection, session_id, turn.start_seq)):
        size = _size(message)
        if message.source.kind == "runtime-context" or (step < turn.step and size > room):
            continue
        room -= size
        kept.append(KeptMessage(content=message.content, source=message.source))
    return tuple(reversed(kept))


def _size(message: UserMessage) -> int:
    return sum(len(block.text.encode()) for block in message.content if isinstance(block, TextBlock))


def _restated(tx: Transaction, session_id: SessionId, *, is_team: bool) -> str:
    header = tx.header(session_id)
    parts = [identity.text(header, tx.member_of(header), tx.head(session_id), is_team=is_team)]
    if is_team and is_member(tx, header):
        parts += [*_roster(tx, session_id), *_board(tx, session_id)]
    return "\n".join(parts)


def _roster(tx: Transaction, session_id: SessionId) -> list[str]:
    members = tx.members(tx.header(session_id).team_id)
    if not members:
        return ["[The Team has no teammates yet.]"]
    rows = [f"- {LEAD_NAME}", *(f"- {member.name} ({member.phase}): {member.description}" for member in members)]
    return [
        "[The Team now. list_agents shows who is running.",
        *_limited(rows, "members; see list_agents"),
        "]",
    ]


def _board(tx: Transaction, session_id: SessionId) -> list[str]:
    team_id = tx.header(session_id).team_id
    unfinished = [task for task in tx.tasks(team_id) if task.status != "completed"]
    own = [task for task in unfinished if task.owner_id == session_id]
    others = [task for task in unfinished if task.owner_id != session_id]
    lines = ["[The task board now. Read a task with team_task_get before you change it."]
    lines += ["Your open tasks:", *_limited([_row(task) for task in own], "tasks; see team_task_list")] if own else []
    lines += ["Other open tasks:", *_limited([_row(task) for task in others], "tasks; see team_task_list")]
    return [*(lines if own or others else ["[No task of the board is open."]), "]"]


def _row(task: TaskSnapshot) -> str:
    return f"- {task.id} ({task.status}, revision {task.revision}): {task.subject}"


def _limited(rows: list[str], rest: str) -> list[str]:
    if not rows:
        return ["- none"]
    return rows if len(rows) <= MAX_ROWS else [*rows[:MAX_ROWS], f"- and {len(rows) - MAX_ROWS} more {rest}"]
