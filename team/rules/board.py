"""The shared task board: every mutation is a compare-and-set on a whole snapshot (DESIGN section 6).

``decide`` is a pure function of the board, the caller and the request. The graph is checked over the whole board in
the transaction, because two edits of different tasks can close a cycle together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from team.log import projections
from team.log.transaction import Transaction
from team.model.errors import (
    InvalidArgument,
    InvalidTarget,
    InvalidWriteScope,
    TaskAlreadyClaimed,
    TaskBlocked,
    TaskDeleted,
    TaskDependencyCycle,
    TaskHasDependents,
    TaskInvalidTransition,
    TaskLimit,
    TaskNotFound,
    TaskStaleRevision,
    TaskUnauthorized,
)
from team.model.events import TaskChanged
from team.model.ids import MAX_SAFE_INTEGER, SessionId, TaskId, TeamId, task_id, task_number
from team.model.snapshots import TaskSnapshot
from team.model.values import text_fault
from team.model.views import TaskView, names_of, task_view
from team.rules.roster import Member

MAX_SUBJECT_CHARACTERS: Final = 200
MAX_DESCRIPTION_BYTES: Final = 16_384
MAX_SCOPES: Final = 64
MAX_SCOPE_BYTES: Final = 1_024

Action = Literal["claim", "release", "edit", "set_dependencies", "complete", "reopen", "reassign", "delete"]
Board = Mapping[TaskId, TaskSnapshot]


@dataclass(frozen=True)
class Update:
    """A requested change of one task."""

    task_id: str
    expected_revision: int
    action: Action
    subject: str | None = None
    description: str | None = None
    blocked_by: tuple[str, ...] | None = None
    write_scopes: tuple[str, ...] | None = None
    owner: Member | None = None


def create(
    tx: Transaction,
    team_id: TeamId,
    *,
    subject: str,
    description: str,
    blocked_by: Sequence[str],
    write_scopes: Sequence[str],
    actor: str | None,
) -> TaskView:
    """Append a new pending task without an owner. An edge.

    Raises TaskLimit, TaskNotFound, TaskDeleted, InvalidArgument, InvalidWriteScope.
    """
    board = board_of(tx, team_id, *blocked_by)
    if sum(task.status != "deleted" for task in board.values()) >= tx.settings.max_tasks:
        raise TaskLimit(f"The board holds {tx.settings.max_tasks} tasks, its limit. Delete tasks that nobody needs.")
    number = tx.head(SessionId(team_id)).last_task_number + 1
    if number > MAX_SAFE_INTEGER:
        raise TaskLimit("The task numbers of this Team are used up; ids are never used again.")
    task = TaskSnapshot(
        id=task_id(number),
        revision=1,
        subject=_subject(subject),
        description=_description(description),
        status="pending",
        blocked_by=_blockers(board, None, blocked_by),
        write_scopes=_scopes(write_scopes),
    )
    return _commit(tx, team_id, task, board, actor)


def update(tx: Transaction, team_id: TeamId, caller: Member, request: Update, actor: str | None) -> TaskView:
    """Append the next snapshot of a task. An edge. Raises what ``decide`` raises."""
    board = board_of(tx, team_id, request.task_id, *(request.blocked_by or ()))
    return _commit(tx, team_id, decide(board, caller, request, names(tx, team_id)), board, actor)


def _commit(
    tx: Transaction, team_id: TeamId, task: TaskSnapshot, board: dict[TaskId, TaskSnapshot], actor: str | None
) -> TaskView:
    tx.append(SessionId(team_id), TaskChanged(team_id=team_id, task=task, actor=actor))
    tx.raise_edge(team_id)
    return task_view(task, {**board, task.id: task}, names(tx, team_id))


def board_of(tx: Transaction, team_id: TeamId, *touched: str) -> dict[TaskId, TaskSnapshot]:
    """The board as far as an operation needs it: all live tasks, and those of the touched ids that are tombstones.

    What a Team has deleted does not make its operations dearer.
    """
    board = {task.id: task for task in tx.tasks(team_id)}
    numbers = {number for wanted in touched if TaskId(wanted) not in board and (number := task_number(wanted))}
    deleted = projections.named_tasks(tx.connection, SessionId(team_id), sorted(numbers))
    return {**{task.id: task for task in deleted}, **board}


def names(tx: Transaction, team_id: TeamId) -> dict[SessionId, str]:
    return names_of(team_id, tx.members(team_id))


def find(board: Board, wanted: str) -> TaskSnapshot:
    """The task with exactly this id. Raises TaskNotFound."""
    task = board.get(TaskId(wanted)) if task_number(wanted) is not None else None
    if task is None:
        raise TaskNotFound(f"There is no task {wanted[:80]!a}; team_task_list shows the board.")
    return task


def number_of(task: TaskSnapshot) -> int:
    """The number in a task's id: its place on the board."""
    return task_number(task.id) or 0


