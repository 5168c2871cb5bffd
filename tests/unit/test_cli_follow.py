"""What a run shows, when it ends, and what it calls unfinished."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from team.cli.client import Operator
from team.cli.follow import Follower, unfinished_work
from team.cli.lines import arguments_of, harmless, plain, progress_line
from team.cli.rendering import as_tree, print_team
from team.cli.views import is_settled
from team.model.events import Event
from team.model.views import TeamView
from tests.support.http import Answer, Asked, RecordingServer

COMPLETED = {"turnId": "turn-0", "reason": "completed"}
RUNNING = {"id": "turn-1", "state": "running", "since": 1.0, "reason": "prompt", "worker": "worker-1", "epoch": 1}


def member(target: str = "lead", **changes: Any) -> dict[str, Any]:
    role = "lead" if target == "lead" else "teammate"
    return {
        "target": target,
        "role": role,
        "status": "inactive",
        "phase": "active",
        "sessionId": f"s-{target}",
        "lastEnd": COMPLETED,
        **changes,
    }


def task(**changes: Any) -> dict[str, Any]:
    return {
        "id": "task-1",
        "revision": 1,
        "subject": "Do it",
        "description": "",
        "status": "completed",
        "ready": False,
        **changes,
    }


def team(*members: dict[str, Any], tasks: tuple[dict[str, Any], ...] = (), **changes: Any) -> dict[str, Any]:
    wire = {"teamId": "s-lead", "members": list(members), "tasks": list(tasks), "closed": False, "edgeCounter": 0}
    return {**wire, **changes}


def view(*members: dict[str, Any], **changes: Any) -> TeamView:
    return TeamView.model_validate(team(*members, **changes), strict=False)


def silent(who: str, what: str) -> None:
    """Show nothing."""


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({}, True),
        ({"turn": RUNNING}, False),
        ({"pending": 1}, False),
        ({"pending": 1, "held": True}, True),
        ({"phase": "provisioning", "status": "provisioning"}, False),
        ({"phase": "failed", "status": "failed", "error": "no"}, True),
    ],
)
def test_a_run_ends_when_nobody_has_a_turn_or_unheld_input(changes: dict[str, Any], settled: bool) -> None:
    assert is_settled(view(member(), member("helper", **changes))) is settled


def subagent(label: str = "scout", **changes: Any) -> dict[str, Any]:
    return {"sessionId": f"s-{label}", "parentId": "s-lead", "label": label, "status": "inactive", **changes}


@pytest.mark.parametrize(
    ("changes", "settled"),
    [({}, True), ({"turn": RUNNING}, False), ({"pending": 1}, False), ({"pending": 1, "held": True}, True)],
)
def test_a_run_goes_on_while_a_subagent_works(changes: dict[str, Any], settled: bool) -> None:
    assert is_settled(view(member(), subagents=[subagent(**changes)])) is settled


def test_a_subagent_that_still_works_is_unfinished() -> None:
    unfinished = unfinished_work(view(member(), subagents=[subagent(turn=RUNNING), subagent("idle")]))
    assert unfinished == ("the subagent scout has a turn that is running",)


def test_subagents_are_shown_as_a_tree_and_a_broken_one_with_its_reason() -> None:
    agents = [
        subagent("one"),
        subagent("two", turn=RUNNING, status="running"),
        subagent("below-one", parentId="s-one"),
        {"sessionId": "s-broken", "parentId": "s-two", "error": "its header cannot be read"},
        subagent("below-below", parentId="s-below-one"),
    ]
    shown = view(member(), subagents=agents)
    assert [(depth, agent.session_id) for depth, agent in as_tree(shown.subagents)] == [
        (0, "s-one"),
        (1, "s-below-one"),
        (2, "s-below-below"),
        (0, "s-two"),
        (1, "s-broken"),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    print_team(console, shown)
    text = console.export_text()
    assert "its header cannot be read" in text
    assert "└ └ below-below" in text
    assert "running on worker-1" in text


def test_workflows_are_shown_with_their_phase_and_agents() -> None:
    workflow = {
        "sessionId": "s-lead",
        "callId": "c",
        "name": "review modules",
        "phase": "fix",
        "note": "3 left",
        "agents": 41,
        "running": 7,
        "waiting": 5,
        "failed": 2,
    }
    shown = TeamView.model_validate_json(
        json.dumps({**view(member()).to_wire(), "workflows": [workflow]}, ensure_ascii=False)
    )
    console = Console(width=200, record=True, file=io.StringIO())
    print_team(console, shown)
    row = next(line for line in console.export_text().splitlines() if "review modules" in line)
    assert row.split() == ["review", "modules", "fix", "41", "7", "5", "2", "3", "left", "s-lead"]


def test_a_subagent_called_lead_does_not_give_the_answer() -> None:
    said = {"seq": 1, "time": "2026-01-01T00:00:00.000Z", "type": "assistant/message"}
    spoken: dict[str, dict[str, Any]] = {
        "s-lead": {**said, "data": {"content": [{"type": "text", "text": "of the Lead"}]}},
        "s-false": {**said, "seq": 1, "data": {"content": [{"type": "text", "text": "of another"}]}},
    }
    false = {**subagent("lead", lastSeq=1), "sessionId": "s-false"}

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/v1/teams/"):
            return 200, team(member(lastSeq=1), subagents=[false])
        session = asked.path.split("/")[3]
        return 200, {"events": [spoken[session]] if "after=0" in asked.path else [], "lastSeq": 1}

    with RecordingServer(answer) as server, Operator(server.url, "token") as operator:
        assert Follower(operator, "s-lead", silent).follow(5).answer == "of the Lead"


@pytest.mark.parametrize(
    ("members", "tasks", "phrase"),
    [
        ([member(lastEnd=None)], [], "the Lead has not run a turn"),
        (
            [member(lastEnd={"turnId": "t", "reason": "error", "code": "auth", "message": "bad key"})],
            [],
            "the Lead's last turn ended error (auth: bad key)",
        ),
        ([member(), member("helper", turn=RUNNING)], [], "helper has a turn that is running on worker-1"),
        ([member(), member("helper", pending=2, held=True)], [], "helper has 2 messages held"),
        (
            [member()],
            [task(status="in_progress", ownerName="helper")],
            "task-1 is in progress (owner helper): Do it",
        ),
    ],
)
def test_what_is_unfinished_is_named(members: list[dict[str, Any]], tasks: list[dict[str, Any]], phrase: str) -> None:
    assert phrase in unfinished_work(view(*members, tasks=tuple(tasks)))


def test_nothing_is_unfinished_when_the_lead_completed_and_the_board_is_done() -> None:
    assert unfinished_work(view(member(), member("helper", lastEnd=None), tasks=(task(),))) == ()


def test_following_shows_events_once_and_ends_with_the_leads_answer() -> None:
    log = [
        ("team/member", {"member": {"name": "helper", "phase": "active", "context": "fresh", "description": "Helps"}}),
        ("tool/call", {"name": "bash", "arguments": '{"command": "make test"}'}),
        ("assistant/message", {"content": [{"type": "text", "text": "All is done."}]}),
        ("turn/end", {"reason": "completed"}),
    ]
    events = [
        {"seq": number, "time": f"2026-01-01T00:00:0{number}Z", "type": kind, "data": data}
        for number, (kind, data) in enumerate(log, 1)
    ]
    views = [
        team(member(turn=RUNNING, lastEnd=None, lastSeq=2)),
        team(member(turn=RUNNING, lastEnd=None, lastSeq=2)),
        team(member(lastSeq=4, workers=["worker-1"])),
    ]

    def answer(request: Asked) -> Answer:
        if request.path.startswith("/v1/teams/"):
            return 200, views.pop(0)
        after = int(request.path.split("after=")[1].split("&")[0])
        visible = 2 if views else 4
        return 200, {"events": events[after:visible], "lastSeq": visible}

    shown: list[tuple[str, str]] = []
    with RecordingServer(answer) as server, Operator(server.url, "token") as operator:
        follower = Follower(operator, "s-lead", lambda who, what: shown.append((who, what)))
        outcome = follower.follow(None)
    assert outcome.is_done
    assert outcome.answer == "All is done."
    assert outcome.workers == {"lead": ("worker-1",)}
    assert shown == [
        ("lead", "runs on worker-1"),
        ("lead", "helper joined (fresh): Helps"),
        ("lead", "bash  command=make test"),
        ("lead", "says: All is done."),
        ("lead", "turn ended: completed"),
    ]


def test_a_run_at_its_limit_is_incomplete_and_says_so() -> None:
    busy = team(member(turn=RUNNING, lastEnd=None))

    def answer(request: Asked) -> Answer:
        return 200, busy if request.path.startswith("/v1/teams/") else {"events": [], "lastSeq": 0}

    with RecordingServer(answer) as server, Operator(server.url, "token") as operator:
        outcome = Follower(operator, "s-lead", silent).follow(0)
    assert outcome.reached_limit
    assert outcome.unfinished[0] == "the time limit was reached"
    assert outcome.to_json()["status"] == "incomplete"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("tool/result", {"outcome": "ok", "content": "fine"}, None),
        ("tool/result", {"outcome": "unknown", "content": "cut off"}, "↳ outcome unknown: cut off"),
        ("tool/result", {"outcome": "error", "content": "FS_STALE_VERSION"}, "↳ failed: FS_STALE_VERSION"),
        ("tool/call", {"name": "list_agents", "arguments": "{}"}, "list_agents"),
        ("turn/end", {"reason": "error", "code": "auth", "message": "bad key"}, "turn ended: error/auth: bad key"),
        ("turn/parked", {"waits": [{"kind": "subagent"}]}, "waits: subagent"),
        (
            "turn/parked",
            {"waits": [{"kind": "wait-agent", "deadline": "2026-01-01T12:00:30Z"}]},
            "waits: wait-agent until 12:00:30 UTC",
        ),
        (
            "agent/inbox/inserted",
            {
                "content": [{"type": "text", "text": "[frame]"}, {"type": "text", "text": "hi"}],
                "source": {"kind": "team-message", "senderName": "lead"},
            },
            "✉ from lead: hi",
        ),
        ("agent/inbox/inserted", {"content": [], "source": {"kind": "runtime-context"}}, None),
        (
            "team/task",
            {"task": {"id": "task-1", "revision": 2, "status": "in_progress", "ownerId": "s-a", "subject": "Do"}},
            "task-1 r2 in progress by a: Do",
        ),
        ("request/header", {"system": "…"}, None),
        ("tool-workflow/progress", {"kind": "phase", "text": "review"}, "phase: review"),
        ("tool-workflow/agent", {"item": 1, "label": "a.py", "prompt": "…"}, "asks for the agent a.py"),
        ("tool-workflow/answered", {"item": 1, "batch": 1, "value": "1"}, None),
        ("tool-workflow/answered", {"item": 1, "error": "it was interrupted"}, "↳ agent 2 failed: it was interrupted"),
    ],
)
def test_each_notable_event_has_its_line(kind: str, data: dict[str, Any], line: str | None) -> None:
    event = Event(seq=1, time="2026-01-01T00:00:00Z", type=kind, data=data)
    assert progress_line(event, {"s-a": "a"}) == line


def test_nothing_that_a_model_writes_reaches_the_terminal_as_a_control_character() -> None:
    hostile = "a\x1b[2J\x07b\u202ec\nd"
    assert plain(hostile) == "a\\x1b[2J\\x07b\\u202ec d"
    assert harmless(hostile) == "a\\x1b[2J\\x07b\\u202ec\nd"
    assert "\x1b" not in arguments_of('{"command": "\\u001b[31m"}')


@pytest.mark.parametrize("text", ["not json", "[1, 2]", '{"a": {"b": [1]}}', ""])
def test_arguments_of_any_shape_are_shown(text: str) -> None:
    assert "\n" not in arguments_of(text)
