"""What the panel shows of a living Team: roster, board, dependencies, timeline, conversation."""

import json
import re
import sqlite3
from collections.abc import Callable

import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.panel import (
    Panel,
    finish,
    imported,
    live,
    member_event,
    member_state,
    spawn,
    task,
    task_event,
    update,
)
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

Start = Callable[..., CoordinatorProcess]
LEASE_SECONDS = 5.0

pytestmark = pytest.mark.timeout(300)


def row(page: Page, task_id: str):  # noqa: ANN201  # a locator
    return page.locator(f'[data-task="{task_id}"]')


def test_t09_the_badge_of_open_blockers_agrees_with_the_api(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    first, third = task(coordinator, team, "first"), None
    second = task(coordinator, team, "other")
    third = task(coordinator, team, "last", blocked_by=[first["id"], second["id"]])
    page = panel.team(team)
    expect(row(page, third["id"]).locator(".blockers")).to_have_text("waits for task-1, task-2")
    expect(row(page, third["id"]).locator(".state")).to_have_text("blocked")
    update(coordinator, team, "lead", first, "claim")
    update(coordinator, team, "lead", first, "complete")
    expect(row(page, third["id"]).locator(".blockers")).to_have_text("waits for task-2")
    expect(row(page, third["id"]).locator(".blockersdone")).to_contain_text("task-1")
    shown = {found["id"]: found for found in coordinator.client.get(f"/v1/teams/{team}").json()["tasks"]}
    assert (shown["task-3"]["openBlockers"], shown["task-3"]["ready"]) == (["task-2"], False)
    update(coordinator, team, "lead", second, "claim")
    update(coordinator, team, "lead", second, "complete")
    expect(row(page, third["id"]).locator(".state")).to_have_text("ready")
    expect(row(page, third["id"]).locator(".blockers")).to_have_count(0)


def test_the_board_shows_owner_overlap_and_what_depends_on_what(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    spawn(coordinator, team, "bob")
    first = task(coordinator, team, "first", write_scopes=["src"])
    second = task(coordinator, team, "second", write_scopes=["src/a"], blocked_by=["task-1"])
    update(coordinator, team, "bob", first, "claim")
    page = panel.team(team)
    expect(row(page, first["id"])).to_contain_text("owner bob")
    expect(row(page, second["id"])).to_contain_text("no owner")
    expect(row(page, first["id"]).locator(".overlap")).to_contain_text("src overlaps task-2 (src/a)")
    expect(page.locator('[data-group="in_progress"] .task')).to_have_count(1)
    page.get_by_role("tab", name="Dependencies").click()
    graph = page.get_by_role("list", name="Tasks and what they wait for")
    expect(graph.get_by_role("listitem")).to_have_count(2)
    expect(graph.locator("path.edge.open")).to_have_count(1)
    coordinator.tool(team, "lead", "team_task_update", task_id="task-2", expected_revision=1, action="delete")
    expect(graph.get_by_role("listitem")).to_have_count(1)
    expect(page.locator(".task")).to_have_count(1)


def test_w13_seven_states_of_members_look_different_and_say_since_when(chromium: Browser, start: Start) -> None:
    coordinator = start("coordinator", TEAM_LEASE_SECONDS=str(LEASE_SECONDS))
    team = imported(
        coordinator, [member_event("gone", "provisioning"), member_event("gone", "failed", error="no such model")]
    )
    for name in ("alive", "dead", "idle", "unstarted", "waiting", "backing"):
        spawn(coordinator, team, name)

    def session(name: str) -> str:
        return coordinator.member(team, name)["sessionId"]

    finish(coordinator, session("idle"))
    waiting = ManualWorker(coordinator, session("waiting"))
    waiting.boundary()
    waiting.call("wait_agent", '{"timeout_ms":600000}')
    backing = ManualWorker(coordinator, session("backing"))
    backing.boundary()
    assert backing.write("backoff", step=backing.step, delayMs=600_000, reason="rate limit").is_success
    dead, alive = ManualWorker(coordinator, session("dead")), ManualWorker(coordinator, session("alive"))
    assert waiting.boundary() == "parked"

    def beat() -> None:
        claim = {"turnId": alive.claim["turnId"], "epoch": alive.claim["epoch"]}
        body = {"worker": "manual", "slots": 1, "claims": [claim], "stopped": []}
        assert coordinator.worker("heartbeat", body).is_success

    with Panel(chromium, coordinator.port) as panel:
        page = panel.team(team)

        def states() -> dict[str, str | None]:
            beat()
            return {name: member_state(page, name) for name in expected}

        expected = {
            "alive": "working",
            "dead": "queued again",
            "idle": "idle",
            "unstarted": "not started",
            "gone": "creation failed",
            "waiting": "waiting",
            "backing": "model back-off",
        }
        assert dead.claim["turnId"]
        # The claim of a dead worker is over after its lease: nothing says that it works.
        wait_until(lambda: states()["dead"] == "queued again", "the lease of the dead worker to run out", 40, every=0.2)
        assert states() == expected
        assert len(set(expected.values())) == 7
        marks = page.eval_on_selector_all(".member", "rows => rows.map(row => row.className)")
        assert len(marks) == 8
        for name in expected:
            member = page.locator(".member", has=page.locator(f'.name:text-is("{name}")'))
            expect(member.locator("time.ago")).to_have_count(1)
        gone = page.locator(".member", has=page.locator('.name:text-is("gone")'))
        expect(gone.locator(".detail")).to_have_text("no such model")
        backing_row = page.locator(".member", has=page.locator('.name:text-is("backing")'))
        expect(backing_row.locator(".detail")).to_contain_text("rate limit")
        panel.assert_clean()


def test_a_conversation_streams_text_and_replaces_it_by_the_answer(
    coordinator: CoordinatorProcess, panel: Panel, valkey_server: ValkeyProcess
) -> None:
    team = coordinator.lead("Write a poem.")
    worker = ManualWorker(coordinator, team)
    worker.boundary()
    page = panel.team(team)
    client: redis.Redis = redis.Redis.from_url(valkey_server.url)  # pyright: ignore[reportUnknownMemberType]  # untyped library

    def publish(text: str, offset: int, *, attempt: int = 1, epoch: int = 1) -> None:
        delta = {"turnId": worker.claim["turnId"], "epoch": epoch, "step": 1, "attempt": attempt, "offset": offset}
        client.execute_command("PUBLISH", f"team:delta:{team}", json.dumps({**delta, "text": text}))  # pyright: ignore[reportUnknownMemberType]  # untyped library

    streamed = page.locator(".live .plain")

    def first() -> bool:
        publish("Roses ", 0)
        return streamed.count() > 0

    wait_until(first, "the first streamed text", every=0.1)
    publish("are ", 6)
    publish("are ", 6)
    expect(streamed).to_have_text("Roses are ")
    publish("red", 40)
    expect(streamed).to_have_text(re.compile("Roses are .*….*red"))
    publish("Violets", 0, attempt=2)
    expect(streamed).to_have_text("Violets")
    publish("late", 43)
    publish(" are blue", 7, attempt=2)
    expect(streamed).to_have_text("Violets are blue")
    worker.say("Violets are *blue*.")
    expect(page.locator(".from-model .prose")).to_have_text("Violets are blue.")
    expect(streamed).to_have_count(0)
    publish(" late again", 16, attempt=2)
    assert worker.boundary() == "ended"
    expect(page.locator(".turnline").last).to_contain_text("Turn ended: completed")
    expect(streamed).to_have_count(0)
    client.close()


def test_calls_are_cards_with_a_diff_for_edits_and_a_terminal_for_commands(
    coordinator: CoordinatorProcess, panel: Panel
) -> None:
    team = coordinator.lead("Mend it.")
    worker = ManualWorker(coordinator, team)
    worker.boundary()
    edit = {"path": "src/a.py", "old_text": "one\ntwo\nthree", "new_text": "one\n2\nthree"}
    calls = [
        {"type": "tool-call", "callId": "c1", "name": "edit", "arguments": json.dumps(edit)},
        {"type": "tool-call", "callId": "c2", "name": "bash", "arguments": json.dumps({"command": "make test"})},
    ]
    answer = worker.write("answer", step=1, model="manual", content=calls, finishReason="tool-calls")
    assert answer.is_success, answer.text
    page = panel.team(team)
    cards = page.locator(".card")
    expect(cards).to_have_count(2)
    expect(cards.nth(1).locator(".toolstate")).to_have_text("no result yet")
    for index, (outcome, content) in enumerate((("ok", "edited"), ("error", "\x1b[31m2 failed\x1b[0m"))):
        assert worker.write("result", step=1, index=index, outcome=outcome, content=content, observed=[]).is_success
    expect(cards.nth(1).locator(".toolstate")).to_have_text("failed")
    for index in (0, 1):
        cards.nth(index).locator("summary").click()
    expect(cards.nth(0).locator(".removed")).to_have_text("-two")
    expect(cards.nth(0).locator(".added")).to_have_text("+2")
    expect(cards.nth(0).locator(".kept")).to_have_count(2)
    expect(cards.nth(1).locator(".terminal.command")).to_have_text("$ make test")
    expect(cards.nth(1).locator(".terminal").nth(1)).to_have_text("2 failed")


def test_the_timeline_tells_queued_working_and_waiting_by_member(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead("go")
    spawn(coordinator, team, "bob")
    page = panel.team(team)
    page.get_by_role("tab", name="Timeline").click()
    lane = page.get_by_role("list", name="Turns of lead")
    expect(lane.get_by_role("listitem")).to_have_count(1)
    worker = ManualWorker(coordinator, team)
    worker.boundary()
    expect(lane.get_by_role("listitem")).to_have_count(2)
    expect(lane.get_by_role("listitem").nth(1)).to_have_attribute("aria-label", re.compile("working on manual"))
    worker.call("wait_agent", '{"timeout_ms":600000}')
    assert worker.boundary() == "parked"
    expect(lane.get_by_role("listitem").nth(2)).to_have_attribute("aria-label", re.compile("waiting"))
    expect(page.get_by_role("list", name="Turns of bob").get_by_role("listitem")).to_have_count(1)


def test_the_failure_stands_beside_the_last_valid_state(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    task(coordinator, team, "kept")
    task(coordinator, team, "unreadable")
    page = panel.team(team)
    expect(page.locator(".task")).to_have_count(2)
    connection = sqlite3.connect(coordinator.workspace.parent / "data" / "team.db", timeout=15)
    with connection:
        connection.execute("UPDATE event SET data = '{' WHERE session_id = ? AND seq = 2", (team,))
        connection.execute("UPDATE task SET data = '{' WHERE session_id = ? AND number = 2", (team,))
    connection.close()
    failure = page.locator(".failure")
    expect(failure).to_be_visible()
    expect(failure).to_contain_text("event 2")
    expect(failure).to_have_attribute("role", "alert")
    expect(page.locator(".task")).to_have_count(1)
    expect(page.locator(".task")).to_contain_text("kept")
    again = panel.team(team)
    expect(again.locator(".conversation > .problem")).to_contain_text("event 2")


def test_a_list_of_teams_leads_to_each_and_names_what_runs(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead("Write the changelog, please.")
    page = panel.page()
    live(page)
    link = page.get_by_role("link", name=re.compile("Write the changelog, please."))
    expect(link).to_contain_text("working or waiting")
    link.click()
    expect(page.locator(".crumb")).to_have_text("Write the changelog, please.")
    expect(page.locator(".member .name")).to_have_text("lead")
    coordinator.client.post(f"/v1/teams/{team}/close")
    expect(page.locator(".topfacts")).to_contain_text("closed")
    page.get_by_role("link", name="Teams").click()
    expect(page.get_by_role("link", name=re.compile("Write the changelog"))).to_contain_text("closed")


def test_v05_long_histories_are_paged_and_only_what_is_in_view_is_held(
    coordinator: CoordinatorProcess, panel: Panel
) -> None:
    events = [("session/cwd", {"cwd": f"/step/{number}"}) for number in range(19_000)]
    tasks = [task_event(number, f"subject {number}") for number in range(1, 501)]
    text = "word " * 200_000
    said = {"messageId": "m", "content": [{"type": "text", "text": text}], "source": {"kind": "human"}}
    team = imported(coordinator, [*events, *tasks, ("user/message", said)])
    page = panel.team(team)
    expect(page.locator(".task")).to_have_count(500)
    expect(page.get_by_role("button", name="Show all 1.0M characters")).to_be_visible()
    page.get_by_role("button", name="Show all 1.0M characters").click()
    assert page.eval_on_selector(".message .plain", "element => element.textContent.length") == len(text)
    page.eval_on_selector(".scroller", "element => { element.scrollTop = 0; }")
    for _ in range(3):
        before = page.eval_on_selector(".canvas .row", "row => Number(row.getAttribute('aria-setsize'))")
        page.get_by_role("button", name="Earlier").click()
        page.wait_for_function(
            "before => Number(document.querySelector('.canvas .row').getAttribute('aria-setsize')) > before", arg=before
        )
    assert page.locator(".canvas .row").count() < 150
    page.eval_on_selector(".scroller", "element => { element.scrollTop = element.scrollHeight; }")
    coordinator.client.post(f"/v1/sessions/{team}/model", json={"model": "script:newest"})
    expect(page.locator(".row").filter(has_text="script:newest")).to_be_visible()
    assert page.locator(".canvas .row").count() < 150


def test_fifty_members_are_all_there_and_a_change_of_one_touches_only_its_row(
    coordinator: CoordinatorProcess, panel: Panel
) -> None:
    team = coordinator.lead()
    sessions = [spawn(coordinator, team, f"member-{number}") for number in range(50)]
    page = panel.team(team)
    expect(page.locator(".member")).to_have_count(51)
    expect(page.locator('.member[data-state="not started"]')).to_have_count(50)
    page.evaluate(
        """() => {
            window.touched = new Set();
            new MutationObserver((changes) => {
                const rows = changes.map((change) => change.target).filter((row) => row.classList.contains('member'));
                for (const row of rows) window.touched.add(row.querySelector('.name').textContent);
            }).observe(document.querySelector('.roster'), { childList: true, subtree: true });
        }"""
    )
    ManualWorker(coordinator, sessions[7])
    expect(page.locator(".member", has=page.locator('.name:text-is("member-7")'))).to_have_attribute(
        "data-state", "working"
    )
    assert page.evaluate("[...window.touched]") == ["member-7"]
