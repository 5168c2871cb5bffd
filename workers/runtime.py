"""One worker process: its event loop, its claims, and the way from a slot of Celery to a running turn."""

import asyncio
import faulthandler
import os
import signal
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Final

import structlog

from config import faults
from config.broker import redis_url
from config.settings import Settings
from team.model.claims import Claim, ClaimRequest, Held, WorkerHello
from team.model.errors import ConfigurationInvalid, CoordinatorUnreachable, TeamError, TurnFenced, WorkspaceMismatch
from team.model.ids import TurnId
from workers.checkout import (
    Guard,
    LocalTools,
    Places,
    Presence,
    Sandbox,
    find_sandbox,
    open_workspace,
    prove_locks,
    prove_workspace,
)
from workers.client import ClaimWriter, Coordinator
from workers.deadlines import Deadlines
from workers.deltas import Deltas
from workers.drain import Drain
from workers.execution import Execution
from workers.heartbeat import Heartbeat, renewal_bound
from workers.models import Conversation, Models
from workers.pulse import Pulse
from workers.recent import Recent
from workers.slots import Slots
from workers.steps import Attempts, Turn, describe, ids_of

_log = structlog.stdlib.get_logger(__name__)

HELLO_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 30.0
TURNS_PER_TASK: Final = 8
DEAF_EXIT: Final = 70
LONGEST_THINK_SECONDS: Final = 600.0
"""Of a script model."""
MOUNTED_SECRETS: Final = Path("/run/secrets")

_KEEP_CONVERSATION: Final = frozenset({"ended", "parked", "released", "backoff", "failed"})
_CONFIRM_STOPPED: Final = frozenset({"cancelled", "lapsed", "fenced", "unreachable", "dropped"})
"""Not overdue: a thread of it may still be at work."""


