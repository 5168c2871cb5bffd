"""When the open step's request needs room first, and how the summary that makes it is asked for."""

from collections.abc import Coroutine
from typing import Any, Final

from team.model.claims import Claim
from workers.models import Answer, Conversation, Model, ModelFailure

NEAR: Final = 0.8
"""Share of the context window from which a request is preceded by a compaction."""

GAIN: Final = 0.2
"""Share of the window that must have been added since the last compaction: a summary of less would gain nothing."""

LONGEST_LEVEL: Final = 3
"""How often a history that is too long to be summarised is shortened once more (``Conversation.shortened``)."""


class Compaction:
    """Makes room in the conversation of one claim, at most once per step.

    It is due when the context limit is near, or when the provider has refused the request as too long. What it cannot
    help ends the turn: nothing of it is tried twice for one step.
    """

    def __init__(self, claim: Claim) -> None:
        self._window = claim.limits.context_tokens
        self._done = claim.step if claim.compacted else 0
        self._refused = 0
        self._level = 0

    def is_due(self, conversation: Conversation, step: int) -> bool:
        """Whether a summary must be committed before the answer of this step is requested."""
        if step == self._done or not conversation.has_answers:
            return False
        return step == self._refused or self._is_near(conversation)

    def _is_near(self, conversation: Conversation) -> bool:
        size = conversation.context_tokens
        near = self._window > 0 and size >= NEAR * self._window
        return near and size - conversation.context_floor >= GAIN * self._window

    def summary(self, model: Model, conversation: Conversation, member: str) -> Coroutine[Any, Any, Answer]:
        """The request for the summary."""
        return model.summarise(conversation.shortened(self._level), member=member)

    def makes_room(self, failure: ModelFailure, conversation: Conversation, step: int) -> bool:
        """Whether a request that failed may succeed after a compaction, or a summary after more was left out."""
        if failure.kind != "context-length" or step == self._done or not conversation.has_answers:
            return False
        if self._level >= LONGEST_LEVEL:
            return False
        # What the provider refused as a request is too long for a summary of all of it, too.
        self._refused, self._level = step, self._level + 1
        return True

    def done(self, step: int) -> None:
        """The summary of this step is committed."""
        self._done, self._refused, self._level = step, 0, 0
