"""The step loop of one claimed turn (DESIGN section 5)."""

import asyncio
import traceback
from typing import Final, Protocol

import structlog

from config import faults
from config.logs import detail_of
from team.model.claims import AnswerResult, BoundaryResult, Claim
from team.model.content import text_of
from team.model.errors import ConfigurationInvalid, CoordinatorUnreachable, TurnFenced
from team.model.history import HistoryEntry
from workers.calls import Calls
from workers.checkout import LocalTools
from workers.client import ClaimWriter
from workers.compaction import Compaction
from workers.deadlines import Deadlines
from workers.deltas import Deltas
from workers.drain import Drain, DrainExpired
from workers.models import Answer, Conversation, Model, ModelFailure, retry_delay_seconds
from workers.recent import Recent

_log = structlog.stdlib.get_logger(__name__)

IN_PLACE_SECONDS: Final = 2.0
"""A pause of the provider up to this long keeps the slot; a longer one parks the turn."""

_LONGEST_BACKOFF_MS: Final = 3_600_000
_INTERNAL: Final = "internal"
_CONFIGURATION: Final = "configuration"

Attempts = Recent[tuple[str, str, int], int]
"""Failed requests by (Session, turn, step): beside those that parked the turn, which the claim counts."""


class ModelSource(Protocol):
    """Where the turn gets its model (``workers.models.Models``)."""

    def get(self, name: str) -> Model: ...