class Runtime:
    """Wires a worker. ``run_turn`` is called on Celery's pool threads, ``hand_over`` in a signal handler."""

    def __init__(self, settings: Settings, keys: Mapping[str, str], *, name: str) -> None:
        if settings.worker_token is None:
            raise ConfigurationInvalid("no worker token is configured: set TEAM_WORKER_TOKEN to the coordinator's")
        self.name = name
        self.slots = Slots(settings.slots)
        self.fatal: str | None = None
        self.wedged = False
        self._settings = settings
        self._keys = keys
        self._token = settings.worker_token.get_secret_value()
        self._broker = redis_url(settings.broker_url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turns", daemon=True)
        self._pulse = Pulse(self._loop, self._end_stalled, within=settings.stall_seconds)
        self._executions: set[Execution] = set()
        self._conversations: Recent[str, Conversation] = Recent(max(16, 2 * settings.slots))
        self._attempts: Attempts = Recent(1024)
        self._hello: WorkerHello
        self._root: Path
        self._drain: Drain
        self._coordinator: Coordinator
        self._heartbeat: Heartbeat
        self._guard: Guard
        self._presence: Presence
        self._sandbox: Sandbox | None = None
        self._tools: LocalTools
        self._models: Models
        self._deltas: Deltas

    def start(self) -> None:
        """Reach the coordinator, prove the workspace, start the guard and the heartbeat.

        Raises:
            CoordinatorUnreachable: There was no coordinator for a minute.
            TeamError: The worker is not configured for this deployment; the text says what to do.
        """
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except BaseException:
            self._stop_loop()
            raise
        self._heartbeat.start()
        self._pulse.start()

    def close(self) -> None:
        """Let go of everything after the last slot is empty."""
        self._heartbeat.stop()
        self._pulse.stop()
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CLOSE_SECONDS)
        except FutureTimeout:
            _log.error("worker did not close in time", seconds=CLOSE_SECONDS)  # noqa: TRY400  # a trace tells nothing
        self._stop_loop()

    def run_turn(self, turn_id: str) -> None:
        """Claim ``turn_id``, else any queued turn, and run it; then claim again until there is nothing, a few times.

        The broker's messages are hints, and a broker that lost its store gave none: while turns are queued, a slot
        that becomes free takes the next one from SQL at once. The number is bounded so that a task of Celery ends,
        and with it what Flower shows. Never raises: there is nothing that Celery could do about it.
        """
        with self.slots.taken():
            future = asyncio.run_coroutine_threadsafe(self._serve(turn_id), self._loop)
            try:
                future.result()
            except Exception as error:  # noqa: BLE001  # logged; a task has no result
                _log.error("slot failed", turn=turn_id, **describe(error))  # noqa: TRY400  # trace without values

    def hand_over(self) -> None:
        """Take no new turn; let each running one finish its step, within the drain limit. Once; signal-safe."""
        self._loop.call_soon_threadsafe(self._begin_hand_over)

    def hurry(self) -> None:
        """Hand over whatever still runs at once; signal-safe."""
        self._loop.call_soon_threadsafe(lambda: self._drain.begin(0))

    def abandon(self, reason: str, *, seconds: float = 2.0) -> None:
        """Hand over at once whatever runs, wait for it at most ``seconds``, and end this process for its supervisor."""
        _log.critical("worker ends itself, its supervisor starts another one", reason=reason)
        future = asyncio.run_coroutine_threadsafe(self._abandon(), self._loop)
        try:
            future.result(seconds)
        except (FutureTimeout, FutureCancelled):
            _log.warning("turns not handed over in time, their leases end by themselves")
        finally:
            # Whatever went wrong: a deaf worker that stays is worse.
            os._exit(DEAF_EXIT)

    def _end_stalled(self, seconds: float) -> None:
        # What runs on the loop cannot be handed over. The guard ends its commands, the lease its claims.
        _log.critical("event loop stands still, worker ends itself", seconds=seconds)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(DEAF_EXIT)

    # On the event loop.

    async def _start(self) -> None:
        settings = self._settings
        self._drain = Drain()
        self._coordinator = Coordinator(settings.url, self._token, connections=settings.slots + 8)
        try:
            self._hello = await self._greet()
            self._root = self._workspace_root(self._hello)
            await asyncio.to_thread(prove_workspace, self._root, self._hello.workspace_id)
            await asyncio.to_thread(prove_locks, self._root)
            self._presence = await asyncio.to_thread(Presence, open_workspace(self._root))
            self._models = Models(settings, self._keys)
        except BaseException:
            await self._coordinator.close()
            raise
        self._guard = Guard()
        await self._guard.start()
        self._sandbox = await self._find_sandbox()
        self._tools = LocalTools(
            self._root, output_bytes=settings.output_bytes, guard=self._guard, sandbox=self._sandbox
        )
        self._deltas = Deltas(self._broker, settings.key_prefix)
        self._heartbeat = Heartbeat(
            url=settings.url,
            token=self._token,
            worker=self.name,
            hello=self._hello,
            slots=lambda: 0 if self._drain.begun else self.slots.total,
            queues=settings.queue_names,
        )
        _log.info("worker greets", coordinator=settings.url, root=str(self._root), slots=self.slots.total)

    async def _find_sandbox(self) -> Sandbox | None:
        settings = self._settings
        keys = settings.provider_keys_file
        # A descriptor's path would name something else by now.
        named = (keys,) if keys and not keys.is_relative_to("/dev") and not keys.is_relative_to("/proc") else ()
        places = Places(hidden=(*named, settings.data_dir, MOUNTED_SECRETS), writable=settings.writable_directories)
        try:
            return await find_sandbox(settings.sandbox, open_workspace(self._root), self._guard, places)
        except BaseException:
            await self._guard.close()
            await self._coordinator.close()
            raise

    async def _greet(self) -> WorkerHello:
        end = time.monotonic() + HELLO_SECONDS
        waiting = False
        while True:
            try:
                return await self._coordinator.hello(patience=2.0)
            except CoordinatorUnreachable as error:
                if time.monotonic() >= end:
                    raise
                if not waiting:
                    _log.warning("waiting for the coordinator", reason=error.message, seconds=HELLO_SECONDS)
                waiting = True

    def _workspace_root(self, hello: WorkerHello) -> Path:
        """The coordinator's path: Sessions log absolute directories, so the mount is at one path everywhere."""
        root = Path(hello.workspace_root)
        own = self._settings.workspace_root
        if "workspace_root" in self._settings.model_fields_set and own.resolve() != root.resolve():
            raise WorkspaceMismatch(
                f"TEAM_WORKSPACE_ROOT is {own} here and {root} at the coordinator: mount the checkout at the same path"
            )
        return root

    async def _serve(self, turn_id: str) -> None:
        hint: TurnId | None = TurnId(turn_id)
        for _ in range(TURNS_PER_TASK):
            if self._drain.begun or not await self._take(hint):
                return
            hint = None

    async def _take(self, hint: TurnId | None) -> bool:
        """Claim one turn and run it to the end of the claim; False when none was queued."""
        # Held here until the claim is answered: a history may start where one of these ends.
        offered = self._conversations.snapshot()
        request = ClaimRequest(
            request_id=uuid.uuid4().hex,
            worker=self.name,
            turn_id=hint,
            queues=self._settings.queue_names,
            known={session: conversation.seq for session, conversation in offered.items()},
        )
        sent_at = time.monotonic()
        try:
            claim = await self._coordinator.claim(request, patience=self._hello.lease_seconds)
        except TeamError as error:
            _log.error("no claim", turn=hint, code=error.code, reason=error.message)  # noqa: TRY400  # the text says it
            return False
        if claim is None:
            return False
        faults.reached("after-claim")
        conversation = Conversation()
        if claim.history_after:
            conversation = offered[claim.session_id]
        self._conversations.drop(claim.session_id)
        with structlog.contextvars.bound_contextvars(**ids_of(claim)):
            await self._execute(claim, conversation, sent_at + renewal_bound(claim.limits.lease_seconds))
        return True

    async def _execute(self, claim: Claim, conversation: Conversation, valid_until: float) -> None:
        writer = ClaimWriter(self._coordinator, claim)
        late = time.monotonic() >= valid_until
        if late or self._drain.begun or not await self._sees_workspace(claim):
            await self._give_back(claim, writer)
            return
        deadlines = Deadlines(
            answer_seconds=max(self._settings.request_timeout_seconds, LONGEST_THINK_SECONDS),
            pause_seconds=3 * claim.limits.lease_seconds,
        )
        turn = Turn(
            claim,
            conversation,
            writer=writer,
            models=self._models,
            tools=self._tools,
            deltas=self._deltas,
            drain=self._drain,
            attempts=self._attempts,
            deadlines=deadlines,
        )
        execution = Execution(
            claim,
            turn.run(),
            guard=self._guard,
            valid_until=valid_until,
            deadlines=deadlines,
            wedged=self._retire,
            step=lambda: turn.step,
        )
        self._executions.add(execution)
        self._heartbeat.hold(execution)
        confirm = False
        try:
            ending = await execution.ended()
            await self._tools.end_turn(claim.execution)
            confirm = ending in _CONFIRM_STOPPED
        finally:
            execution.close()
            self._heartbeat.drop(execution, confirm=confirm)
            self._executions.discard(execution)
        if ending in _KEEP_CONVERSATION:
            self._conversations.put(claim.session_id, conversation)

    async def _sees_workspace(self, claim: Claim) -> bool:
        try:
            await asyncio.to_thread(prove_workspace, self._root, claim.workspace_id)
        except WorkspaceMismatch as error:
            # Not a fault of the turn: another worker may see the right mount. This one must not take more.
            _log.critical("workspace lost, worker hands over", turn=claim.turn_id, reason=error.message)
            self.fatal = error.message
            self._leave()
            return False
        return True

    def _retire(self, operation: str) -> None:
        """An operation hangs, perhaps with a thread of this process: its supervisor starts a fresh one."""
        if not self.wedged:
            _log.critical("worker hands over and ends itself, an operation hangs", operation=operation)
            self.wedged = True
            self._leave()

    def _leave(self) -> None:
        self._begin_hand_over()
        os.kill(os.getpid(), signal.SIGTERM)

    async def _give_back(self, claim: Claim, writer: ClaimWriter) -> None:
        try:
            await writer.release("not started")
        except (TurnFenced, CoordinatorUnreachable) as error:
            _log.warning("claim dropped before its start", turn=claim.turn_id, reason=error.message)
            self._heartbeat.confirm(Held(turn_id=claim.turn_id, epoch=claim.epoch))

    def _begin_hand_over(self) -> None:
        if self._drain.begun:
            return
        limit = self._settings.drain_seconds
        _log.info("worker hands over", turns=len(self._executions), limit_seconds=limit)
        self._drain.begin(limit)
        # The releases themselves get one lease; then the leases settle what is left.
        forced = threading.Timer(limit + self._hello.lease_seconds, self._force)
        forced.daemon = True
        forced.start()

    def _force(self) -> None:
        _log.critical("hand-over did not end in time", turns=[item.held.turn_id for item in [*self._executions]])
        os._exit(DEAF_EXIT)

    async def _abandon(self) -> None:
        self._drain.begin(0)
        while self._executions:
            await asyncio.wait({item.task for item in self._executions})
            await asyncio.sleep(0.01)

    async def _close(self) -> None:
        await self._deltas.close()
        await self._models.close()
        await self._guard.close()
        if self._sandbox:
            await asyncio.to_thread(self._sandbox.close)
        await asyncio.to_thread(self._presence.close)
        await self._coordinator.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()
