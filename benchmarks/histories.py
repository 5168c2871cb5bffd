"""Logs of a chosen length, made by the product itself: a real turn, exported, repeated and imported again."""

import json
from typing import Any

from benchmarks.deployment import Site

Line = dict[str, Any]


def template(site: Site) -> list[Line]:
    """The lines of an exported Lead that took one turn and has one task; the site plays ``answering``."""
    session = site.coordinator.lead("begin")
    site.until_idle()
    site.tool(session, "lead", "team_task_create", subject="measured", description="d" * 80)
    response = site.coordinator.client.get(f"/v1/sessions/{session}/log")
    return [json.loads(line) for line in response.text.splitlines()]


def grown(lines: list[Line], session: str, *, events: int, turns: int) -> list[Line]:
    """A log of ``events`` events of which ``turns`` turns, with two visible messages each; the rest edits a task.

    Whole turns are never cut: the log is as long as ``turns`` of them need when ``events`` is smaller.
    """
    header, *logged = lines
    old = header["session"]["id"]
    first = next(number for number, line in enumerate(logged) if line["type"] == "agent/inbox/inserted")
    last = next(number for number, line in enumerate(logged) if line["type"] == "turn/end")
    before, turn, after = logged[:first], logged[first : last + 1], logged[last + 1 :]
    assert [line["type"] for line in after] == ["team/task"]
    names = {line["data"][key] for line in turn for key in ("turnId", "messageId") if key in line["data"]}
    made = _renamed([*before, *turn, *after], names, session)
    # The request header and the runtime context belong to the first turn alone.
    once = {"request/header"}
    later = [line for line in turn if line["type"] not in once and not _is_context(line)]
    edits = max(0, events - len(made) - (turns - 1) * len(later))
    revision = after[0]["data"]["task"]["revision"]
    each = max(1, turns - 1)
    for number in range(1, turns):
        made.extend(_renamed(later, names, f"{session}-{number}"))
        for _ in range(edits * number // each - edits * (number - 1) // each):
            revision += 1
            made.append(_edit(after[0], revision))
    numbered = [
        json.loads(json.dumps({**line, "seq": seq}).replace(old, session)) for seq, line in enumerate(made, start=1)
    ]
    start = json.loads(json.dumps(header).replace(old, session))
    start["events"] = len(numbered)
    return [start, *numbered]


def _renamed(lines: list[Line], names: set[str], suffix: str) -> list[Line]:
    """The same lines about turns and messages of their own: a store has each id once."""
    text = json.dumps(lines)
    for name in names:
        text = text.replace(name, f"{name}-{suffix}")
    return json.loads(text)


def _is_context(line: Line) -> bool:
    return line["data"].get("source", {}).get("kind") == "runtime-context"


def _edit(line: Line, revision: int) -> Line:
    task = {**line["data"]["task"], "revision": revision, "description": f"{revision:0>80}"}
    return {**line, "data": {**line["data"], "task": task}}


def imported(site: Site, lines: list[Line]) -> str:
    """Import a log; the Session."""
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    response = site.coordinator.client.post("/v1/import", content=body.encode(), timeout=280)
    assert response.is_success, response.text[:2000]
    return lines[0]["session"]["id"]
