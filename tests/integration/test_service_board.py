"""The task board over the store: compare-and-set under contention, paging, limits, ids, tombstones."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from team.model.events import TaskChanged
from team.model.ids import MAX_SAFE_INTEGER, SessionId, TaskId
from team.model.snapshots import TaskSnapshot
from team.model.views import TaskListView, TaskView
from tests.integration.conftest import MakeCore
from tests.support.core import Core, codes, together


def create(core: Core, who: str, subject: str = "s", **fields: Any) -> Any:
    return core.act(who, "team_task_create", subject=subject, description="d", **fields)


def update(core: Core, who: str, task_id: str, revision: int, action: str, **fields: Any) -> Any:
    return core.act(who, "team_task_update", task_id=task_id, expected_revision=revision, action=action, **fields)


def refused(core: Core, who: str, task_id: str, revision: int, action: str, **fields: Any) -> str:
    return core.refused(who, "team_task_update", task_id=task_id, expected_revision=revision, action=action, **fields)


def snapshots(core: Core, lead: str, task_id: str) -> list[TaskSnapshot]:
    found = [data for event in core.log(lead) if isinstance(data := event.decoded(), TaskChanged)]
    return [data.task for data in found if data.task.id == task_id]


class TestLife:
    def test_a_task_goes_through_its_life(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        made = create(core, bob, write_scopes=["src/"])
        assert made == {
            "id": "task-1",
            "revision": 1,
            "subject": "s",
            "description": "d",
            "status": "pending",
            "blockedBy": [],
            "openBlockers": [],
            "writeScopes": ["src"],
            "ready": True,
            "writeScopeWarnings": [],
        }
        assert update(core, bob, "task-1", 1, "claim")["ownerName"] == "bob"
        assert update(core, bob, "task-1", 2, "complete")["status"] == "completed"
        assert update(core, lead, "task-1", 3, "reopen")["ownerName"] == "bob"
        assert "ownerName" not in update(core, lead, "task-1", 4, "release")
        assert update(core, lead, "task-1", 5, "delete")["status"] == "deleted"
        assert [task.revision for task in snapshots(core, lead, "task-1")] == [1, 2, 3, 4, 5, 6]

    def test_a_tombstone_is_readable_listed_on_request_and_unchangeable(self, core: Core) -> None:
        lead = core.lead()
        create(core, lead)
        update(core, lead, "task-1", 1, "delete")
        assert core.task(lead, "task-1")["status"] == "deleted"
        assert core.act(lead, "team_task_list")["tasks"] == []
        assert [task["id"] for task in core.act(lead, "team_task_list", status="deleted")["tasks"]] == ["task-1"]
        assert refused(core, lead, "task-1", 2, "reopen") == "TEAM_TASK_DELETED"
        assert core.sessions.team(lead).tasks == ()
        assert create(core, lead)["id"] == "task-2"

    def test_w12_every_change_records_who_made_it(self, core: Core) -> None:
        lead = core.lead()
        agent = core.agent(core.spawn(lead, "bob"))
        agent.call("team_task_create", subject="s", description="d")
        agent.call("team_task_update", task_id="task-1", expected_revision=1, action="claim")
        update(core, lead, "task-1", 2, "complete")
        actors = [event.data["actor"] for event in core.log(lead) if event.type == "team/task"]
        assert actors == ["bob", "bob", "tester"]

    def test_t12_ownership_outlives_turns_interruptions_and_workers(self, core: Core) -> None:
        lead = core.lead()
        bob = core.spawn(lead, "bob")
        agent = core.agent(bob)
        create(core, lead)
        agent.call("team_task_update", task_id="task-1", expected_revision=1, action="claim")
        core.lose_worker(bob)
        core.act(lead, "interrupt_agent", target="bob")
        task = core.task(lead, "task-1")
        assert (task["status"], task["ownerName"]) == ("in_progress", "bob")
        assert "inactive, but owns task-1 (in_progress)" in core.member(lead, "bob")["diagnostics"]
        core.act(lead, "send_message", target="bob", message="go on")
        assert core.agent(bob, "w9").call("team_task_get", task_id="task-1")["ownerName"] == "bob"

    def test_t02_assigning_starts_nobodys_turn(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        create(core, lead)
        assert update(core, lead, "task-1", 1, "reassign", owner="bob")["status"] == "pending"
        assert core.run(bob) is None
        assert refused(core, lead, "task-1", 1, "reassign", owner="bob") == "TEAM_TASK_STALE_REVISION"
        assert refused(core, lead, "task-1", 2, "reassign", owner="bob") == "TEAM_TASK_INVALID_TRANSITION"
        assert update(core, bob, "task-1", 2, "claim")["status"] == "in_progress"

    def test_t14_nobody_is_no_owner(self, core: Core) -> None:
        lead = core.lead()
        create(core, lead)
        for owner in ("", " ", "none", "unowned", "nobody"):
            assert refused(core, lead, "task-1", 1, "reassign", owner=owner) == "TEAM_MEMBER_NOT_FOUND"
        assert refused(core, lead, "task-1", 1, "reassign", owner=None) == "TEAM_INVALID_ARGUMENT"
        assert core.task(lead, "task-1")["revision"] == 1

    def test_t08_a_blocker_stops_claim_completion_and_assignment_until_it_is_done_or_removed(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        create(core, lead)
        create(core, lead, blocked_by=["task-1"])
        for who, action, more in (
            (bob, "claim", {}),
            (lead, "complete", {}),
            (lead, "reassign", {"owner": "bob"}),
            (lead, "reassign", {"owner": "lead"}),
        ):
            assert refused(core, who, "task-2", 1, action, **more) == "TEAM_TASK_BLOCKED"
        assert refused(core, lead, "task-1", 1, "delete") == "TEAM_TASK_HAS_DEPENDENTS"
        update(core, lead, "task-2", 1, "set_dependencies", blocked_by=[])
        assert update(core, bob, "task-2", 2, "claim")["status"] == "in_progress"
        assert update(core, lead, "task-1", 1, "delete")["status"] == "deleted"

    def test_completing_the_last_blocker_makes_a_task_ready(self, core: Core) -> None:
        lead = core.lead()
        create(core, lead)
        create(core, lead)
        create(core, lead, blocked_by=["task-1", "task-2"])
        update(core, lead, "task-1", 1, "complete")
        assert [task["id"] for task in core.act(lead, "team_task_list", ready=True)["tasks"]] == ["task-2"]
        update(core, lead, "task-2", 1, "complete")
        assert [task["id"] for task in core.act(lead, "team_task_list", ready=True)["tasks"]] == ["task-3"]
        assert [task.ready for task in core.sessions.team(lead).tasks] == [False, False, True]

    def test_t05_a_wrong_blocker_changes_nothing_at_all(self, core: Core) -> None:
        lead, stranger = core.lead(), core.lead()
        create(core, lead)
        create(core, lead)
        update(core, lead, "task-2", 1, "delete")
        create(core, stranger)
        create(core, lead)
        before = core.count()
        for blockers, code in (
            (["task-9"], "TEAM_TASK_NOT_FOUND"),
            (["task-1", "task-9"], "TEAM_TASK_NOT_FOUND"),
            ([""], "TEAM_TASK_NOT_FOUND"),
            (["task-1", "task-1"], "TEAM_INVALID_ARGUMENT"),
            (["task-2"], "TEAM_TASK_DELETED"),
        ):
            assert core.refused(lead, "team_task_create", subject="s", description="d", blocked_by=blockers) == code
            assert refused(core, lead, "task-3", 1, "set_dependencies", blocked_by=blockers) == code
        assert core.count() == before
        assert core.task(lead, "task-3")["revision"] == 1

    def test_t11_what_was_created_is_listed_in_the_next_call_from_every_thread(self, core: Core) -> None:
        lead = core.lead()

        def create_and_list() -> bool:
            made = create(core, lead)["id"]
            return made in [task["id"] for task in core.act(lead, "team_task_list", limit=100)["tasks"]]

        assert together(*([create_and_list] * 8)) == [True] * 8
        ids = [task["id"] for task in core.act(lead, "team_task_list")["tasks"]]
        assert ids == [f"task-{number}" for number in range(1, 9)]


class TestContention:
    def test_t01_one_of_many_claims_wins_and_nobody_else_is_told_so(self, core: Core) -> None:
        lead = core.lead()
        members = [core.idle(lead, f"m{number}") for number in range(4)]
        for number in range(1, 13):
            task_id = create(core, lead)["id"]
            actions: list[Callable[[], object]] = [
                lambda who=who, task_id=task_id: update(core, who, task_id, 1, "claim") for who in members
            ]
            actions += [
                lambda owner=owner, task_id=task_id: update(core, lead, task_id, 1, "reassign", owner=owner)
                for owner in ("m0", "m1", "lead")
            ]
            actions.append(lambda task_id=task_id: update(core, lead, task_id, 1, "complete"))
            outcomes = Counter(codes(together(*actions)))
            assert outcomes == {"ok": 1, "TEAM_TASK_STALE_REVISION": 7}
            assert [task.revision for task in snapshots(core, lead, task_id)] == [1, 2]
            assert number == int(task_id.removeprefix("task-"))

    def test_revisions_have_no_gaps_when_everybody_edits(self, core: Core) -> None:
        lead = core.lead()
        create(core, lead)

        def edit_until_done(name: str) -> int:
            done = 0
            while done < 5:
                revision = core.task(lead, "task-1")["revision"]
                wanted = {"task_id": "task-1", "expected_revision": revision, "action": "edit"}
                try:
                    core.act(lead, "team_task_update", subject=f"{name} {done}", **wanted)
                except Exception as error:  # noqa: BLE001 -- only a stale revision is expected
                    assert getattr(error, "code", None) == "TEAM_TASK_STALE_REVISION"  # noqa: PT017 -- on a thread
                else:
                    done += 1
            return done

        assert together(*(lambda n=name: edit_until_done(n) for name in "abcd")) == [5] * 4
        assert [task.revision for task in snapshots(core, lead, "task-1")] == list(range(1, 22))

    def test_t06_two_edges_that_close_a_cycle_together_are_not_both_taken(self, core: Core) -> None:
        lead = core.lead()
        bob, carol = core.idle(lead, "bob"), core.idle(lead, "carol")
        for _ in range(10):
            one, other = create(core, lead)["id"], create(core, lead)["id"]
            update(core, bob, one, 1, "claim")
            update(core, carol, other, 1, "claim")
            outcomes = codes(
                together(
                    lambda a=one, b=other: update(core, bob, a, 2, "set_dependencies", blocked_by=[b]),
                    lambda a=one, b=other: update(core, carol, b, 2, "set_dependencies", blocked_by=[a]),
                )
            )
            assert sorted(outcomes) == ["TEAM_TASK_DEPENDENCY_CYCLE", "ok"]

    def test_a_blocker_is_deleted_or_depended_on_never_both(self, core: Core) -> None:
        lead = core.lead()
        for _ in range(8):
            task_id = create(core, lead)["id"]
            outcomes = codes(
                together(
                    lambda t=task_id: update(core, lead, t, 1, "delete"),
                    lambda t=task_id: create(core, lead, blocked_by=[t]),
                )
            )
            assert sorted(outcomes) in (["TEAM_TASK_DELETED", "ok"], ["TEAM_TASK_HAS_DEPENDENTS", "ok"])


class TestLimits:
    def test_the_limit_counts_tasks_that_are_not_deleted(self, make_core: MakeCore) -> None:
        core = make_core(max_tasks=3)
        lead = core.lead()
        for _ in range(3):
            create(core, lead)
        assert core.refused(lead, "team_task_create", subject="s", description="d") == "TEAM_TASK_LIMIT"
        update(core, lead, "task-2", 1, "complete")
        assert core.refused(lead, "team_task_create", subject="s", description="d") == "TEAM_TASK_LIMIT"
        update(core, lead, "task-2", 2, "delete")
        assert create(core, lead)["id"] == "task-4"

    def test_the_limit_holds_when_everybody_creates_at_once(self, make_core: MakeCore) -> None:
        core = make_core(max_tasks=3)
        lead = core.lead()
        outcomes = Counter(codes(together(*([lambda: create(core, lead)] * 8))))
        assert outcomes == {"ok": 3, "TEAM_TASK_LIMIT": 5}

    def test_ids_end_at_the_largest_safe_integer_and_are_never_used_again(self, core: Core) -> None:
        lead = core.lead()
        last = TaskSnapshot(
            id=TaskId(f"task-{MAX_SAFE_INTEGER}"), revision=1, subject="s", description="d", status="pending"
        )
        core.append(lead, TaskChanged(team_id=core.head_team(lead), task=last))
        assert core.refused(lead, "team_task_create", subject="s", description="d") == "TEAM_TASK_LIMIT"
        update(core, lead, last.id, 1, "delete")
        assert core.refused(lead, "team_task_create", subject="s", description="d") == "TEAM_TASK_LIMIT"

    def test_the_number_of_statements_does_not_grow_with_the_log(self, core: Core) -> None:
        lead = core.lead()
        create(core, lead)
        few = core.statements(lambda: update(core, lead, "task-1", 1, "edit", subject="x"))
        owner = SessionId(lead)
        edits = [
            TaskChanged(
                team_id=core.head_team(lead),
                task=TaskSnapshot(
                    id=TaskId("task-1"), revision=revision, subject="x", description="d", status="pending"
                ),
            )
            for revision in range(3, 2_003)
        ]
        core.append(owner, *edits)
        many = core.statements(lambda: update(core, lead, "task-1", 2_002, "edit", subject="y"))
        assert len(core.log(lead)) > 2_000
        assert many == few
        assert not [statement for statement in many if "FROM event" in statement]


class TestPaging:
    def ids(self, page: Any) -> list[int]:
        return [int(task["id"].removeprefix("task-")) for task in page["tasks"]]

    def test_t17_pages_follow_each_other_while_tasks_are_deleted_between_them(self, core: Core) -> None:
        lead = core.lead()
        for _ in range(9):
            create(core, lead)
        first = core.act(lead, "team_task_list", limit=4)
        assert (self.ids(first), first["nextCursor"]) == ([1, 2, 3, 4], "task-4")
        for gone in (1, 4, 5):
            update(core, lead, f"task-{gone}", 1, "delete")
        second = core.act(lead, "team_task_list", limit=4, cursor=first["nextCursor"])
        assert (self.ids(second), second.get("nextCursor")) == ([6, 7, 8, 9], None)
        assert core.act(lead, "team_task_list", cursor="task-9") == {"tasks": []}
        assert core.act(lead, "team_task_list", cursor="task-900") == {"tasks": []}

    def test_t17_the_last_page_has_no_cursor_and_every_task_is_on_one_page(self, core: Core) -> None:
        lead = core.lead()
        for _ in range(7):
            create(core, lead)
        for limit in (1, 3, 7, 100):
            seen: list[int] = []
            page = core.act(lead, "team_task_list", limit=limit)
            while True:
                assert len(page["tasks"]) <= limit
                seen += self.ids(page)
                if "nextCursor" not in page:
                    break
                page = core.act(lead, "team_task_list", limit=limit, cursor=page["nextCursor"])
            assert seen == list(range(1, 8))

    def test_filters_go_together(self, core: Core) -> None:
        lead = core.lead()
        writer, writer_2 = core.idle(lead, "writer"), core.idle(lead, "writer-2")
        for _ in range(4):
            create(core, lead)
        update(core, writer, "task-1", 1, "claim")
        update(core, writer_2, "task-2", 1, "claim")
        update(core, lead, "task-3", 1, "complete")
        listed = {
            "writer": core.act(lead, "team_task_list", owner="writer"),
            "unowned": core.act(lead, "team_task_list", owner="unowned"),
            "unowned and ready": core.act(lead, "team_task_list", owner="unowned", ready=True),
            "in progress": core.act(lead, "team_task_list", status="in_progress"),
            "not ready": core.act(lead, "team_task_list", ready=False),
            "lead": core.act(lead, "team_task_list", owner="lead"),
        }
        assert {name: self.ids(page) for name, page in listed.items()} == {
            "writer": [1],
            "unowned": [3, 4],
            "unowned and ready": [4],
            "in progress": [1, 2],
            "not ready": [1, 2, 3],
            "lead": [],
        }

    def test_tombstones_are_listed_in_pages_of_their_own(self, core: Core) -> None:
        lead = core.lead()
        bob = core.idle(lead, "bob")
        for number in range(1, 8):
            create(core, lead)
            if number % 2:
                update(core, bob, f"task-{number}", 1, "claim")
            update(core, lead, f"task-{number}", 1 + number % 2, "delete")
        create(core, lead)
        first = core.act(lead, "team_task_list", status="deleted", limit=4)
        assert (self.ids(first), first["nextCursor"]) == ([1, 2, 3, 4], "task-4")
        second = core.act(lead, "team_task_list", status="deleted", limit=4, cursor="task-4")
        assert (self.ids(second), second.get("nextCursor")) == ([5, 6, 7], None)
        assert self.ids(core.act(lead, "team_task_list", status="deleted", owner="bob")) == [1, 3, 5, 7]
        assert self.ids(core.act(lead, "team_task_list", status="deleted", owner="unowned")) == [2, 4, 6]
        assert self.ids(core.act(lead, "team_task_list", status="deleted", ready=True)) == []
        assert self.ids(core.act(lead, "team_task_list")) == [8]

    def test_m15_no_operation_reads_a_tombstone_that_it_does_not_name(self, core: Core) -> None:
        lead = core.lead("go")
        bob = core.idle(lead, "bob")
        for _ in range(3):
            create(core, lead)
        update(core, lead, "task-1", 1, "delete")
        core.sql("UPDATE task SET data = '{' WHERE number = 1")
        create(core, lead, blocked_by=["task-2"])
        update(core, bob, "task-2", 1, "claim")
        update(core, bob, "task-2", 2, "complete")
        update(core, lead, "task-4", 1, "reassign", owner="bob")
        update(core, lead, "task-3", 1, "set_dependencies", blocked_by=["task-4"])
        update(core, lead, "task-3", 2, "delete")
        assert self.ids(core.act(lead, "team_task_list")) == [2, 4]
        assert core.task(lead, "task-4")["ready"]
        core.act(lead, "list_agents")
        assert [task.id for task in core.sessions.team(lead).tasks] == ["task-2", "task-4"]
        core.spawn(lead, "carol")
        core.agent(core.sessions.member_session(lead, "carol")).finish()
        with pytest.raises(ValidationError):
            core.task(lead, "task-1")
        core.may_be_damaged = True

    def test_t17_a_page_is_bounded_and_so_are_its_statements_whatever_lies_below(self, make_core: MakeCore) -> None:
        core = make_core(max_tasks=10_000)
        lead = core.lead()
        team = core.head_team(lead)
        tombstones = [
            TaskSnapshot(id=TaskId(f"task-{n}"), revision=1, subject="s", description="d", status="deleted")
            for n in range(1, 1_001)
        ]
        live = [
            TaskSnapshot(
                id=TaskId(f"task-{n}"),
                revision=1,
                subject="s",
                description="d",
                status="pending",
                blocked_by=(TaskId(f"task-{n - 1}"),) if n > 1_001 else (),
            )
            for n in range(1_001, 1_257)
        ]
        core.append(lead, *(TaskChanged(team_id=team, task=task) for task in [*tombstones, *live]))
        page = core.act(lead, "team_task_list", limit=100)
        assert self.ids(page) == list(range(1_001, 1_101))
        assert refused(core, lead, "task-1001", 1, "set_dependencies", blocked_by=["task-1256"]) == (
            "TEAM_TASK_DEPENDENCY_CYCLE"
        )


def test_results_are_the_declared_models_in_compact_json(core: Core) -> None:
    lead = core.lead("go")
    agent = core.agent(lead)
    agent.ask(
        ("team_task_create", {"subject": "s", "description": "d"}),
        ("team_task_list", {}),
    )
    created, listed = agent.run_call(0), agent.run_call(1)
    for result, view in ((created, TaskView), (listed, TaskListView)):
        text = result.entry.content if result.entry and result.entry.kind == "tool-result" else ""
        assert view.model_validate_json(text).to_json() == text
        assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) == text
