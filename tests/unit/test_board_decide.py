"""The full product of action, status, caller and blockers on the board, as one table of codes."""

from typing import Any, Final, Literal, get_args

import pytest

from team.model.errors import TeamError
from team.model.ids import SessionId, TaskId, TeamId, task_id
from team.model.snapshots import MemberSnapshot, TaskSnapshot, TaskStatus
from team.model.views import names_of
from team.rules.board import Action, Update, decide
from team.rules.roster import Member, lead_of

TEAM: Final = TeamId("team")
LEAD: Final = lead_of(TEAM)

Caller = Literal["lead", "owner", "other"]
STATUSES: Final[tuple[TaskStatus, ...]] = ("pending", "in_progress", "completed", "deleted")
CALLERS: Final[tuple[Caller, ...]] = ("lead", "owner", "other")

OK, NO, CLAIMED, STUCK, GONE = "ok", "UNAUTHORIZED", "ALREADY_CLAIMED", "INVALID_TRANSITION", "DELETED"
FREE_OR_BLOCKED: Final = "ok, BLOCKED while a blocker is open"

# Rows: pending, in_progress, completed. Columns: the Lead, the owner, another member.
OWNED: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "claim": (
        (CLAIMED, FREE_OR_BLOCKED, CLAIMED),
        (CLAIMED, CLAIMED, CLAIMED),
        (STUCK, STUCK, STUCK),
    ),
    "release": ((OK, OK, NO), (OK, OK, NO), (STUCK, STUCK, NO)),
    "edit": ((OK, OK, NO), (OK, OK, NO), (STUCK, STUCK, NO)),
    "set_dependencies": ((OK, OK, NO), (OK, OK, NO), (STUCK, STUCK, NO)),
    "complete": (
        (FREE_OR_BLOCKED, FREE_OR_BLOCKED, NO),
        (FREE_OR_BLOCKED, FREE_OR_BLOCKED, NO),
        (STUCK, STUCK, NO),
    ),
    "reopen": ((STUCK, STUCK, NO), (STUCK, STUCK, NO), (OK, OK, NO)),
    "reassign": ((FREE_OR_BLOCKED, NO, NO), (FREE_OR_BLOCKED, NO, NO), (STUCK, NO, NO)),
    "delete": ((OK, OK, NO), (OK, OK, NO), (OK, OK, NO)),
}

# Nobody owns the task. Rows: pending, completed. Columns: the Lead, a member.
UNOWNED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "claim": ((FREE_OR_BLOCKED, FREE_OR_BLOCKED), (STUCK, STUCK)),
    "release": ((STUCK, NO), (STUCK, NO)),
    "edit": ((OK, NO), (STUCK, NO)),
    "set_dependencies": ((OK, NO), (STUCK, NO)),
    "complete": ((FREE_OR_BLOCKED, NO), (STUCK, NO)),
    "reopen": ((STUCK, NO), (OK, NO)),
    "reassign": ((FREE_OR_BLOCKED, NO), (STUCK, NO)),
    "delete": ((OK, NO), (OK, NO)),
}

# What a successful action leaves: status and owner ('kept', 'nobody', 'caller', 'carol').
AFTER: Final[dict[str, tuple[str, str]]] = {
    "claim": ("in_progress", "caller"),
    "release": ("pending", "nobody"),
    "edit": ("kept", "kept"),
    "set_dependencies": ("kept", "kept"),
    "complete": ("completed", "kept"),
    "reopen": ("pending", "kept"),
    "reassign": ("pending", "carol"),
    "delete": ("deleted", "kept"),
}


def member(name: str, phase: str = "active") -> Member:
    snapshot = MemberSnapshot.model_validate(
        {
            "id": f"id of {name}",
            "name": name,
            "description": "d",
            "provider": "fresh",
            "context": "fresh",
            "phase": phase,
        }
    )
    return Member(name, snapshot.id, snapshot)


OWNER, OTHER, CAROL = member("writer"), member("writer-2"), member("carol")
NAMES: Final = names_of(TEAM, [who.snapshot for who in (OWNER, OTHER, CAROL) if who.snapshot])


