"""What an operator does in the panel: once each, confirmed, with keyboard and screen reader."""

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.panel import NARROW, Panel, finish, spawn, task

pytestmark = pytest.mark.timeout(300)


def menu_of(page: Page, target: str, entry: str) -> None:
    page.get_by_role("button", name=f"Actions for {target}").click()
    page.get_by_role("menuitem", name=entry).click()


def inserted(coordinator: CoordinatorProcess, session: str) -> list[str]:
    """The texts ever accepted into an inbox."""
    events = coordinator.client.get(f"/v1/sessions/{session}/events").json()["events"]
    found = [event["data"] for event in events if event["type"] == "agent/inbox/inserted"]
    return [data["content"][0]["text"] for data in found]


def test_a_prompt_is_a_turn_of_its_own_and_a_second_press_sends_nothing(
    coordinator: CoordinatorProcess, panel: Panel
) -> None:
    team = coordinator.lead()
    bob = spawn(coordinator, team, "bob")
    page = panel.team(team)
    page.locator(".memberopen", has_text="bob").click()
    expect(page.locator("#conversation-title")).to_have_text("bob")
    box = page.get_by_label("Message")
    box.fill("Look at the parser.")
    page.get_by_role("button", name="Send").evaluate("button => { button.click(); button.click(); button.click(); }")
    expect(box).to_have_value("")
    expect(page.locator(".queue li")).to_have_count(2)
    assert inserted(coordinator, bob)[1:] == ["Look at the parser."]
    assert inserted(coordinator, team) == []
    events = coordinator.client.get(f"/v1/sessions/{bob}/events").json()["events"]
    assert [event["data"]["delivery"] for event in events if event["type"] == "agent/inbox/inserted"][-1] == "turn"


def test_a_lost_answer_may_be_tried_again_and_sends_once(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    page = panel.team(team)
    lost: list[str] = []

    def lose(route: Route) -> None:
        route.fetch()
        lost.append(route.request.headers["idempotency-key"])
        route.abort()

    page.route("**/messages", lose)
    box = page.get_by_label("Message")
    box.fill("Only once.")
    box.press("Control+Enter")
    expect(page.locator(".composer .problem")).to_contain_text("Nothing is lost by trying again")
    expect(box).to_have_value("Only once.")
    page.unroute("**/messages")
    page.get_by_role("button", name="Send").click()
    expect(box).to_have_value("")
    assert inserted(coordinator, team) == ["Only once."]
    assert len(lost) == 1


def test_an_interrupt_is_confirmed_and_can_be_left(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead("begin")
    ManualWorker(coordinator, team).boundary()
    page = panel.team(team)
    menu_of(page, "lead", "Interrupt…")
    dialog = page.get_by_role("dialog", name="Interrupt lead?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert coordinator.member(team, "lead")["turn"]["state"] == "running"
    menu_of(page, "lead", "Interrupt…")
    page.get_by_role("button", name="Interrupt", exact=True).dblclick(no_wait_after=True)
    expect(page.locator('.member[data-state="interrupted"]')).to_have_count(1)
    expect(page.locator("#announcer")).to_have_text("lead was interrupted")
    assert coordinator.member(team, "lead")["lastEnd"]["reason"] == "aborted"


def test_a_model_is_chosen_for_one_member(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead()
    spawn(coordinator, team, "bob")
    page = panel.team(team)
    menu_of(page, "bob", "Change model…")
    page.get_by_label("Model", exact=True).fill("script:other")
    page.get_by_role("button", name="Change model").click()
    expect(page.locator(".member", has_text="bob").locator(".model")).to_have_text("script:other")
    assert coordinator.member(team, "bob")["model"] == "script:other"
    assert coordinator.member(team, "lead").get("model") != "script:other"
    menu_of(page, "bob", "Change model…")
    page.get_by_label("Model", exact=True).fill(" ")
    page.get_by_role("button", name="Change model").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Name a model")


def test_a_team_is_closed_after_a_confirmation_and_a_prompt_opens_it(
    coordinator: CoordinatorProcess, panel: Panel
) -> None:
    team = coordinator.lead("begin")
    page = panel.team(team)
    menu_of(page, "lead", "Close the Team…")
    page.get_by_role("button", name="Close the Team", exact=True).click()
    expect(page.locator(".topfacts")).to_contain_text("closed")
    page.get_by_label("Message").fill("again")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".topfacts")).not_to_contain_text("closed")


def test_a_viewer_looks_and_is_offered_nothing_to_change(chromium: Browser, coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead("begin")
    with Panel(chromium, coordinator.port, token="viewer-token") as panel:
        page = panel.team(team)
        expect(page.locator(".composer")).to_have_text("You may look and change nothing.")
        expect(page.get_by_role("button", name=re.compile("Actions for"))).to_have_count(0)
        panel.assert_clean()


def test_everything_is_reached_by_keyboard_and_has_a_name(coordinator: CoordinatorProcess, panel: Panel) -> None:
    team = coordinator.lead("begin")
    spawn(coordinator, team, "bob")
    task(coordinator, team, "one")
    page = panel.team(team)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, [role=tab], [role=img], dialog')]
            .filter((element) => element.checkVisibility())
            .filter((element) => !(element.getAttribute('aria-label') || element.textContent.trim()
                || element.labels?.length || element.getAttribute('aria-labelledby')))
            .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    for role, name in (("region", "Members"), ("region", "Board"), ("tablist", "Views"), ("log", "Conversation")):
        expect(page.get_by_role(role, name=name)).to_be_visible()  # pyright: ignore[reportArgumentType]  # roles are literals
    page.get_by_role("link", name="Skip to the content").focus()
    reached = set[str]()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(
            str(
                page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
            )
        )
    assert {"Sign out", "Message", "Send", "Actions for bob"} <= reached
    page.get_by_role("tab", name="Conversation").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Timeline")).to_be_focused()
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    button = page.get_by_role("button", name="Actions for bob")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Open the conversation")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Interrupt…")).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    # A change of the member keeps the focus where it is.
    finish(coordinator, coordinator.member(team, "bob")["sessionId"])
    expect(page.locator('.member[data-state="idle"]')).to_have_count(1)
    expect(button).to_be_focused()


def test_a_narrow_screen_shows_one_pane_at_a_time_and_never_scrolls_sideways(
    chromium: Browser, coordinator: CoordinatorProcess
) -> None:
    team = coordinator.lead("begin")
    spawn(coordinator, team, "bob")
    task(coordinator, team, "one")
    with Panel(chromium, coordinator.port, size=NARROW, color_scheme="dark") as panel:
        page = panel.team_narrow(team)
        for name, visible in (
            ("Members", ".roster"),
            ("Board", ".board"),
            ("Timeline", ".timeline"),
            ("Graph", ".graph"),
            ("Talk", ".scroller"),
        ):
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.locator(visible)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
        channels = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
        )
        assert max(channels) < 60, channels
        panel.assert_clean()
