"""The calls of one model answer: which side runs them, in which order, and what becomes of their results."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from config import faults
from team.model.claims import Claim, PendingCall
from team.model.slices import FileSlice
from workers.checkout import LocalResult, LocalTools
from workers.client import ClaimWriter
from workers.deadlines import Deadlines
from workers.drain import Drain, DrainExpired, ended

_log = structlog.stdlib.get_logger(__name__)

WRITERS: Final = frozenset({"write", "edit", "bash"})
"""Local tools that change the checkout: those of one answer run in the order in which the model gave them."""

NOT_STARTED: Final = (
    "This call was not started: the machine that runs you was stopped first. Nothing was changed; call it again."
)


@dataclass
class LocalContext:
    """What a local tool knows of its call (``workers.checkout.CallContext``)."""

    session_id: str
    execution: str
    call_id: str
    cwd: str
    files: Mapping[str, FileSlice]
    calls: "Calls"
    call: PendingCall

    async def intent(self, path: str, before: str | None, after: str) -> None:
        """Commit that the call is about to replace ``path``; returns before anything may change."""
        await self.calls.intend(self.call, path, before, after)


class Calls:
    """Runs calls of one claim. It keeps what the turn has seen of files, and its directory."""

    def __init__(
        self, claim: Claim, writer: ClaimWriter, tools: LocalTools, drain: Drain, deadlines: Deadlines
    ) -> None:
        self._claim = claim
        self._writer = writer
        self._tools = tools
        self._drain = drain
        self._deadlines = deadlines
        self._beside = 1
        self._local = frozenset(claim.local_tools)
        self._cwd = claim.cwd
        self._files = {item.path: item for item in claim.files}
        self._intents: dict[str, PendingCall] = {}
        self._log = _log.bind(
            team=claim.team_id, member=claim.member, session=claim.session_id, turn=claim.turn_id, epoch=claim.epoch
        )

    async def run(self, calls: tuple[PendingCall, ...]) -> None:
        """Run the calls of a fresh answer until each is done, waiting, or stopped by the hand-over's limit.

        Readers overlap. Writers follow one another by index, and so do coordinator-side calls: what two
        messages or two board changes of one answer mean depends on their order.
        """
        local = [call for call in calls if call.name in self._local]
        self._beside = max(1, len(local))
        await _all(
            [
                self._in_order([call for call in local if call.name in WRITERS], self._run_local),
                self._in_order([call for call in calls if call.name not in self._local], self._run_remote),
                *(self._run_local(call) for call in local if call.name not in WRITERS),
            ]
        )

    async def recover(self, pending: tuple[PendingCall, ...]) -> None:
        """Finish the calls that a former claim left: local ones are judged, never run again."""
        open_calls = [call for call in pending if not call.waiting]
        await _all(
            [
                self._in_order([call for call in open_calls if call.name in self._local], self._judge),
                self._in_order([call for call in open_calls if call.name not in self._local], self._run_remote),
            ]
        )

    async def intend(self, call: PendingCall, path: str, before: str | None, after: str) -> None:
        await self._writer.intent(call.step, call.index, path, before, after)
        self._intents[call.call_id] = call.model_copy(
            update={"intent_path": path, "intent_before": before, "intent_after": after}
        )
        faults.reached("after-intent")

    async def _in_order(
        self, calls: list[PendingCall], run: Callable[[PendingCall], Coroutine[Any, Any, None]]
    ) -> None:
        for call in calls:
            await run(call)

    async def _run_local(self, call: PendingCall) -> None:
        context = LocalContext(
            session_id=self._claim.session_id,
            execution=self._claim.execution,
            call_id=call.call_id,
            cwd=self._cwd,
            files=self._files,
            calls=self,
            call=call,
        )
        if self._drain.expired:
            self._log.info("call not started, the worker stops", step=call.step, tool=call.name)
            await self._writer.result(call.step, call.index, outcome="error", content=NOT_STARTED)
            return
        faults.reached("in-tool")
        begun = time.monotonic()
        try:
            with self._deadlines.call(call.name, self._beside):
                result = await self._drain.bounded(self._tools.run(call.name, call.arguments, context))
        except DrainExpired:
            self._log.warning("call stopped at the drain limit", step=call.step, tool=call.name)
            await self._judge(self._intents.get(call.call_id, call))
            return
        await self._commit(call, result, duration_ms=round((time.monotonic() - begun) * 1000))

    async def _run_remote(self, call: PendingCall) -> None:
        try:
            await self._drain.bounded(self._writer.tool(call.step, call.index))
        except DrainExpired:
            # Left open: the next claim asks for it again and gets the recorded result if there is one.
            self._log.info("call left to the next claim", step=call.step, tool=call.name)

    async def _judge(self, call: PendingCall) -> None:
        with self._deadlines.call(call.name):
            judged = await asyncio.to_thread(self._tools.recover, call)
        await self._commit(call, judged)

    async def _commit(self, call: PendingCall, result: LocalResult, *, duration_ms: int | None = None) -> None:
        for item in result.observed:
            self._files[item.path] = item
        moved = result.cwd if result.cwd != self._cwd else None
        self._cwd = result.cwd or self._cwd
        faults.reached("before-result-post")
        await self._writer.result(
            call.step,
            call.index,
            outcome=result.outcome,
            content=result.content,
            observed=result.observed,
            cwd=moved,
            duration_ms=duration_ms,
        )
        self._intents.pop(call.call_id, None)


async def _all(work: list[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; the first failure stops the others and is raised once they have ended."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            await ended(task)
