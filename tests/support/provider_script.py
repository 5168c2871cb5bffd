"""A scenario of the script model, played over HTTP: the state is found by replaying the request's own messages."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from config.scenario import Scenario
from team.model.events import Outcome
from tests.support.provider_replies import FakeCall, Reply
from workers.models.machine import CallResult, Memory, Plan, Received, plan

_IDENTITY: Final = re.compile(r"\[Runtime context\..*?You are the (?:teammate ([a-z0-9-]+):|(Lead) of)", re.DOTALL)
_FRAME: Final = re.compile(r"\[Team message \S+ from ([a-z0-9-]+):")
_SETTLED: Final = re.compile(r"\[Notice: the turn of ([a-z0-9-]+) ended")


@dataclass
class _Message:
    """One message of a request, the same for every wire."""

    role: Literal["user", "assistant", "result"]
    texts: list[str] = field(default_factory=list[str])
    call_id: str = ""
    call_ids: list[str] = field(default_factory=list[str])
    failed: bool = False


class ScriptPlayer:
    """Answers requests as the members of a scenario would."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def reply(self, wire: Literal["chat", "anthropic"], body: dict[str, Any]) -> Reply:
        """The next answer for the member whose history a request carries; ScenarioFault when there is none."""
        messages = _chat(body) if wire == "chat" else _anthropic(body)
        member, start = _identity(messages)
        role = self.scenario.role(member)
        assert role is not None, f"the scenario has no member {member!r}"
        memory: Memory | None = None
        received: list[Received] = []
        results: dict[str, tuple[Outcome, str]] = {}
        ids: list[str] = []

        def step() -> Plan:
            given = [CallResult(index, *results[call]) for index, call in enumerate(ids) if call in results]
            return plan(role, member, memory, given, received)

        for message in messages[start:]:
            if message.role == "user":
                received.append(_received(message.texts))
            elif message.role == "result":
                results[message.call_id] = (_outcome(message), "".join(message.texts))
            else:
                memory = step().memory
                received, results, ids = [], {}, message.call_ids
        planned = step()
        calls = [
            FakeCall(name=call.name, arguments=call.arguments, id=_call_id(member, len(messages), index))
            for index, call in enumerate(planned.calls)
        ]
        say = planned.say
        return Reply(text=[say[at : at + 12] for at in range(0, len(say), 12)], calls=calls)


def _identity(messages: list[_Message]) -> tuple[str, int]:
    """Who the request is for, and where its own part of the history begins."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role != "user":
            continue
        match = _IDENTITY.search("".join(messages[place].texts))
        if match is not None:
            return match[1] or "lead", place + 1
    return "lead", 0


def _received(texts: list[str]) -> Received:
    for kind, pattern in (("team-message", _FRAME), ("settlement", _SETTLED)):
        match = pattern.match(texts[0])
        if match is not None:
            return Received(kind=kind, sender=match[1], text="\n\n".join(texts[1:] or texts))
    return Received(kind="human", sender="human", text="\n\n".join(texts))


def _outcome(message: _Message) -> Outcome:
    text = "".join(message.texts)
    if message.failed or text.startswith('{"error"'):
        return "unknown" if "unknown" in text.lower() and "outcome" in text.lower() else "error"
    return "ok"


def _call_id(member: str, position: int, index: int) -> str:
    return "call_" + hashlib.sha256(f"{member}/{position}/{index}".encode()).hexdigest()[:24]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = cast("list[dict[str, Any]]", content or [])
    return [str(block["text"]) for block in blocks if block.get("type") == "text"]


def _chat(body: dict[str, Any]) -> list[_Message]:
    messages: list[_Message] = []
    for message in cast("list[dict[str, Any]]", body["messages"]):
        match message["role"]:
            case "user":
                messages.append(_Message("user", _texts(message["content"])))
            case "assistant":
                calls = cast("list[dict[str, Any]]", message.get("tool_calls") or [])
                ids = [str(call["id"]) for call in calls]
                messages.append(_Message("assistant", _texts(message.get("content")), call_ids=ids))
            case "tool":
                texts = _texts(message["content"])
                messages.append(_Message("result", texts, call_id=str(message["tool_call_id"])))
            case _:
                continue
    return messages


def _anthropic(body: dict[str, Any]) -> list[_Message]:
    messages: list[_Message] = []
    for message in cast("list[dict[str, Any]]", body["messages"]):
        content = message["content"]
        blocks = cast("list[dict[str, Any]]", content if isinstance(content, list) else [])
        if message["role"] == "assistant":
            ids = [str(block["id"]) for block in blocks if block["type"] == "tool_use"]
            messages.append(_Message("assistant", _texts(content), call_ids=ids))
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                failed = bool(block.get("is_error"))
                texts, call_id = _texts(block.get("content")), str(block["tool_use_id"])
                messages.append(_Message("result", texts, call_id=call_id, failed=failed))
        texts = _texts(content)
        if texts:
            messages.append(_Message("user", texts))
    return messages
