"""What the step loop asks of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from team.model.content import ContentBlock
from team.model.events import FinishReason, Usage
from workers.models.conversation import Conversation


@dataclass(frozen=True)
class Answer:
    """One complete model answer.

    ``content`` holds text, reasoning and tool-call blocks in the model's order, its text made storable.
    ``provider_detail`` is opaque JSON text: with it, later requests carry this answer byte for byte as it came.
    """

    model: str
    content: tuple[ContentBlock, ...]
    usage: Usage
    finish_reason: FinishReason
    provider_detail: str | None


class Model(Protocol):
    """One model of one provider; requests of many Sessions may run on it at once."""

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        """Make one request and return its complete answer.

        Args:
            conversation: The Session's history; it is only read.
            member: The target name of the Session's member, ``lead`` for the Lead.
            on_text: Called with each piece of answer text as it arrives, also of tries that fail later.

        Raises:
            ModelFailure: There is no complete answer. Nothing is retried inside.
            asyncio.CancelledError: The task was cancelled; the request's connection is closed.
        """
        ...

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        """Ask for a summary that can take the place of the conversation; the answer's text is never empty.

        Raises what ``answer`` raises.
        """
        ...
