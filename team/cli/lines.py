"""One line of progress for each notable event."""

import json
import unicodedata
from collections.abc import Mapping
from typing import Any, Final, cast

from team.model.events import Event

_TEXT: Final = 110
_ARGUMENT: Final = 48


def plain(text: str, width: int = _TEXT) -> str:
    """Text on one line and harmless to a terminal: control characters are spelled out, the rest is cut at ``width``."""
    line = " ".join(text.split())
    shown = "".join(
        character if unicodedata.category(character) not in {"Cc", "Cf", "Cs"} else repr(character)[1:-1]
        for character in line
    )
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def harmless(text: str) -> str:
    """Text of several lines with its control characters spelled out."""
    return "\n".join(plain_line(line) for line in text.splitlines())


def plain_line(line: str) -> str:
    return "".join(
        character
        if character == "\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}
        else repr(character)[1:-1]
        for character in line
    )


def arguments_of(text: str) -> str:
    """The arguments of a call, short: ``path=src/a.py old_text=…``."""
    try:
        decoded: object = json.loads(text)
    except ValueError:
        return plain(text, _ARGUMENT)
    if not isinstance(decoded, dict):
        return plain(text, _ARGUMENT)
    parts = [
        f"{plain(key, 24)}={plain(value if isinstance(value, str) else json.dumps(value), _ARGUMENT)}"
        for key, value in cast("dict[str, Any]", decoded).items()
    ]
    return plain(" ".join(parts))


def text_of(content: object) -> str:
    """The text blocks of a message."""
    if not isinstance(content, list):
        return ""
    blocks = [cast("dict[str, Any]", block) for block in cast("list[object]", content) if isinstance(block, dict)]
    return "\n\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


def progress_line(event: Event, names: Mapping[str, str]) -> str | None:  # noqa: PLR0911  # one case per event
    """What to show of an event, or None.

    Args:
        event: An event of some member's log.
        names: Member names by Session id.
    """
    data = event.data
    match event.type:
        case "team/member":
            return _member(data.get("member", {}))
        case "team/task":
            return _task(data.get("task", {}), names)
        case "agent/inbox/inserted":
            return _message(data)
        case "assistant/message":
            text = text_of(data.get("content"))
            return f"says: {plain(text)}" if text.strip() else None
        case "tool/call":
            return f"{data.get('name')}  {arguments_of(str(data.get('arguments', '')))}".rstrip()
        case "tool/result":
            outcome = data.get("outcome")
            if outcome == "ok":
                return None
            label = "failed" if outcome == "error" else "outcome unknown"
            return f"↳ {label}: {plain(str(data.get('content', '')))}"
        case "tool-workflow/progress":
            return f"{data.get('kind')}: {plain(str(data.get('text', '')))}"
        case "tool-workflow/agent":
            return f"asks for the agent {plain(str(data.get('label', '')))}"
        case "tool-workflow/answered":
            error = data.get("error")
            return f"↳ agent {int(data.get('item', 0)) + 1} failed: {plain(str(error))}" if error else None
        case "turn/parked":
            return _parked(data.get("waits", []))
        case "turn/end":
            return _ended(data)
        case _:
            return None


def _member(member: Mapping[str, Any]) -> str:
    name = plain(str(member.get("name")))
    match member.get("phase"):
        case "provisioning":
            return f"creates {name}"
        case "failed":
            return f"could not create {name}: {plain(str(member.get('error', '')))}"
        case _:
            return f"{name} joined ({member.get('context')}): {plain(str(member.get('description', '')))}"


def _task(task: Mapping[str, Any], names: Mapping[str, str]) -> str:
    owner = task.get("ownerId")
    holder = f" by {names.get(str(owner), 'a member')}" if owner else ""
    after = f", after {', '.join(task['blockedBy'])}" if task.get("blockedBy") else ""
    state = str(task.get("status", "")).replace("_", " ")
    return f"{task.get('id')} r{task.get('revision')} {state}{holder}{after}: {plain(str(task.get('subject', '')), 70)}"


def _message(data: Mapping[str, Any]) -> str | None:
    source: Mapping[str, Any] = data.get("source", {})
    content: list[Any] = data.get("content") or []
    text = plain(text_of(content))
    match source.get("kind"):
        case "team-message":
            # The first block is the frame that a model sees; the sender's own blocks follow.
            body = plain(text_of(content[1:])) if len(content) > 1 else text
            return f"✉ from {source.get('senderName')}: {body}"
        case "human":
            return f"✉ from you: {text}"
        case "delegation":
            return f"✉ task from {source.get('senderName')}: {text}"
        case "settlement":
            return f"✉ notice about {source.get('memberName')}: {text}"
        case _:
            return None


def _parked(waits: list[Mapping[str, Any]]) -> str:
    kinds = ", ".join(
        f"{wait.get('kind')} until {str(wait['deadline'])[11:19]} UTC"
        if wait.get("deadline")
        else str(wait.get("kind"))
        for wait in waits
    )
    return f"waits: {kinds}"


def _ended(data: Mapping[str, Any]) -> str:
    code = f"/{data['code']}" if data.get("code") else ""
    message = f": {plain(str(data['message']))}" if data.get("message") else ""
    return f"turn ended: {data.get('reason')}{code}{message}"
