"""What must hold of every store between two transactions, whatever was done to it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from team.log import delegations, projections, runs, sessions, waits
from team.log.events import stream_events
from team.model.events import (
    EventData,
    InboxClaimed,
    TaskChanged,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    UserMessage,
)
from team.model.fold import apply
from team.model.ids import SessionId, TaskId
from team.model.slices import HEAD, HeadSlice, Key, Slice
from team.model.snapshots import SessionHeader, TaskSnapshot
from team.rules.inbox import is_one_shot
from tests.support.core import Core


def assert_sound(core: Core) -> None:
    """Assert the invariants of the log and its rows for every Session of the store."""
    core.reading(assert_sound_store)


def assert_sound_store(connection: Connection) -> None:
    """The same for a store that is read without a core."""
    _assert_delegations(connection)
    _assert_workflows(connection)
    for session_id in sessions.session_ids(connection):
        found = sessions.find_session(connection, session_id)
        log = [(event.seq, event.decoded()) for event in stream_events(connection, session_id)]
        assert [seq for seq, _ in log] == list(range(1, len(log) + 1))
        events = [data for _, data in log]
        _assert_projections(connection, found.header, events)
        _assert_history(found.header, events)
        _assert_turn(connection, session_id, found.head)
        _assert_board(found.header, events)
        if _takes_input(connection, found.header):
            _assert_nobody_sleeps_on_input(session_id, found.head)


def _assert_projections(connection: Connection, header: SessionHeader, events: list[EventData]) -> None:
    """The fold of the log is what the rows hold."""
    state: dict[Key, Slice] = {HEAD: HeadSlice(cwd=header.cwd)}
    for seq, data in enumerate(events, start=1):
        state.update(apply(header, state.get, seq, data))
    assert projections.state(connection, header.id) == state


def _assert_history(header: SessionHeader, events: list[EventData]) -> None:
    """Each message at most once; each call exactly one result once its turn has ended; turns do not overlap."""
    shown, claimed = Counter[str](), Counter[str]()
    asked, answered = dict[str, str](), Counter[str]()
    open_turn: str | None = None
    for event in events:
        match event:
            case UserMessage(message_id=message_id):
                shown[message_id] += 1
            case InboxClaimed(message_id=message_id):
                claimed[message_id] += 1
            case ToolCalled(call_id=call_id, turn_id=turn_id):
                assert call_id not in asked, f"the call {call_id} was asked twice"
                asked[call_id] = turn_id
            case ToolReturned(call_id=call_id):
                answered[call_id] += 1
            case TurnStarted(turn_id=turn_id):
                assert open_turn is None, "two turns are open"
                open_turn = turn_id
            case TurnEnded(turn_id=turn_id):
                assert open_turn == turn_id
                open_turn = None
            case _:
                pass
    twice = [message for message, times in shown.items() if times > 1]
    assert not twice, f"{header.id} shows {twice} more than once"
    assert all(times == 1 and shown[message] == 1 for message, times in claimed.items())
    for call_id, turn_id in asked.items():
        expected = {1} if turn_id != open_turn else {0, 1}
        assert answered[call_id] in expected, f"the call {call_id} has {answered[call_id]} results"
    assert set(answered) <= set(asked)


def _assert_turn(connection: Connection, session_id: SessionId, head: HeadSlice) -> None:
    """An open turn has exactly one run; a parked one waits for something; an ended one leaves nothing behind."""
    run = runs.session_run(connection, session_id)
    assert (run.turn_id if run else None) == head.open_turn
    open_waits = waits.turn_waits(connection, run.turn_id) if run else []
    if run is not None and run.state == "parked":
        assert open_waits, "a parked turn waits for nothing"


def _takes_input(connection: Connection, header: SessionHeader) -> bool:
    """Whether accepted input of this Session opens turns: of all but members that are not active or from outside."""
    snapshot = projections.member_by_session(connection, header.root_id, header.id) if header.depth == 1 else None
    return snapshot is None or (snapshot.phase == "active" and snapshot.provider != "external")


def _assert_delegations(connection: Connection) -> None:
    """A child is awaited by an open call: while its only turn is open, or until a workflow has taken its outcome."""
    statement = text('SELECT child_id, turn_id, step, "index", ended_turn FROM delegation')
    awaited = Counter[tuple[str, int, int]]()
    for child_id, turn_id, step, index, ended_turn in connection.execute(statement):
        wait = waits.find_wait(connection, turn_id, step, index)
        assert wait is not None, f"nothing waits for {child_id}"
        assert (runs.session_run(connection, child_id) is None) == (ended_turn is not None)
        assert ended_turn is None or wait.kind == "workflow"
        awaited[turn_id, step, index] += 1
    for row in connection.execute(text("SELECT turn_id, step, \"index\" FROM wait WHERE kind = 'subagent'")):
        assert awaited[tuple(row)] == 1, f"the call {tuple(row)} waits for {awaited[tuple(row)]} children"


def _assert_workflows(connection: Connection) -> None:
    """A paused script belongs to a call that waits for it, and waits for agents unless it has something to do."""
    statement = text('SELECT turn_id, step, "index", due FROM workflow')
    for turn_id, step, index, due in connection.execute(statement):
        wait = waits.find_wait(connection, turn_id, step, index)
        assert wait is not None, f"nothing waits for the workflow of {turn_id}"
        assert wait.kind == "workflow"
        expected = delegations.call_delegations(connection, turn_id, step, index)
        assert due or expected, f"the workflow of {turn_id} waits for nobody"


def _assert_nobody_sleeps_on_input(session_id: SessionId, head: HeadSlice) -> None:
    if is_one_shot(head) and head.turns:
        assert head.open_turn is not None or not head.pending, f"{session_id} keeps input behind its only turn"
    if head.pending and not head.held:
        assert head.open_turn is not None, f"{session_id} sleeps on {head.pending} accepted messages"


def _assert_board(header: SessionHeader, events: list[EventData]) -> None:
    """Revisions without gaps, at most one owner per revision, a complete acyclic graph of live tasks."""
    board: dict[TaskId, TaskSnapshot] = {}
    for data in events:
        if isinstance(data, TaskChanged) and data.team_id == header.id:
            before = board.get(data.task.id)
            assert data.task.revision == (before.revision if before else 0) + 1
            board[data.task.id] = data.task
    live = {task.id: task for task in board.values() if task.status != "deleted"}
    for task in live.values():
        assert set(task.blocked_by) <= set(live), f"{task.id} depends on a task that is not there"
        if task.status == "in_progress":
            assert task.owner_id is not None
    assert_acyclic(live)


def assert_acyclic(board: Mapping[TaskId, TaskSnapshot]) -> None:
    remaining: dict[Any, set[Any]] = {task.id: set(task.blocked_by) for task in board.values()}
    while remaining:
        free = [task for task, blockers in remaining.items() if not blockers & set(remaining)]
        assert free, f"a cycle among {sorted(remaining)}"
        for task in free:
            del remaining[task]