class Turn:
    """One claim, run until it is over. Every way out leaves the claim settled, or dropped without a further write."""

    def __init__(
        self,
        claim: Claim,
        conversation: Conversation,
        *,
        writer: ClaimWriter,
        models: ModelSource,
        tools: LocalTools,
        deltas: Deltas,
        drain: Drain,
        attempts: Attempts,
        deadlines: Deadlines,
    ) -> None:
        self._claim = claim
        self._conversation = conversation
        self._writer = writer
        self._models = models
        self._tools = tools
        self._deltas = deltas
        self._drain = drain
        self._attempts = attempts
        self._deadlines = deadlines
        self._compaction = Compaction(claim)
        self._calls = Calls(claim, writer, tools, drain, deadlines)
        self._log = _log.bind(**ids_of(claim))
        self.step = claim.step
        """The step that the turn is at; 0 before its first one."""

    async def run(self) -> str:
        """Run to the end of the claim.

        Returns:
            How it ended: ended, parked, released, backoff or failed, all committed; fenced or unreachable, where
            nothing was written. Cancelling the task drops the claim without a write.
        """
        try:
            try:
                return await self._run()
            except (TurnFenced, CoordinatorUnreachable):
                raise
            except Exception as error:  # noqa: BLE001  # logged and made the turn's end
                # The claim must not hang: the turn ends visibly, and the stack trace tells why.
                self._log.error("turn failed unexpectedly", **describe(error))  # noqa: TRY400  # trace without values
                return await self._fail(
                    _INTERNAL, f"The worker met an unexpected {type(error).__name__}; its log has the stack trace."
                )
        except TurnFenced:
            self._log.warning("claim fenced, dropped")
            return "fenced"
        except CoordinatorUnreachable as error:
            self._log.warning("claim dropped, its lease ends by itself", reason=error.message)
            return "unreachable"

    async def _run(self) -> str:
        claim = self._claim
        self._extend(claim.history)
        if claim.step:
            ending = await self._continue_step(claim)
            if ending is not None:
                return ending
        while True:
            boundary = await self._boundary()
            if boundary.action == "ended":
                faults.reached("at-turn-end")
            if boundary.action != "step":
                return boundary.action
            self._extend(boundary.history)
            ending = await self._step(boundary.step)
            if ending is not None:
                return ending

    async def _continue_step(self, claim: Claim) -> str | None:
        if not claim.answered:
            return await self._step(claim.step)
        self._at(claim.step)
        await self._calls.recover(claim.pending)
        return await self._release() if self._drain.expired else None

    def _at(self, step: int) -> None:
        self.step = step
        # For whatever is logged below, in any module, on behalf of this turn.
        structlog.contextvars.bind_contextvars(step=step)

    async def _step(self, step: int) -> str | None:
        """One model request and its calls; None when the turn goes on to its next boundary."""
        self._at(step)
        if self._drain.begun:
            return await self._release()
        answered = await self._answer(step)
        if isinstance(answered, str):
            return answered
        await self._calls.run(answered.calls)
        return await self._release() if self._drain.expired else None

    async def _answer(self, step: int) -> AnswerResult | str:
        """Request until there is a complete answer and commit it, or leave the turn: then how it ended."""
        key = (self._claim.session_id, self._claim.turn_id, step)
        while True:
            attempt = 1 + max(self._attempts.get(key) or 0, self._claim.attempt if step == self._claim.step else 0)
            try:
                model = self._models.get(self._claim.model)
                compacting = self._compaction.is_due(self._conversation, step)
                request = (
                    self._compaction.summary(model, self._conversation, self._claim.member)
                    if compacting
                    else model.answer(
                        self._conversation,
                        member=self._claim.member,
                        on_text=self._deltas.writer(self._claim, step, attempt),
                    )
                )
                with self._deadlines.answer():
                    answer = await self._drain.bounded(request)
            except ConfigurationInvalid as error:
                return await self._fail(_CONFIGURATION, error.message)
            except DrainExpired:
                self._log.info("model request cancelled at the drain limit", step=step)
                return await self._release()
            except ModelFailure as failure:
                if self._compaction.makes_room(failure, self._conversation, step):
                    continue
                self._attempts.put(key, attempt)
                ending = await self._pause(failure, step, attempt)
                if ending is not None:
                    return ending
                continue
            self._attempts.drop(key)
            if compacting:
                await self._compact(step, answer)
                continue
            faults.reached("before-answer-post")
            result = await self._writer.answer(
                step,
                model=answer.model,
                content=tuple(answer.content),
                usage=answer.usage,
                finish_reason=answer.finish_reason,
                provider_detail=answer.provider_detail,
            )
            faults.reached("after-answer-post")
            return result

    async def _compact(self, step: int, answer: Answer) -> None:
        faults.reached("before-compact-post")
        result = await self._writer.compact(
            step,
            summary=text_of(answer.content),
            model=answer.model,
            usage=answer.usage,
            history_after=self._conversation.seq,
        )
        faults.reached("after-compact-post")
        self._compaction.done(step)
        before = self._conversation.context_tokens
        self._extend(result.history)
        self._log.info("history compacted", step=step, tokens=before, left=self._conversation.context_tokens)

    async def _pause(self, failure: ModelFailure, step: int, attempt: int) -> str | None:
        """Wait before the next attempt; or leave the turn, and tell how."""
        delay = retry_delay_seconds(failure, attempt)
        self._log.warning(
            "model request failed", step=step, attempt=attempt, kind=failure.kind, code=failure.code, delay=delay
        )
        if delay is None:
            return await self._fail(failure.code, failure.message)
        if self._drain.begun:
            return await self._release()
        if delay <= IN_PLACE_SECONDS:
            await asyncio.sleep(delay)
            return None
        await self._tools.end_turn(self._claim.execution)
        delay_ms = min(round(delay * 1000), _LONGEST_BACKOFF_MS)
        await self._writer.backoff(step, delay_ms, failure.code)
        return "backoff"

    async def _boundary(self) -> BoundaryResult:
        faults.reached("before-boundary")
        result = await self._writer.boundary(self._conversation.seq)
        faults.reached("after-boundary")
        self._log.debug("boundary", action=result.action, step=result.step, reason=result.reason)
        return result

    def _extend(self, history: tuple[HistoryEntry, ...]) -> None:
        """The log is the only source of the conversation; what it already holds is left out."""
        newer = [entry for entry in history if entry.seq > self._conversation.seq]
        if newer:
            self._conversation.extend(newer)

    async def _release(self) -> str:
        await self._tools.end_turn(self._claim.execution)
        await self._writer.release("hand-over")
        self._log.info("turn handed over")
        return "released"

    async def _fail(self, code: str, message: str) -> str:
        await self._tools.end_turn(self._claim.execution)
        await self._writer.fail(code, message)
        self._log.warning("turn failed", code=code)
        return "failed"


def ids_of(claim: Claim) -> dict[str, str | int]:
    """What every line about a claim names."""
    return {
        "team": claim.team_id,
        "member": claim.member,
        "session": claim.session_id,
        "turn": claim.turn_id,
        "epoch": claim.epoch,
    }


def describe(error: BaseException) -> dict[str, str]:
    """An exception for the log: where it happened, and of its text only what cannot quote a message or a secret."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return {"error": type(error).__name__, "detail": detail_of(error), "trace": frames}