def task(number: int, status: TaskStatus = "pending", owner: Member | None = None, *blockers: int) -> TaskSnapshot:
    return TaskSnapshot(
        id=task_id(number),
        revision=5,
        subject="s",
        description="d",
        status=status,
        owner_id=owner.session_id if owner else None,
        blocked_by=tuple(task_id(blocker) for blocker in blockers),
    )


def board(*tasks: TaskSnapshot) -> dict[TaskId, TaskSnapshot]:
    return {item.id: item for item in tasks}


def request(action: Action, revision: int = 5, number: int = 1, **fields: object) -> Update:
    """A well-formed request: each action with the fields that it needs."""
    needed: dict[Action, dict[str, object]] = {
        "edit": {"subject": "new"},
        "set_dependencies": {"blocked_by": ()},
        "reassign": {"owner": CAROL},
    }
    return Update(f"task-{number}", revision, action, **{**needed.get(action, {}), **fields})  # pyright: ignore[reportArgumentType] -- fields by name


def code_of(tasks: dict[TaskId, TaskSnapshot], caller: Member, wanted: Update) -> str:
    try:
        decide(tasks, caller, wanted, NAMES)
    except TeamError as error:
        return error.code.removeprefix("TEAM_TASK_")
    return OK


def expected(cell: str, *, blocked: bool) -> str:
    if cell == FREE_OR_BLOCKED:
        return "BLOCKED" if blocked else OK
    return cell


def product() -> list[tuple[Action, TaskStatus, str, bool, bool]]:
    return [
        (action, status, caller, owned, blocked)
        for action in get_args(Action)
        for status in STATUSES
        for caller in CALLERS
        for owned in (True, False)
        for blocked in (True, False)
        if owned or (caller != "owner" and status != "in_progress")
    ]


@pytest.mark.parametrize(("action", "status", "caller", "owned", "blocked"), product())
def test_t04_every_action_in_every_status_by_every_caller(
    action: Action, status: TaskStatus, caller: str, owned: bool, blocked: bool
) -> None:
    who = {"lead": LEAD, "owner": OWNER, "other": OTHER}[caller]
    target = task(1, status, OWNER if owned else None, 2)
    tasks = board(target, task(2, "pending" if blocked else "completed"))
    if status == "deleted":
        cell = GONE
    elif owned:
        cell = OWNED[action][STATUSES.index(status)][CALLERS.index(who_is(caller))]
    else:
        cell = UNOWNED[action][("pending", "completed").index(status)][("lead", "other").index(caller)]
    assert code_of(tasks, who, request(action)) == expected(cell, blocked=blocked)
    if expected(cell, blocked=blocked) == OK:
        after = decide(tasks, who, request(action), NAMES)
        wanted_status, wanted_owner = AFTER[action]
        owners = {"kept": target.owner_id, "nobody": None, "caller": who.session_id, "carol": CAROL.session_id}
        assert after.revision == target.revision + 1
        assert after.status == (status if wanted_status == "kept" else wanted_status)
        assert after.owner_id == owners[wanted_owner]


def who_is(caller: str) -> Caller:
    return {"lead": "lead", "owner": "owner"}.get(caller, "other")  # pyright: ignore[reportReturnType] -- one of the three


@pytest.mark.parametrize("action", get_args(Action))
@pytest.mark.parametrize("revision", [1, 4, 6])
def test_a_stale_revision_is_refused_before_anything_else_is_judged(action: Action, revision: int) -> None:
    assert code_of(board(task(1, "pending", OWNER)), OTHER, request(action, revision)) == "STALE_REVISION"


def test_the_refusal_of_a_stale_revision_says_where_the_task_stands() -> None:
    with pytest.raises(TeamError, match=r"revision 5, in_progress, owned by writer; you expected 3.*team_task_get"):
        decide(board(task(1, "in_progress", OWNER)), OTHER, request("claim", 3), NAMES)


@pytest.mark.parametrize("wanted", ["task-9", "task-01", "1", "", "task-1\n", "TASK-1", "task-0", "__proto__"])
def test_a_task_that_is_not_on_the_board_is_not_found(wanted: str) -> None:
    assert code_of(board(task(1)), LEAD, Update(wanted, 5, "claim")) == "NOT_FOUND"


