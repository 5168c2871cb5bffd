"""The panel in a browser, and Teams for it to show."""

import json
import uuid
from types import TracebackType
from typing import Any, Final, Self

import httpx2
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.support.coordinator import OPERATOR_TOKEN, CoordinatorProcess, ManualWorker

WIDE: Final = (1440, 900)
NARROW: Final = (390, 844)


class Panel:
    """A browser context of its own, signed in, that remembers everything that went wrong in its pages."""

    def __init__(
        self, browser: Browser, port: int, *, size: tuple[int, int] = WIDE, token: str = OPERATOR_TOKEN, **context: Any
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._token = token
        self.errors: list[str] = []
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **context)
        self.context.add_init_script("window.__x = undefined")

    def __enter__(self) -> Self:
        answer = self.context.request.post(
            f"{self.url}/browser-session", headers={"Authorization": f"Bearer {self._token}"}
        )
        assert answer.ok, answer.text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.close()

    def page(self, where: str = "") -> Page:
        """A new tab."""
        page = self.context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.errors.append(f"{error}"))
        page.on("console", self._heard)
        page.goto(f"{self.url}/{where}")
        return page

    def team(self, team: str, session: str | None = None) -> Page:
        """A tab that shows a Team, live."""
        page = self.page(f"#/team/{team}" + (f"/{session}" if session else ""))
        live(page)
        page.wait_for_selector(".member")
        return page

    def team_narrow(self, team: str) -> Page:
        """A tab of a narrow browser, where the roster is not shown at first."""
        page = self.page(f"#/team/{team}")
        live(page)
        page.wait_for_selector(".member", state="attached")
        return page

    def assert_clean(self) -> None:
        """No error was thrown and no policy was broken in any page."""
        assert self.errors == []

    def _heard(self, message: ConsoleMessage) -> None:
        # A coordinator that a test stops is heard of by failed requests; those are no faults of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)


def live(page: Page) -> None:
    """Wait until the page follows the coordinator."""
    page.wait_for_selector('.connection[data-state="live"]')


def member_state(page: Page, target: str) -> str | None:
    """The word that the roster has for a member."""
    return page.locator(".member", has=page.locator(f'.name:text-is("{target}")')).get_attribute("data-state")


def texts(page: Page) -> dict[str, list[str]]:
    """What roster and board say, without the ages, which grow, and how the conversation ends: last rows and size."""
    script = """(selector) => [...document.querySelectorAll(selector)].map((element) => {
        const copy = element.cloneNode(true);
        for (const time of copy.querySelectorAll('time.ago')) time.remove();
        return copy.textContent;
    })"""
    shown: dict[str, list[str]] = {selector: page.evaluate(script, selector) for selector in (".member", ".task")}
    rows: list[str] = page.evaluate(script, ".row")
    sizes: list[str] = page.eval_on_selector_all(".row", "rows => rows.map(row => row.getAttribute('aria-setsize'))")
    return {**shown, ".row": [*sizes[-1:], *rows[-8:]]}


def spawn(coordinator: CoordinatorProcess, team: str, name: str, description: str = "helps") -> str:
    """An active teammate with its first turn queued; its Session's id."""
    answer = coordinator.tool(team, "lead", "spawn_teammate", name=name, description=description, prompt="begin")
    assert answer.is_success, answer.text
    return coordinator.member(team, name)["sessionId"]


def task(coordinator: CoordinatorProcess, team: str, subject: str, **more: Any) -> dict[str, Any]:
    """A task of the board."""
    arguments = {"subject": subject, "description": "what is to be done", **more}
    answer = coordinator.tool(team, "lead", "team_task_create", **arguments)
    assert answer.is_success, answer.text
    return answer.json()["result"]


def update(
    coordinator: CoordinatorProcess, team: str, member: str, found: dict[str, Any], action: str, **more: Any
) -> None:
    """One change of a task at its present revision."""
    revision = coordinator.tool(team, member, "team_task_get", task_id=found["id"]).json()["result"]["revision"]
    arguments = {"task_id": found["id"], "expected_revision": revision, "action": action, **more}
    answer = coordinator.tool(team, member, "team_task_update", **arguments)
    assert answer.is_success, answer.text


def finish(coordinator: CoordinatorProcess, session: str, text: str = "done") -> None:
    """Play the queued turn of a Session to its end."""
    worker = ManualWorker(coordinator, session)
    assert worker.boundary() == "step"
    worker.say(text)
    worker.boundary()


def imported(coordinator: CoordinatorProcess, events: list[tuple[str, dict[str, Any]]]) -> str:
    """A Team with this log, taken in as an export; ``$TEAM`` in the data stands for its id."""
    team = str(uuid.uuid4())
    header = {
        "version": 1,
        "id": team,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "profile": "team",
        "cwd": str(coordinator.workspace),
        "depth": 0,
        "rootId": team,
        "seedThrough": 0,
    }
    lines = [json.dumps({"session": header})]
    lines += [
        json.dumps({"sessionId": team, "seq": seq, "time": "2026-01-01T00:00:00.000Z", "type": kind, "data": data})
        for seq, (kind, data) in enumerate(events, 1)
    ]
    content = "\n".join(lines).replace("$TEAM", team) + "\n"
    answer = coordinator.client.post("/v1/import", content=content.encode())
    assert answer.status_code == httpx2.codes.CREATED, answer.text
    return team


def member_event(name: str, phase: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A roster record of an imported log."""
    member = {"id": f"{name}-$TEAM", "name": name, "description": "d", "provider": "fresh", "context": "fresh"}
    return "team/member", {"version": 1, "teamId": "$TEAM", "member": {**member, "phase": phase, **more}}


def task_event(number: int, subject: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A new task of an imported log."""
    found = {"id": f"task-{number}", "revision": 1, "subject": subject, "description": "d", "status": "pending"}
    return "team/task", {"version": 1, "teamId": "$TEAM", "task": {**found, **more}}
