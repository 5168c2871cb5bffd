"""Text of agents stays text: nothing of it runs, links nowhere else, or breaks the page."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.coordinator import CoordinatorProcess, ManualWorker
from tests.support.panel import NARROW, Panel, imported, member_event, task_event

PAYLOADS = [
    "<img src=x onerror=window.__x=1>",
    "[a](javascript:window.__x=1)",
    "[a](data:text/html,<script>parent.__x=1</script>)",
    "[a](JaVaScRiPt:window.__x=1) [b](//evil.example/x) [c](vbscript:x)",
    "<svg onload=window.__x=1>",
    "\\`<img src=x onerror=window.__x=1>\\`",
    "</script><script>window.__x=1</script>",
    "<style>*{display:none}</style><div style='width:expression(window.__x=1)'>",
    "\u202egnp.exe\u202c",
    "\x1b[31mred\x1b[0m \x1b]8;;javascript:window.__x=1\x07link\x1b]8;;\x07",
    "    <img src=x onerror=window.__x=1>\n```\n</code><img src=x onerror=window.__x=1>\n```",
    "{{constructor.constructor('window.__x=1')()}} ${window.__x=1}",
    "__proto__",
    "hasOwnProperty",
]
LONG_LINE = "x" * 100_000

pytestmark = pytest.mark.timeout(300)


def assert_harmless(page: Page, width: int) -> None:
    """Nothing ran, nothing was polluted, links are plain ones, and the page is no wider than its window."""
    assert page.evaluate("window.__x") is None
    assert page.evaluate("({}).isAdmin") is None
    assert page.evaluate("({}).x") is None
    assert page.locator("main img, main script, main style, main iframe, main object").count() == 0
    for link in page.locator("main a").all():
        address, relation = link.get_attribute("href") or "", link.get_attribute("rel") or ""
        assert address.startswith(("http://", "https://", "mailto:", "#/")), address
        assert address.startswith("#/") or {"noopener", "noreferrer"} <= set(relation.split())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def hostile_answer(worker: ManualWorker, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    content += [
        {"type": "tool-call", "callId": f"c{index}", "name": name, "arguments": json.dumps(arguments)}
        for index, (name, arguments) in enumerate(calls)
    ]
    answer = worker.write("answer", step=worker.step, model="<b>model</b>", content=content, finishReason="tool-calls")
    assert answer.is_success, answer.text


@pytest.mark.parametrize("size", [(1440, 900), NARROW], ids=["wide", "narrow"])
def test_v02_nothing_that_an_agent_writes_runs_anywhere(
    coordinator: CoordinatorProcess, panel: Panel, size: tuple[int, int]
) -> None:
    text = "\n\n".join(PAYLOADS)
    tasks = [
        task_event(n, payload[:200], description=text, writeScopes=[f"a/{n}"]) for n, payload in enumerate(PAYLOADS, 1)
    ]
    roster = [
        member_event("mallory", "provisioning", description=PAYLOADS[0]),
        member_event("mallory", "failed", description=PAYLOADS[0], error=text),
    ]
    team = imported(coordinator, [*roster, *tasks, *[("session/cwd", {"cwd": payload}) for payload in PAYLOADS]])
    coordinator.client.post(f"/v1/sessions/{team}/messages", json={"text": text + LONG_LINE[:50_000]})
    worker = ManualWorker(coordinator, team)
    worker.boundary()
    calls: list[tuple[str, dict[str, Any]]] = [("bash", {"command": payload}) for payload in PAYLOADS]
    calls += [
        ("edit", {"path": payload, "old_text": payload, "new_text": payload + "\n" + text}) for payload in PAYLOADS[:3]
    ]
    calls.append(("write", {"path": "__proto__", "content": LONG_LINE}))
    calls.append((PAYLOADS[0], {"__proto__": {"isAdmin": True}, "constructor": {"prototype": {"x": 1}}}))
    hostile_answer(worker, calls, text)
    for index in range(len(calls)):
        shown = text.replace("\x1b", "\x1b") + LONG_LINE
        worker.write("result", step=worker.step, index=index, outcome="ok", content=shown, observed=[])
    page = panel.team(team)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    if size == NARROW:
        page.get_by_role("button", name="Talk").click()
    expect(page.locator(".card").first).to_be_visible()
    seen = 0
    page.eval_on_selector(".scroller", "element => { element.scrollTop = 0; }")
    for _ in range(60):
        page.evaluate("for (const card of document.querySelectorAll('.card')) card.open = true")
        seen = max(seen, page.locator(".card[open]").count())
        assert_harmless(page, size[0])
        is_end = page.eval_on_selector(
            ".scroller",
            """e => {
                const last = e.scrollTop + e.clientHeight >= e.scrollHeight - 4;
                e.scrollTop += e.clientHeight;
                return last;
            }""",
        )
        page.wait_for_function(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        )
        if is_end:
            break
    assert seen > 0
    for pane in ("Members", "Board", "Timeline", "Graph") if size == NARROW else ():
        page.get_by_role("button", name=pane, exact=True).click()
        assert_harmless(page, size[0])
    for name in ("Timeline", "Dependencies") if size != NARROW else ():
        page.get_by_role("tab", name=name).click()
        assert_harmless(page, size[0])
    shown = page.locator(".task .subject").all_text_contents() if size != NARROW else []
    assert not shown or PAYLOADS[0] in shown
    home = panel.page()
    expect(home.locator(".teamrow").first).to_be_visible()
    assert_harmless(home, 1440)
    # The policy was asked for nothing that it had to refuse: panel.assert_clean follows.


def test_v02_the_policy_lets_nothing_in(coordinator: CoordinatorProcess, panel: Panel) -> None:
    answer = panel.context.request.get(panel.url + "/")
    policy = answer.headers["content-security-policy"]
    for directive in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert directive in policy
    assert "unsafe" not in policy
    page = panel.page()
    page.wait_for_selector(".teamlist")
    panel.errors.clear()
    page.evaluate(
        """() => {
            const script = document.createElement('script');
            try { script.text = 'window.__x = 1'; document.head.append(script); } catch { }
            try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.__x = 1">'); } catch { }
        }"""
    )
    page.wait_for_function("() => new Promise(done => requestAnimationFrame(() => done(true)))")
    assert page.evaluate("window.__x") is None
    panel.errors.clear()


def test_u03_names_of_object_properties_are_names_like_any_other(coordinator: CoordinatorProcess, panel: Panel) -> None:
    names = ["constructor", "hasownproperty", "tostring", "valueof"]
    subjects = ["__proto__", "hasOwnProperty", "constructor", "toString"]
    roster = [
        event
        for name in names
        for event in (member_event(name, "provisioning"), member_event(name, "failed", error="__proto__"))
    ]
    tasks = [task_event(number, subject) for number, subject in enumerate(subjects, 1)]
    message = {
        "messageId": "__proto__",
        "content": [{"type": "text", "text": "__proto__"}],
        "source": {"kind": "human"},
    }
    opaque = {
        "messageId": "m2",
        "content": [{"type": "acme/x", "__proto__": {"isAdmin": True}}],
        "source": {"kind": "human"},
    }
    team = imported(coordinator, [*roster, *tasks, ("user/message", message), ("user/message", opaque)])
    page = panel.team(team)
    expect(page.locator(".member .name")).to_have_text(["lead", *names])
    expect(page.locator(".task .subject")).to_have_text(subjects)
    expect(page.locator(".from-human").first).to_contain_text("__proto__")
    expect(page.locator(".from-human").last).to_contain_text('"isAdmin": true')
    assert_harmless(page, 1440)