def test_a_deleted_task_is_deleted_whatever_revision_was_expected() -> None:
    assert code_of(board(task(1, "deleted")), LEAD, request("edit", 1)) == "DELETED"


class TestFields:
    @pytest.mark.parametrize(
        ("action", "fields"),
        [
            ("claim", {"subject": "x"}),
            ("complete", {"blocked_by": ()}),
            ("edit", {"subject": "x", "owner": CAROL}),
            ("set_dependencies", {"description": "x"}),
            ("reassign", {"write_scopes": ()}),
            ("delete", {"owner": CAROL}),
        ],
    )
    def test_a_field_that_the_action_does_not_take_is_refused(self, action: Action, fields: dict[str, Any]) -> None:
        assert code_of(board(task(1)), LEAD, request(action, **fields)) == "TEAM_INVALID_ARGUMENT"

    @pytest.mark.parametrize("action", ["edit", "set_dependencies", "reassign"])
    def test_an_action_without_what_it_needs_is_refused(self, action: Action) -> None:
        assert code_of(board(task(1)), LEAD, Update("task-1", 5, action)) == "TEAM_INVALID_ARGUMENT"

    @pytest.mark.parametrize("subject", ["", " ", "\n\t", "x" * 201])
    def test_a_subject_is_one_to_200_characters(self, subject: str) -> None:
        assert code_of(board(task(1)), LEAD, request("edit", subject=subject)) == "TEAM_INVALID_ARGUMENT"
        assert code_of(board(task(1)), LEAD, request("edit", subject="\N{GRINNING FACE}" * 200)) == OK

    def test_a_description_is_counted_in_bytes(self) -> None:
        assert code_of(board(task(1)), LEAD, request("edit", description="\u00e9" * 8_192)) == OK
        assert code_of(board(task(1)), LEAD, request("edit", description="\u00e9" * 8_193)) == "TEAM_INVALID_ARGUMENT"

    def test_t14_an_empty_list_of_scopes_or_blockers_clears_and_an_absent_one_keeps(self) -> None:
        full = task(1, "pending", None, 2).model_copy(update={"write_scopes": ("src",)})
        tasks = board(full, task(2))
        assert decide(tasks, LEAD, request("edit", subject="x"), NAMES).write_scopes == ("src",)
        assert decide(tasks, LEAD, request("edit", subject=None, write_scopes=()), NAMES).write_scopes == ()
        assert decide(tasks, LEAD, request("set_dependencies", blocked_by=()), NAMES).blocked_by == ()


class TestOwners:
    @pytest.mark.parametrize("phase", ["provisioning", "failed"])
    def test_t02_only_an_active_member_can_be_assigned(self, phase: str) -> None:
        assert code_of(board(task(1)), LEAD, request("reassign", owner=member("dave", phase))) == "TEAM_INVALID_TARGET"

    def test_t02_assigning_to_the_present_owner_changes_nothing(self) -> None:
        wanted = request("reassign", owner=OWNER)
        assert code_of(board(task(1, "in_progress", OWNER)), LEAD, wanted) == "INVALID_TRANSITION"

    def test_the_lead_can_take_a_task_itself(self) -> None:
        after = decide(board(task(1, "in_progress", OWNER)), LEAD, request("reassign", owner=LEAD), NAMES)
        assert (after.owner_id, after.status) == (TEAM, "pending")

    def test_t03_owners_are_told_apart_by_id_not_by_their_names_beginnings(self) -> None:
        tasks = board(task(1, "in_progress", OWNER))
        for who in (OTHER, member("writer-10")):
            assert code_of(tasks, who, request("claim")) == "ALREADY_CLAIMED"
            for action in ("complete", "edit", "release", "delete"):
                assert code_of(tasks, who, request(action)) == "UNAUTHORIZED"

    def test_t13_the_refusal_names_the_owner(self) -> None:
        with pytest.raises(TeamError, match="owned by writer"):
            decide(board(task(1, "in_progress", OWNER)), OTHER, request("claim"), NAMES)
        nameless = task(1, "in_progress").model_copy(update={"owner_id": SessionId("gone")})
        with pytest.raises(TeamError, match="owned by unknown"):
            decide(board(nameless), OTHER, request("claim"), NAMES)
