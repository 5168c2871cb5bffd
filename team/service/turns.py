"""TurnService: the worker's side. Claim, fenced writes, leases, recovery (DESIGN section 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from team.log import runs, sessions, waits
from team.log.events import read_history
from team.log.runs import Run
from team.log.transaction import Transaction
from team.model.claims import (
    Acknowledged,
    AnswerRequest,
    AnswerResult,
    BackoffRequest,
    BoundaryRequest,
    BoundaryResult,
    Claim,
    ClaimRequest,
    CompactRequest,
    CompactResult,
    FailRequest,
    HeartbeatRequest,
    HeartbeatResult,
    Held,
    IntentRequest,
    PendingCall,
    ReleaseRequest,
    ResultRequest,
    ToolResult,
    WorkerHello,
    Write,
)
from team.model.errors import InvalidArgument, TurnConflict, TurnFenced
from team.model.events import AssistantMessage, FileIntended, FileObserved, SessionCwd
from team.model.history import HistoryEntry
from team.model.ids import SessionId
from team.model.slices import TurnSlice
from team.model.tools import LOCAL_PARAMETERS
from team.model.values import JsonObject, Value, text_fault
from team.rules import capture, compaction, turns
from team.rules.queue import queued_of, requeue
from team.rules.results import give_result
from team.service.boundaries import Boundary
from team.service.callers import CallRef, ClaimRef, Recorded, entry_of, open_call, require_claim, session_of
from team.service.claims import claim_turn
from team.service.isolation import each
from team.service.store import Store
from team.service.workspace import ensure_workspace

_V = TypeVar("_V", bound=Value)
_W = TypeVar("_W", bound=Value)
Body = Callable[[Transaction, Run, TurnSlice], _V]


@dataclass(frozen=True)
class AskedCall:
    """A call that has no result yet, and the tools that its Session was offered: those of a Team or not.

    ``capture`` is the schema of the result that the Session must report.
    """

    session_id: SessionId
    call: PendingCall
    offered: tuple[str, ...]
    is_team: bool
    capture: JsonObject | None = None


class TurnService:
    """What a worker may ask. Every write raises TurnFenced when its claim is over, and then leaves no effect."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def hello(self) -> WorkerHello:
        """What a starting worker checks. Writes the workspace's id again when somebody cleaned it away."""
        settings = self._store.settings
        ensure_workspace(settings.workspace_root, self._store.workspace_id)
        return WorkerHello(
            workspace_id=self._store.workspace_id,
            workspace_root=str(settings.workspace_root),
            lease_seconds=settings.lease_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
        )

    def claim(self, request: ClaimRequest) -> Claim | None:
        """Compare-and-set a queued turn to running with the next epoch; idempotent by ``request_id``.

        A turn whose log cannot be read ends as ``error/log-damaged``, one without its profile as
        ``error/configuration``, and the next one is tried: the fault of one Session must not stop the queue.
        """
        return claim_turn(self._store, request)

    def boundary(self, ref: ClaimRef, request: BoundaryRequest) -> BoundaryResult:
        """End the open step and go on: the next step with its new input, or the claim is over (parked, ended).

        One transaction under the locks of the turn's end, so that no accepted input is lost between busy and idle.
        A turn at one of its limits ends here, before another model request. Raises TurnConflict when a call of the
        step has neither a result nor an open wait.
        """
        boundary = Boundary(self._store)
        return self._write(
            ref,
            request,
            "boundary",
            BoundaryResult,
            boundary.pass_on,
            ends=boundary.may_end,
            complete=lambda tx, session_id, result: (
                result
                if result.action != "step"
                else result.model_copy(update={"history": _history(tx, session_id, request.history_after)})
            ),
        )

    def answer(self, ref: ClaimRef, request: AnswerRequest) -> AnswerResult:
        """Append the complete model answer of the open step, and its calls."""
        for block in request.content:
            for text in vars(block).values():
                fault = text_fault(text) if isinstance(text, str) else None
                if fault:
                    raise InvalidArgument(f"The answer cannot be stored: {fault}; clean it first.")

        def answer(tx: Transaction, run: Run, turn: TurnSlice) -> Acknowledged:
            return Acknowledged(seq=turns.answer(tx, run.session_id, turn, request))

        def with_calls(tx: Transaction, session_id: SessionId, acknowledged: Acknowledged) -> AnswerResult:
            message, turn = tx.event(session_id, acknowledged.seq), tx.open_turn(session_id)
            assert isinstance(message, AssistantMessage)
            assert turn is not None
            calls = turns.pending_calls(tx, session_id, turn)
            return AnswerResult(seq=acknowledged.seq, content=message.content, calls=calls)

        return self._write(ref, request, "answer", Acknowledged, answer, complete=with_calls)

    def compact(self, ref: ClaimRef, request: CompactRequest) -> CompactResult:
        """Append the summary that stands for the history before the open step's answer; once per step.

        Raises TurnConflict when another step is open, or when this one was compacted before.
        """
        fault = text_fault(request.summary)
        if fault:
            raise InvalidArgument(f"The summary cannot be stored: {fault}; clean it first.")

        def compact(tx: Transaction, run: Run, turn: TurnSlice) -> CompactResult:
            is_team = self._store.profile_of(tx, run.session_id).is_team
            return CompactResult(seq=compaction.compact(tx, run.session_id, turn, request, is_team=is_team))

        def with_history(tx: Transaction, session_id: SessionId, result: CompactResult) -> CompactResult:
            return result.model_copy(update={"history": _history(tx, session_id, request.history_after)})

        return self._write(ref, request, "compact", CompactResult, compact, complete=with_history)

    def intent(self, ref: ClaimRef, request: IntentRequest) -> Acknowledged:
        """Log a replace before it happens."""

        def intend(tx: Transaction, run: Run, turn: TurnSlice) -> Acknowledged:
            self._require_step(turn, request.step)
            data = FileIntended(
                turn_id=turn.turn_id,
                step=request.step,
                index=request.index,
                path=request.path,
                before=request.before,
                after=request.after,
            )
            return Acknowledged(seq=tx.append(run.session_id, data))

        return self._write(ref, request, "intent", Acknowledged, intend)

    def result(self, ref: ClaimRef, request: ResultRequest) -> ToolResult:
        """Append the result of a local call, with what it saw of files; a repeated result changes nothing.

        Raises TurnConflict for a call that the coordinator runs: its result comes with what it did, or from its wait.
        """

        def result(tx: Transaction, run: Run, _turn: TurnSlice) -> ToolResult:
            call = open_call(tx, CallRef(ref, request.step, request.index))
            if isinstance(call, Recorded):
                return ToolResult(state="done", entry=call.entry)
            if call.name not in LOCAL_PARAMETERS:
                raise TurnConflict(f"{call.name} is run by the coordinator; ask it to run the call.")
            session_id = run.session_id
            for file in request.observed:
                tx.append(session_id, FileObserved(path=file.path, version=file.version))
            if request.cwd is not None and request.cwd != tx.head(session_id).cwd:
                tx.append(session_id, SessionCwd(cwd=request.cwd))
            give_result(tx, session_id, call, request.outcome, request.content, request.duration_ms)
            return ToolResult(state="done", entry=entry_of(tx, session_id, call))

        return self._write(ref, request, "result", ToolResult, result)

    def call(self, ref: CallRef) -> AskedCall | Recorded:
        """A coordinator-side call of the open step with its logged arguments, or its recorded result."""

        def read(tx: Transaction) -> AskedCall | Recorded:
            session_id = session_of(tx, ref.claim)
            tx.lock_sessions(session_id)
            call = open_call(tx, ref)
            if isinstance(call, Recorded):
                return call
            turn = tx.open_turn(session_id)
            assert turn is not None
            pending = {found.index: found for found in turns.pending_calls(tx, session_id, turn)}
            profile = self._store.profile_of(tx, session_id)
            wanted = capture.schema_of(tx.head(session_id))
            offered = profile.tools if wanted is None else (*profile.tools, capture.TOOL)
            return AskedCall(session_id, pending[call.index], offered, profile.is_team, wanted)

        return self._store.writing(read)

    def backoff(self, ref: ClaimRef, request: BackoffRequest) -> Acknowledged:
        """Park the turn for a pause that the provider asked for; the open step is requested again afterwards."""

        def back_off(tx: Transaction, run: Run, turn: TurnSlice) -> Acknowledged:
            self._require_step(turn, request.step)
            wait = waits.Wait(
                turn_id=turn.turn_id,
                step=turn.step,
                index=-1,
                kind="backoff",
                session_id=run.session_id,
                team_id=run.team_id,
                call_id=None,
                counter=0,
                deadline=tx.now + request.delay_ms / 1000,
            )
            waits.insert_wait(tx.connection, wait)
            turns.park(tx, run.session_id, turn, [wait], f"waits for the model provider: {request.reason[:200]}")
            runs.count_attempt(tx.connection, turn.turn_id)
            return Acknowledged(seq=tx.head(run.session_id).seq)

        return self._write(ref, request, "backoff", Acknowledged, back_off)

    def fail(self, ref: ClaimRef, request: FailRequest) -> Acknowledged:
        """End the turn as ``error`` with a stable code; pending input is held."""

        def fail(tx: Transaction, run: Run, turn: TurnSlice) -> Acknowledged:
            turn = turns.abandon_calls(tx, run.session_id, turn, turns.LOST_CALL)
            turns.end(tx, run.session_id, turn, "error", code=request.code, message=request.message)
            return Acknowledged(seq=tx.head(run.session_id).seq)

        return self._write(ref, request, "fail", Acknowledged, fail, ends=lambda _tx, _run: True)

    def release(self, ref: ClaimRef, request: ReleaseRequest) -> Acknowledged:
        """Hand the turn back: queued again, nothing lost, nothing repeated."""

        def release(tx: Transaction, run: Run, turn: TurnSlice) -> Acknowledged:
            requeue(tx, turn, run, f"handed over: {request.reason[:200]}")
            return Acknowledged(seq=tx.head(run.session_id).seq)

        return self._write(ref, request, "release", Acknowledged, release)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """Renew exactly the listed claims and say which are over.

        Of those that have stopped nothing is left on their worker: their guards are lifted, and a lease that still
        runs is over.
        """

        def renew(tx: Transaction) -> HeartbeatResult:
            lease_until = tx.now + self._store.settings.lease_seconds
            runs.seen_worker(tx.connection, request.worker, tx.now, request.slots, request.queues)
            renewed, cancelled = list[Held](), list[Held]()
            for held in sorted(request.claims, key=lambda claim: claim.turn_id):
                alive = runs.renew(tx.connection, held.turn_id, held.epoch, request.worker, lease_until)
                (renewed if alive else cancelled).append(held)
            return HeartbeatResult(renewed=tuple(renewed), cancelled=tuple(cancelled))

        # Each apart: a Session is locked before any run, and leases are renewed under the locks of their runs alone.
        for held in request.stopped:
            self._let_go(request.worker, held)
        return self._store.writing(renew)

    def _let_go(self, worker: str, held: Held) -> None:
        def let_go(tx: Transaction) -> None:
            session_id = sessions.clear_guard(tx.connection, held.turn_id, held.epoch)
            waiting_run = runs.session_run(tx.connection, session_id) if session_id else None
            if waiting_run is not None and waiting_run.state == "queued":
                tx.effects.queued.append(queued_of(waiting_run))
            runs.end_lease(tx.connection, held.turn_id, held.epoch, worker, tx.now)

        self._store.writing(let_go)

    def reap(self, limit: int = 50) -> int:
        """Take back claims whose lease ran out; returns how many. Each in a transaction of its own."""
        with self._store.reading() as connection:
            expired = runs.expired_runs(connection, self._store.database.now(connection), limit)
        return each(expired, self._reap, "claim not taken back")

    def _reap(self, expired: Run) -> bool:
        def lose(tx: Transaction) -> bool:
            tx.lock_team(expired.team_id)
            header = sessions.find_session(tx.connection, expired.session_id).header
            tx.lock_sessions(*turns.sessions_of_end(tx, header))
            run = runs.lock_run(tx.connection, expired.turn_id)
            turn = tx.open_turn(expired.session_id)
            same = run is not None and run.state == "running" and run.epoch == expired.epoch
            if run is None or turn is None or not same or run.lease_until is None or run.lease_until >= tx.now:
                return False
            turns.lose(tx, run.session_id, turn, run)
            return True

        return self._store.writing(lose)

    def _write(
        self,
        ref: ClaimRef,
        request: Write,
        kind: str,
        view: type[_V],
        body: Body[_V],
        *,
        ends: Callable[[Transaction, Run], bool] = lambda _tx, _run: False,
        complete: Callable[[Transaction, SessionId, _V], _W] = lambda _tx, _session_id, result: result,
    ) -> _W:
        """One numbered, fenced write. A repeated number returns what was recorded for it.

        ``complete`` adds to the response what the log can always tell again, so that it is not recorded twice.
        """

        def repeated(tx: Transaction) -> _W | None:
            recorded = runs.recorded_write(tx.connection, ref.turn_id, ref.epoch, request.number, ref.token)
            if recorded is None:
                return None
            session_id, recorded_kind, text = recorded
            if recorded_kind != kind:
                raise TurnConflict(f"That write of {ref.turn_id} was a {recorded_kind}; number each write anew.")
            tx.lock_sessions(session_id)
            result = view.model_validate_json(text)
            if not _closes(kind, result):
                require_claim(tx, ref)
            return complete(tx, session_id, result)

        def write(tx: Transaction) -> _W:
            unlocked = runs.find_run(tx.connection, ref.turn_id)
            if unlocked is None:
                again = repeated(tx)
                if again is None:
                    raise TurnFenced(f"{ref.turn_id} is not an open turn; stop its work and drop it.")
                return again
            header = sessions.find_session(tx.connection, unlocked.session_id).header
            if ends(tx, unlocked):
                tx.lock_team(header.team_id)
                tx.lock_sessions(*turns.sessions_of_end(tx, header))
            else:
                tx.lock_sessions(header.id)
            # Under the lock: of two copies that arrive together, the second must see what the first recorded.
            again = repeated(tx)
            if again is not None:
                return again
            run, turn = require_claim(tx, ref)
            result = body(tx, run, turn)
            text = result.model_dump_json()
            runs.record_write(tx.connection, run, request.number, kind=kind, response=text, now=tx.now)
            tx.flush()
            return complete(tx, run.session_id, result)

        return self._store.writing(write)

    def _require_step(self, turn: TurnSlice, step: int) -> None:
        if not turn.step_open or turn.step != step:
            raise TurnConflict(f"The turn is at step {turn.step}, not {step}; claim it again.")


def _history(tx: Transaction, session_id: SessionId, after: int) -> tuple[HistoryEntry, ...]:
    return tuple(read_history(tx.connection, session_id, after, tx.peek_head(session_id).compacted_seq))


def _closes(kind: str, result: Value) -> bool:
    """Whether a write ended its own claim: only then may its response be told again to a claim that is over."""
    if isinstance(result, BoundaryResult):
        return result.action != "step"
    return kind in ("backoff", "fail", "release")
