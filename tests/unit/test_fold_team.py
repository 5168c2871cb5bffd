"""The fold of Team records: members, tasks, and the mailbox of older logs."""

import json

import pytest

from team.model.errors import LogDamaged
from team.model.events import Event
from team.model.fold import replay
from team.model.ids import MAX_SAFE_INTEGER
from team.model.slices import HEAD
from tests.support.logs import SESSION, TEAM, Log, member, task


class TestMembers:
    @pytest.mark.parametrize("phase", ["active", "failed"])
    def test_a_member_starts_provisioning(self, phase: str) -> None:
        Log().refuses(member(phase=phase), "starts provisioning")

    def test_an_outside_agent_may_start_active(self) -> None:
        assert Log(member(phase="active", provider="external")).slice("member", "bob").phase == "active"

    @pytest.mark.parametrize("terminal", ["active", "failed"])
    def test_a_terminal_phase_is_final(self, terminal: str) -> None:
        log = Log(member(), member(phase=terminal))
        log.add(member(phase=terminal, model="m"))
        for other in {"provisioning", "active", "failed"} - {terminal}:
            log.refuses(member(phase=other), f"leaves the phase {terminal}")

    @pytest.mark.parametrize("change", [{"id": "other"}, {"provider": "fork"}, {"context": "fork"}])
    def test_who_a_member_is_never_changes(self, change: dict[str, str]) -> None:
        Log(member()).refuses(member(phase="active", **change), "changes its identity")

    def test_records_of_an_ancestor_team_fold_out(self) -> None:
        log = Log(member("bob", team="ancestor"), task(7, 3, team="ancestor"))
        assert set(log.state) == {HEAD}
        log.add(member("bob"), task(1))
        assert log.head.last_task_number == 1


class TestTasks:
    def test_revisions_have_no_gaps(self) -> None:
        Log().refuses(task(revision=2), "skips a revision")
        log = Log(task())
        log.refuses(task(revision=1), "skips a revision")
        log.refuses(task(revision=3), "skips a revision")
        assert log.add(task(revision=2, status="completed")).slice("task", "task-1").status == "completed"

    def test_a_tombstone_is_final(self) -> None:
        Log(task(), task(revision=2, status="deleted")).refuses(task(revision=3), "was deleted")

    def test_a_number_is_never_used_again(self) -> None:
        log = Log(task(1), task(5))
        log.refuses(task(3), "reuses a number")
        assert log.add(task(MAX_SAFE_INTEGER)).head.last_task_number == MAX_SAFE_INTEGER

    @pytest.mark.parametrize("wrong", [{"status": "done"}, {"revision": 0}, {"revision": True}])
    def test_a_snapshot_that_is_none_is_refused_by_number(self, wrong: dict[str, object]) -> None:
        data = task().to_wire()
        data["task"].update(wrong)
        bad = Event(seq=1, time="t", type="team/task", data=data)
        with pytest.raises(LogDamaged, match=f"Session {SESSION}: event 1") as caught:
            replay(Log().header, [bad])
        assert "team/task" in caught.value.message


def historical(kind: str, **fields: object) -> Event:
    body = {"version": 1, "teamId": TEAM, "messageId": "m1", "targetId": "bob-1", **fields}
    return Event(seq=1, time="t", type=kind, data=body)


class TestHistoricalMailbox:
    CONTENT = ({"type": "text", "text": "hi"}, {"type": "acme/card", "__proto__": {"x": None}, "n": [1.5]})

    def queued(self, **fields: object) -> Event:
        sender = {"senderId": SESSION, "senderName": "lead", "delivery": "wake", "content": list(self.CONTENT)}
        return historical("team/message/queued", **{**sender, **fields})

    def test_it_is_readable_and_delivers_nothing(self) -> None:
        delivered = historical("team/message/delivered").model_copy(update={"seq": 2})
        state = replay(Log().header, [self.queued(), delivered])
        assert set(state) == {HEAD}

    def test_its_content_is_untouched(self) -> None:
        wire = self.queued().decoded().to_wire()
        assert json.dumps(wire["content"]) == json.dumps(list(self.CONTENT))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"version": 2},
            {"content": [{"type": "text"}]},
            {"content": [{"no": "type"}]},
            {"senderName": 1},
            {"extra": 1},
        ],
    )
    def test_it_is_still_validated(self, wrong: dict[str, object]) -> None:
        with pytest.raises(LogDamaged, match="event 1"):
            replay(Log().header, [self.queued(**wrong)])