def cursor_number(cursor: str | None) -> int:
    """The task number behind which a page starts. Raises InvalidArgument."""
    if cursor is None:
        return 0
    number = task_number(cursor)
    if number is None:
        raise InvalidArgument(f"{cursor[:80]!a} is no cursor; pass the nextCursor of the page before, or leave it out.")
    return number


def decide(board: Board, caller: Member, request: Update, names: Mapping[SessionId, str]) -> TaskSnapshot:
    """The next snapshot of a task, or the error that says why not. Pure.

    Raises TaskNotFound, TaskDeleted, TaskStaleRevision, TaskUnauthorized, TaskAlreadyClaimed, TaskBlocked,
    TaskInvalidTransition, TaskHasDependents, TaskDependencyCycle, InvalidArgument, InvalidTarget, InvalidWriteScope;
    in this order of precedence: existence, revision, authority, transition, arguments, graph.
    """
    task = find(board, request.task_id)
    owner = f"owned by {names.get(task.owner_id, 'unknown')}" if task.owner_id else "unowned"
    if task.status == "deleted":
        raise TaskDeleted(f"{task.id} was deleted; its tombstone cannot change.")
    if request.expected_revision != task.revision:
        raise TaskStaleRevision(
            f"{task.id} is at revision {task.revision}, {task.status}, {owner}; you expected "
            f"{request.expected_revision}. Read it again with team_task_get and decide anew."
        )
    _authorize(task, caller, request.action, owner)
    _require_fields(request)
    changes = _ACTIONS[request.action](board, task, caller, request, owner)
    return task.model_copy(update={**changes, "revision": task.revision + 1})


def _authorize(task: TaskSnapshot, caller: Member, action: Action, owner: str) -> None:
    if caller.is_lead or action == "claim":
        return
    if action == "reassign":
        raise TaskUnauthorized("Only the Lead assigns tasks to members; claim a ready task yourself.")
    if task.owner_id != caller.session_id:
        raise TaskUnauthorized(
            f"{task.id} is {owner}; only its owner or the Lead may {action} it. Claim it first if it is ready, or "
            "send the owner or the Lead a message."
        )


_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "edit": frozenset({"subject", "description", "write_scopes"}),
    "set_dependencies": frozenset({"blocked_by"}),
    "reassign": frozenset({"owner"}),
}


def _require_fields(request: Update) -> None:
    given = {
        name
        for name in ("subject", "description", "blocked_by", "write_scopes", "owner")
        if getattr(request, name) is not None
    }
    allowed = _FIELDS.get(request.action, frozenset[str]())
    if given - allowed:
        surplus = ", ".join(sorted(given - allowed))
        raise InvalidArgument(f"The action {request.action} does not take {surplus}; leave it out.")
    if allowed and not given:
        raise InvalidArgument(f"The action {request.action} needs {' or '.join(sorted(allowed))}.")


_Changes = dict[str, object]


def _claim(board: Board, task: TaskSnapshot, caller: Member, _request: Update, owner: str) -> _Changes:
    if task.status == "completed":
        raise TaskInvalidTransition(f"{task.id} is completed; reopen it before it is claimed again.")
    if task.owner_id is not None and task.owner_id != caller.session_id:
        raise TaskAlreadyClaimed(f"{task.id} is {owner}. Take another ready task (team_task_list with ready true).")
    if task.status == "in_progress":
        raise TaskAlreadyClaimed(f"{task.id} is yours already and in progress; go on with it.")
    _require_unblocked(board, task)
    return {"status": "in_progress", "owner_id": caller.session_id}


def _release(_board: Board, task: TaskSnapshot, _caller: Member, _request: Update, _owner: str) -> _Changes:
    if task.owner_id is None or task.status == "completed":
        raise TaskInvalidTransition(f"{task.id} is {task.status} and has nothing to release.")
    return {"status": "pending", "owner_id": None}


def _edit(_board: Board, task: TaskSnapshot, _caller: Member, request: Update, _owner: str) -> _Changes:
    _require_live(task, "edited")
    changes: _Changes = {}
    if request.subject is not None:
        changes["subject"] = _subject(request.subject)
    if request.description is not None:
        changes["description"] = _description(request.description)
    if request.write_scopes is not None:
        changes["write_scopes"] = _scopes(request.write_scopes)
    return changes


def _set_dependencies(board: Board, task: TaskSnapshot, _caller: Member, request: Update, _owner: str) -> _Changes:
    _require_live(task, "given dependencies")
    return {"blocked_by": _blockers(board, task, request.blocked_by or ())}


def _complete(board: Board, task: TaskSnapshot, _caller: Member, _request: Update, _owner: str) -> _Changes:
    if task.status == "completed":
        raise TaskInvalidTransition(f"{task.id} is completed already.")
    _require_unblocked(board, task)
    return {"status": "completed"}


