"""The panel while the demo runs: who owns what, what waits for what and why, at one glance. Makes the screenshots."""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from team.model.views import TeamView
from tests.support.panel import NARROW, Panel
from tests.support.stack import ROOT, Command, LiveStack, attached, command_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

IMAGES = ROOT / "docs" / "images"
FLAG = "TEAM_UPDATE_SCREENSHOTS"
"""Set, this module writes the images of the README anew."""

IS_IN_VIEW = """(elements) => elements.every((element) => {
    const box = element.getBoundingClientRect();
    const pane = element.closest('.pane')?.getBoundingClientRect();
    return pane && box.height > 0 && box.top >= pane.top && box.bottom <= Math.min(pane.bottom, innerHeight)
        && box.left >= 0 && box.right <= innerWidth;
})"""


def picture(page: Page, name: str) -> None:
    """One image of the documentation, when it is asked for."""
    if FLAG in os.environ:
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=IMAGES / f"{name}.png")


def team_of(stack: LiveStack) -> TeamView | None:
    roots = [session for session in stack.operator.sessions() if session.parent_id is None]
    return stack.operator.team(roots[0].id) if roots else None


def shows(page: Page, team: TeamView) -> bool:
    """Whether owner, blockers and reason of waiting of everything in this view are on the screen."""
    for member in team.members:
        row = page.locator(".member", has=page.locator(f'.name:text-is("{member.target}")'))
        if row.count() != 1:
            return False
        text = row.inner_text()
        turn = member.turn
        if turn is not None and turn.state == "parked" and "for the Team" not in text:
            return False
        if turn is not None and turn.state == "running" and f"on {turn.worker}" not in text:
            return False
    for task in team.tasks:
        text = page.locator(f'[data-task="{task.id}"]').inner_text()
        if f"owner {task.owner_name}" not in text if task.owner_name else "no owner" not in text:
            return False
        if task.open_blockers and f"waits for {', '.join(task.open_blockers)}" not in text:
            return False
    places = ".member .state, .member .detail, .task .state, .task .owner, .task .blockers, .task .subject"
    return bool(page.eval_on_selector_all(places, IS_IN_VIEW))


def test_the_demo_shows_owner_blocker_and_reason_without_scrolling(chromium: Browser, tmp_path: Path) -> None:
    data, checkout = tmp_path / "demo" / "data", tmp_path / "demo" / "checkout"
    arguments = [str(ROOT / "examples/demo/run.py"), "--workers", "2", "--directory", str(tmp_path / "demo")]
    command = Command(arguments, command_environment(data, checkout, {}), tmp_path, tmp_path / "demo.log")
    try:
        with attached(data) as stack:
            port = urlsplit(stack.url).port
            assert port is not None
            with Panel(chromium, port, token=(data / "operator.token").read_text().strip()) as panel:
                team = wait_until(lambda: team_of(stack), "the Team", 60, every=0.2)
                assert team is not None
                page = panel.team(team.team_id)

                def seen(what: str, wanted: Callable[[TeamView], bool]) -> None:
                    def at_once() -> bool:
                        before = stack.operator.team(team.team_id)
                        if not wanted(before) or not shows(page, before):
                            return False
                        # What changed while the page was read says nothing about the page.
                        return stack.operator.team(team.team_id).members == before.members

                    wait_until(at_once, what, 90, every=0.1)

                seen("an owner and a blocker", lambda view: any(task.open_blockers for task in view.tasks))
                seen(
                    "a waiting Lead beside a working member",
                    lambda view: {m.turn.state for m in view.members if m.turn} >= {"parked", "running"},
                )
                # Nobody scrolled: the newest of the conversation is in view.
                expect(page.get_by_role("button", name="↓ Latest")).to_be_hidden()
                picture(page, "panel")
                page.get_by_role("tab", name="Timeline").click()
                expect(page.locator(".span").first).to_be_visible()
                picture(page, "timeline")
                page.emulate_media(color_scheme="dark")
                page.get_by_role("tab", name="Dependencies").click()
                expect(page.locator("path.edge")).to_have_count(1)
                picture(page, "dependencies-dark")
                page.get_by_role("tab", name="Conversation").click()
                page.locator(".memberopen", has_text="researcher").click()
                expect(page.locator(".card").first).to_be_visible()
                page.evaluate("for (const card of document.querySelectorAll('.card')) card.open = true")
                picture(page, "conversation-dark")
                page.emulate_media(color_scheme="light")
                page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
                page.get_by_role("button", name="Members").click()
                expect(page.locator(".roster")).to_be_visible()
                picture(page, "members-narrow")
                panel.assert_clean()
        assert command.wait(200, "the demo") == 0, command.text()
    finally:
        command.stop()
