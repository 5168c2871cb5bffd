"""What follows from a board: readiness, blockers, overlapping scopes, cycles, ids."""

from typing import Final

import pytest

from team.model.errors import (
    InvalidArgument,
    InvalidWriteScope,
    TaskDeleted,
    TaskDependencyCycle,
    TaskNotFound,
    TeamError,
)
from team.model.ids import MAX_SAFE_INTEGER, SessionId, TaskId, TeamId, task_id
from team.model.snapshots import TaskSnapshot, TaskStatus
from team.model.views import ScopeWarning, task_view
from team.rules.board import Update, cursor_number, decide
from team.rules.roster import lead_of

LEAD: Final = lead_of(TeamId("team"))


def task(
    number: int, *blockers: int, status: TaskStatus = "pending", scopes: tuple[str, ...] = (), owner: str | None = None
) -> TaskSnapshot:
    return TaskSnapshot(
        id=task_id(number),
        revision=1,
        subject="s",
        description="d",
        status=status,
        owner_id=SessionId(owner) if owner else None,
        blocked_by=tuple(task_id(blocker) for blocker in blockers),
        write_scopes=scopes,
    )


def board(*tasks: TaskSnapshot) -> dict[TaskId, TaskSnapshot]:
    return {item.id: item for item in tasks}


def depend(tasks: dict[TaskId, TaskSnapshot], number: int, *blockers: str) -> TaskSnapshot:
    return decide(tasks, LEAD, Update(f"task-{number}", 1, "set_dependencies", blocked_by=blockers), {})


class TestReadiness:
    def test_t09_completed_blockers_are_told_apart_from_open_ones(self) -> None:
        tasks = board(task(1, status="completed"), task(2, 1, 3), task(3))
        view = task_view(tasks[TaskId("task-2")], tasks, {})
        assert (view.blocked_by, view.open_blockers, view.ready) == (("task-1", "task-3"), ("task-3",), False)
        tasks = board(task(1, status="completed"), task(2, 1, 3), task(3, status="completed"))
        view = task_view(tasks[TaskId("task-2")], tasks, {})
        assert (view.open_blockers, view.ready) == ((), True)

    @pytest.mark.parametrize("status", ["in_progress", "completed", "deleted"])
    def test_only_a_pending_task_is_ready(self, status: TaskStatus) -> None:
        one = task(1, status=status, owner="bob-1")
        assert not task_view(one, board(one), {}).ready

    def test_an_owner_is_shown_by_name(self) -> None:
        one = task(1, owner="bob-1")
        view = task_view(one, board(one), {SessionId("bob-1"): "bob"})
        assert view.owner_name == "bob"
        assert "bob-1" not in view.to_json()


class TestCycles:
    def test_t06_a_task_cannot_wait_for_itself(self) -> None:
        with pytest.raises(TaskDependencyCycle, match="task-1 waits for task-1"):
            depend(board(task(1)), 1, "task-1")

    def test_t06_two_tasks_cannot_wait_for_each_other(self) -> None:
        with pytest.raises(TaskDependencyCycle, match="task-1 waits for task-2 waits for task-1"):
            depend(board(task(1), task(2, 1)), 1, "task-2")

    @pytest.mark.parametrize("length", [200, 5_000])
    def test_t06_the_last_edge_of_a_long_chain_cannot_close_it(self, length: int) -> None:
        chain = board(task(1), *(task(number, number - 1) for number in range(2, length + 1)))
        with pytest.raises(TaskDependencyCycle):
            depend(chain, 1, f"task-{length}")
        assert depend(chain, length, "task-1").blocked_by == ("task-1",)

    @pytest.mark.parametrize("status", ["completed", "in_progress"])
    def test_t06_a_cycle_through_a_finished_task_is_one(self, status: TaskStatus) -> None:
        with pytest.raises(TaskDependencyCycle):
            depend(board(task(1), task(2, 1, status=status, owner="x")), 1, "task-2")

    def test_t06_a_diamond_is_no_cycle(self) -> None:
        tasks = board(task(1), task(2, 1), task(3, 1), task(4))
        assert depend(tasks, 4, "task-2", "task-3").blocked_by == ("task-2", "task-3")

    @pytest.mark.parametrize(
        ("blockers", "error"),
        [
            (("task-9",), TaskNotFound),
            (("task-2", "task-9"), TaskNotFound),
            (("",), TaskNotFound),
            (("task-02",), TaskNotFound),
            (("task-3",), TaskDeleted),
            (("task-2", "task-2"), InvalidArgument),
            (tuple(f"task-{number}" for number in range(2, 302)), TeamError),
        ],
    )
    def test_t05_every_blocker_is_a_task_of_the_board_named_once(
        self, blockers: tuple[str, ...], error: type[TeamError]
    ) -> None:
        with pytest.raises(error):
            depend(board(task(1), task(2), task(3, status="deleted")), 1, *blockers)


