"""The panel over time: cut connections, restarts, two coordinators, many tabs."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.gate import Gate
from tests.support.panel import Panel, live, spawn, task, texts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def gate(coordinator: CoordinatorProcess) -> Iterator[Gate]:
    with Gate(coordinator.port) as opened:
        yield opened


@pytest.fixture
def gated(chromium: Browser, gate: Gate) -> Iterator[Panel]:
    """A browser that reaches the coordinator through the gate."""
    with Panel(chromium, gate.port) as opened:
        yield opened
        opened.assert_clean()


def assert_like_a_fresh_load(panel: Panel, page: Page, team: str) -> None:
    """Roster, board and conversation of an old tab equal those of a new one."""
    fresh = panel.team(team)
    wait_until(
        lambda: texts(page) == texts(fresh) and texts(fresh)[".row"], "both tabs to show the same", 30, every=0.2
    )
    fresh.close()


def test_v01_after_a_cut_with_many_events_the_page_equals_a_fresh_load(
    coordinator: CoordinatorProcess, gate: Gate, gated: Panel
) -> None:
    team = coordinator.lead()
    task(coordinator, team, "before")
    page = gated.team(team)
    expect(page.locator(".task")).to_have_count(1)
    gate.shut()
    page.wait_for_selector('.connection[data-state="connecting"]')
    for number in range(200):
        task(coordinator, team, f"unseen {number}")
    spawn(coordinator, team, "bob")
    gate.open()
    live(page)
    expect(page.locator(".task")).to_have_count(201)
    expect(page.locator(".row").filter(has_text="unseen 199")).to_have_count(1)
    assert_like_a_fresh_load(gated, page, team)


def test_v01_eight_tabs_share_one_stream_and_each_is_live(
    coordinator: CoordinatorProcess, gate: Gate, gated: Panel
) -> None:
    team, other = coordinator.lead("one"), coordinator.lead("two")
    tabs = [gated.team(team if number % 2 else other) for number in range(8)]
    task(coordinator, team, "seen everywhere")
    task(coordinator, other, "seen elsewhere")
    for number, page in enumerate(tabs):
        expect(page.locator(".task")).to_contain_text("seen everywhere" if number % 2 else "seen elsewhere")
    wait_until(lambda: gate.streams == 1, "one stream for all tabs", 20)
    for page in tabs[:7]:
        page.close()
    task(coordinator, team, "the last tab")
    expect(tabs[7].locator(".task")).to_have_count(2)
    assert_like_a_fresh_load(gated, tabs[7], team)


def test_v01_two_tabs_of_one_conversation_get_each_event_once_wherever_they_began(
    coordinator: CoordinatorProcess, gated: Panel
) -> None:
    team = coordinator.lead()
    first = gated.team(team)
    for number in range(30):
        task(coordinator, team, f"early {number}")
    second = gated.team(team)
    for number in range(30):
        task(coordinator, team, f"later {number}")
    for page in (first, second):
        expect(page.locator(".row").filter(has_text="later 29")).to_have_count(1)
    wait_until(lambda: texts(first) == texts(second), "both tabs to show the same", 30, every=0.2)
    sizes = [page.locator(".row").last.get_attribute("aria-setsize") for page in (first, second)]
    assert sizes == ["60", "60"]


def test_v01_v03_the_page_outlives_a_restart_and_goes_on_with_another_coordinator(
    chromium: Browser, start: Callable[..., CoordinatorProcess], postgres_url: str
) -> None:
    first, second = (start(name, TEAM_DATABASE_URL=postgres_url) for name in ("first", "second"))
    team = first.lead("go")
    bob = spawn(first, team, "bob")
    with Gate(first.port) as gate, Panel(chromium, gate.port) as panel:
        page = panel.team(team)
        task(second, team, "through the other")
        expect(page.locator(".task")).to_have_count(1)
        worker = ManualWorker(first, bob)
        expect(page.locator('.member[data-state="working"]')).to_have_count(1)
        assert first.stop() == 0, first.log
        page.wait_for_selector('.connection[data-state="connecting"]')
        # Without a connection nothing moves: the state is one of the past.
        assert page.locator("body.stale").count() == 1
        assert (
            page.eval_on_selector('.member[data-state="working"] .mark', "mark => getComputedStyle(mark).animationName")
            == "none"
        )
        expect(page.locator(".connection")).to_contain_text("reconnecting, as of")
        task(second, team, "while away")
        assert second.client.post(f"/v1/sessions/{bob}/interrupt").is_success
        gate.open(second.port)
        live(page)
        expect(page.locator(".task")).to_have_count(2)
        expect(page.locator('.member[data-state="interrupted"]')).to_have_count(1)
        assert_like_a_fresh_load(panel, page, team)
        again = start("again", TEAM_DATABASE_URL=postgres_url)
        gate.shut()
        gate.open(again.port)
        live(page)
        task(second, team, "after the restart")
        expect(page.locator(".task")).to_have_count(3)
        assert_like_a_fresh_load(panel, page, team)
        assert worker.claim["sessionId"] == bob
        panel.assert_clean()


def test_a_session_that_ended_asks_to_sign_in_again(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    page = panel.team(team)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("no token of this coordinator")
