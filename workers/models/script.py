"""The keyless model: it plays a member's part of a scenario file (docs/script-model.md)."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from config.scenario import Scenario, load_scenario
from team.model.content import ContentBlock, TextBlock, ToolCallBlock, text_of
from team.model.events import FinishReason, Usage
from team.model.history import ToolResultEntry, UserEntry
from team.model.snapshots import DelegationSource, RuntimeContextSource, SettlementSource, TeamMessageSource
from workers.models.answer import Answer
from workers.models.conversation import Conversation
from workers.models.failure import ModelFailure
from workers.models.lookup import Missing, expand, written
from workers.models.machine import CallResult, Memory, Plan, Received, ScenarioFault, memory_of, plan

_CHUNK_CHARACTERS: Final = 12


class ScriptModel:
    """``Model`` over a scenario file.

    An answer depends on the file, the member and the conversation alone, so any worker can go on with a turn. The
    file is read once; a change of it is seen by workers that start later.
    """

    def __init__(self, file: str) -> None:
        """Raises ConfigurationInvalid when the file is not a scenario."""
        self.file = file
        self._scenario: Scenario = load_scenario(Path(file))

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        """See ``Model.answer``. Raises ModelFailure ``script`` when the scenario has no way on."""
        role = self._scenario.role(member)
        if role is None:
            known = ", ".join(self._scenario.members)
            raise self._failure(
                member, f"the file has no such member and no top-level 'default'; its members are {known}"
            )
        memory = _memory(conversation)
        try:
            planned = plan(role, member, memory, results_of(conversation), received_of(conversation))
        except ScenarioFault as fault:
            raise self._failure(member, str(fault)) from fault
        await _think(planned, on_text)
        return Answer(
            model=f"script:{self.file}",
            content=_content(planned, conversation, member),
            usage=Usage(),
            finish_reason=_finish_reason(planned),
            provider_detail=planned.memory.to_json(),
        )

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        """See ``Model.summarise``: the role's ``summary``, or what the machine remembers."""
        role = self._scenario.role(member)
        memory = _memory(conversation)
        variables = memory.variables if memory is not None else {}
        try:
            text = written(expand(role.summary, {**variables, "member": member})) if role and role.summary else ""
        except Missing as missing:
            raise self._failure(member, f"its summary: {missing}") from missing
        state = f" It is in the state {memory.state!r}." if memory is not None else ""
        return Answer(
            model=f"script:{self.file}",
            content=(TextBlock(text=text or f"The script of {member} goes on.{state}"),),
            usage=Usage(),
            finish_reason="stop",
            provider_detail=None,
        )

    def _failure(self, member: str, reason: str) -> ModelFailure:
        return ModelFailure("script", f"script {self.file}, member {member!r}: {reason}")


def _memory(conversation: Conversation) -> Memory | None:
    newest = conversation.newest_answer
    return memory_of(newest.provider_detail) if newest is not None else None


def results_of(conversation: Conversation) -> list[CallResult]:
    """Results of the newest answer's calls."""
    return [
        CallResult(entry.index, entry.outcome, entry.content)
        for entry in conversation.since
        if isinstance(entry, ToolResultEntry)
    ]


def received_of(conversation: Conversation) -> list[Received]:
    """Messages since the newest answer of this member; of a fork, only what came after the inherited prefix."""
    return [
        message
        for entry in conversation.since
        if isinstance(entry, UserEntry)
        for message in [received(entry)]
        if message is not None
    ]


def received(entry: UserEntry) -> Received | None:
    """A user message as conditions see it; None for what the coordinator injected."""
    source = entry.source
    blocks = entry.content
    match source:
        case RuntimeContextSource():
            return None
        case TeamMessageSource():
            # The first block is the frame around the sender's own.
            blocks = blocks[1:] if len(blocks) > 1 else blocks
            sender = source.sender_name
        case DelegationSource():
            sender = source.sender_name
        case SettlementSource():
            sender = source.member_name
        case _:
            sender = "human"
    return Received(kind=source.kind, sender=sender, text=text_of(blocks))


async def _think(planned: Plan, on_text: Callable[[str], None]) -> None:
    """Take ``think_ms`` in all, showing the text piece by piece meanwhile."""
    text = planned.say
    pieces = [text[start : start + _CHUNK_CHARACTERS] for start in range(0, len(text), _CHUNK_CHARACTERS)]
    pause = planned.think_ms / 1000 / max(len(pieces), 1)
    for piece in pieces or [""]:
        await asyncio.sleep(pause)
        if piece:
            on_text(piece)


def _content(planned: Plan, conversation: Conversation, member: str) -> tuple[ContentBlock, ...]:
    blocks: list[ContentBlock] = [TextBlock(text=planned.say)] if planned.say else []
    used = conversation.call_ids
    for index, call in enumerate(planned.calls):
        call_id = _call_id(member, conversation.seq, index, used)
        used.add(call_id)
        blocks.append(ToolCallBlock(call_id=call_id, name=call.name, arguments=call.arguments))
    return tuple(blocks)


def _call_id(member: str, seq: int, index: int, used: set[str]) -> str:
    """Like a provider's, but the same again for the same place of the same history."""
    salt = 0
    while True:
        digest = hashlib.sha256(f"{member}/{seq}/{index}/{salt}".encode()).hexdigest()
        call_id = f"call_{digest[:24]}"
        if call_id not in used:
            return call_id
        salt += 1


def _finish_reason(planned: Plan) -> FinishReason:
    if planned.calls:
        return "tool-calls"
    return planned.state.finish or "stop"