def scopes_of(*scopes: str) -> tuple[str, ...]:
    one = task(1)
    return decide(board(one), LEAD, Update("task-1", 1, "edit", write_scopes=scopes), {}).write_scopes


class TestScopes:
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("src", "src"),
            ("src/", "src"),
            ("./src//parser/.", "src/parser"),
            (".", "."),
            ("./", "."),
            ("a b/\u00e9", "a b/\u00e9"),
            ("...", "..."),
            ("__proto__", "__proto__"),
        ],
    )
    def test_a_scope_is_normalised(self, given: str, kept: str) -> None:
        assert scopes_of(given) == (kept,)

    @pytest.mark.parametrize(
        "given", ["", " ", "/", "/etc", "..", "a/../b", "../x", "a\\b", "a\x00b", "\ud800", "x" * 1_025]
    )
    def test_what_is_no_relative_prefix_is_refused(self, given: str) -> None:
        with pytest.raises(InvalidWriteScope):
            scopes_of(given)

    def test_doubles_are_kept_once_in_order_and_their_number_is_limited(self) -> None:
        assert scopes_of("b", "a/", "a", "./b") == ("b", "a")
        with pytest.raises(InvalidWriteScope):
            scopes_of(*(f"d{number}" for number in range(65)))

    @pytest.mark.parametrize(
        ("one", "other", "overlap"),
        [
            ("src", "src", True),
            ("src", "src/parser", True),
            ("src/parser", "src", True),
            ("src", "src2", False),
            ("src/a", "src/b", False),
            (".", "anything/below", True),
            ("a/b", "b", False),
        ],
    )
    def test_scopes_overlap_when_one_lies_in_the_other(self, one: str, other: str, overlap: bool) -> None:
        tasks = board(task(1, scopes=(one,)), task(2, scopes=(other,)))
        warnings = task_view(tasks[TaskId("task-1")], tasks, {}).write_scope_warnings
        assert warnings == ((ScopeWarning(task_id=TaskId("task-2"), scope=one, other_scope=other),) if overlap else ())

    @pytest.mark.parametrize("status", ["completed", "deleted"])
    def test_finished_tasks_neither_warn_nor_are_warned_of(self, status: TaskStatus) -> None:
        tasks = board(task(1, scopes=("src",)), task(2, scopes=("src",), status=status))
        assert all(not task_view(one, tasks, {}).write_scope_warnings for one in tasks.values())


class TestCursor:
    def test_a_cursor_is_a_task_id_beyond_the_end_too(self) -> None:
        assert cursor_number(None) == 0
        assert cursor_number("task-3") == 3
        assert cursor_number(f"task-{MAX_SAFE_INTEGER}") == MAX_SAFE_INTEGER

    @pytest.mark.parametrize("cursor", ["", "3", "task-0", "3.5", "task-x", "-1"])
    def test_anything_else_is_refused(self, cursor: str) -> None:
        with pytest.raises(InvalidArgument):
            cursor_number(cursor)
