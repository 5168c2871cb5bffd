"""What a model is shown, pinned: the assembled requests of a profile, and the transcript of a whole keyless Team.

A changed snapshot is a changed promise to models: read the difference, then run with TEAM_UPDATE_SNAPSHOTS=1.
"""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from config.profiles import load_profile
from config.settings import Settings
from team.model.claims import AnswerRequest, BoundaryRequest, Claim
from team.model.events import VISIBLE, Event
from team.model.ids import SessionId, TeamId
from team.service.callers import CallRef, ClaimRef
from team.tools.catalog import request_header
from tests.support.core import Core, create_tables
from workers.models import Conversation, Models

HERE = Path(__file__).parent


def assert_snapshot(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("TEAM_UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{name} differs; see the module's docstring"


@pytest.mark.parametrize("profile", ["base", "team"])
def test_the_policy_and_tool_schemas_of_a_profile_are_pinned(profile: str) -> None:
    header = request_header(load_profile(profile), "script:any")
    tools = "\n".join(json.dumps(tool, indent=1, ensure_ascii=False) for tool in header.tools)
    assert_snapshot(f"request-{profile}.txt", f"{header.system}\n\n{'=' * 20}\n\n{tools}\n")


def test_the_transcript_of_a_keyless_team_is_pinned(sqlite_url: str, tmp_path: Path) -> None:
    script = f"script:{HERE / 'scenario.yaml'}"
    create_tables(sqlite_url)
    core = Core(sqlite_url, tmp_path / "checkout", model=script)
    try:
        lead = core.lead("Do what is needed.")
        asyncio.run(play(core, lead))
        names = {lead: "lead", core.sessions.member_session(lead, "reader"): "reader"}
        lines: list[str] = []
        for session_id, name in names.items():
            lines.append(f"===== {name}")
            lines += [transcript_line(event) for event in core.log(session_id) if event.type in VISIBLE]
        assert_snapshot("transcript.txt", normalised("\n".join(lines), names, tmp_path) + "\n")
    finally:
        core.close()


async def play(core: Core, lead: SessionId) -> None:
    """Run turns one at a time, the longest queued first, until the Team rests."""
    models = Models(Settings(model=None), {})
    for _ in range(100):
        core.recovery.wake(TeamId(lead))
        claim = core.turns.claim(core.claim_request())
        if claim is None:
            return
        await run_turn(core, models, claim)
    raise AssertionError("the Team did not come to rest")


async def run_turn(core: Core, models: Models, claim: Claim) -> None:
    ref, number, conversation = ClaimRef(claim.turn_id, claim.epoch, claim.token), 0, Conversation()
    conversation.extend(claim.history)
    while True:
        number += 1
        after = BoundaryRequest(epoch=claim.epoch, number=number, history_after=conversation.seq)
        boundary = core.turns.boundary(ref, after)
        if boundary.action != "step":
            return
        conversation.extend(boundary.history)
        answer = await models.get(claim.model).answer(conversation, member=claim.member, on_text=lambda _text: None)
        number += 1
        answered = core.turns.answer(
            ref,
            AnswerRequest(
                epoch=claim.epoch,
                number=number,
                step=boundary.step,
                model=answer.model,
                content=answer.content,
                usage=answer.usage,
                finish_reason=answer.finish_reason,
                provider_detail=answer.provider_detail,
            ),
        )
        for call in answered.calls:
            core.tools.run_call(CallRef(ref, boundary.step, call.index))


def transcript_line(event: Event) -> str:
    data: dict[str, Any] = dict(event.data)
    if event.type == "request/header":
        return f"{event.type} of {len(data['tools'])} tools"
    if event.type == "tool/result":
        return f"{event.type} {data['outcome']} {data['content']}"
    if event.type == "assistant/message":
        shown = [block.get("text") or f"{block['name']} {block['arguments']}" for block in data["content"]]
    else:
        shown = [f"({data['source']['kind']})", *(block["text"] for block in data["content"])]
    return "\n  ".join([event.type, *shown])


def normalised(text: str, names: dict[SessionId, str], directory: Path) -> str:
    for session_id, name in names.items():
        text = text.replace(session_id, f"<session of {name}>")
    text = text.replace(str(directory), "<directory>")
    found: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return found.setdefault(match[0], f"{match[1]}-{len(found) + 1}")

    return re.sub(r"\b(msg|turn)-[0-9a-f]{24}\b", number, text)