def _reopen(_board: Board, task: TaskSnapshot, _caller: Member, _request: Update, _owner: str) -> _Changes:
    if task.status != "completed":
        raise TaskInvalidTransition(f"{task.id} is {task.status}; only a completed task is reopened.")
    return {"status": "pending"}


def _reassign(board: Board, task: TaskSnapshot, _caller: Member, request: Update, _owner: str) -> _Changes:
    _require_live(task, "assigned")
    assert request.owner is not None
    snapshot = request.owner.snapshot
    if snapshot is not None and snapshot.phase != "active":
        raise InvalidTarget(f"{snapshot.name} is {snapshot.phase} and cannot own a task; assign an active member.")
    if task.owner_id == request.owner.session_id:
        raise TaskInvalidTransition(f"{task.id} is owned by {request.owner.target} already.")
    _require_unblocked(board, task)
    return {"owner_id": request.owner.session_id, "status": "pending"}


def _delete(board: Board, task: TaskSnapshot, _caller: Member, _request: Update, _owner: str) -> _Changes:
    dependents = [other.id for other in board.values() if task.id in other.blocked_by and other.status != "deleted"]
    if dependents:
        raise TaskHasDependents(
            f"{task.id} blocks {', '.join(dependents)}; remove it from their dependencies first (set_dependencies)."
        )
    return {"status": "deleted"}


_ACTIONS: Final = {
    "claim": _claim,
    "release": _release,
    "edit": _edit,
    "set_dependencies": _set_dependencies,
    "complete": _complete,
    "reopen": _reopen,
    "reassign": _reassign,
    "delete": _delete,
}


def _require_live(task: TaskSnapshot, what: str) -> None:
    if task.status == "completed":
        raise TaskInvalidTransition(f"{task.id} is completed and cannot be {what}; reopen it first.")


def _require_unblocked(board: Board, task: TaskSnapshot) -> None:
    blockers = [blocker for blocker in task.blocked_by if board[blocker].status != "completed"]
    if blockers:
        raise TaskBlocked(f"{task.id} waits for {', '.join(blockers)}. Work on those first, or wait_agent.")


def _blockers(board: Board, task: TaskSnapshot | None, wanted: Sequence[str]) -> tuple[TaskId, ...]:
    """Validated dependencies: existing, not deleted, without doubles, acyclic over the whole board."""
    if len(set(wanted)) != len(wanted):
        raise InvalidArgument("A task is named twice in blocked_by; name each once.")
    for blocker in wanted:
        found = find(board, blocker)
        if found.status == "deleted":
            raise TaskDeleted(f"{blocker} was deleted and cannot block a task.")
    blockers = tuple(TaskId(blocker) for blocker in wanted)
    if task is not None:
        cycle = _path_to(board, blockers, task.id)
        if cycle:
            raise TaskDependencyCycle(f"This would close a cycle: {' waits for '.join([task.id, *cycle])}.")
    return blockers


def _path_to(board: Board, start: Sequence[TaskId], goal: TaskId) -> list[TaskId] | None:
    """A chain of dependencies from one of ``start`` to ``goal``; iterative, so that depth has no limit."""
    came_from: dict[TaskId, TaskId | None] = dict.fromkeys(start)
    pending = list(start)
    while pending:
        current = pending.pop()
        if current == goal:
            path = [current]
            while (before := came_from[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for blocker in board[current].blocked_by:
            if blocker not in came_from:
                came_from[blocker] = current
                pending.append(blocker)
    return None


def _subject(subject: str) -> str:
    if not subject.strip():
        raise InvalidArgument("A task needs a subject that is not empty.")
    if len(subject) > MAX_SUBJECT_CHARACTERS:
        raise InvalidArgument(f"The subject has {len(subject)} characters; the limit is {MAX_SUBJECT_CHARACTERS}.")
    return subject


def _description(description: str) -> str:
    size = len(description.encode())
    if size > MAX_DESCRIPTION_BYTES:
        raise InvalidArgument(
            f"The description has {size} bytes; the limit is {MAX_DESCRIPTION_BYTES}. Put the rest into a file."
        )
    return description


def _scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Normalised relative path prefixes, in order, without doubles. Raises InvalidWriteScope."""
    if len(scopes) > MAX_SCOPES:
        raise InvalidWriteScope(f"A task has at most {MAX_SCOPES} write scopes.")
    return tuple(dict.fromkeys(_scope(scope) for scope in scopes))


def _scope(scope: str) -> str:
    parts = [part for part in scope.split("/") if part not in ("", ".")]
    sound = (
        text_fault(scope) is None
        and scope.strip()
        and not scope.startswith("/")
        and "\\" not in scope
        and ".." not in parts
        and len(scope.encode()) <= MAX_SCOPE_BYTES
    )
    if not sound:
        raise InvalidWriteScope(
            f"{scope[:80]!a} is not a write scope: use a relative path prefix such as 'src/parser', without '..'."
        )
    return "/".join(parts) or "."
