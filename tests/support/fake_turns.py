"""In-memory turns for the fake coordinator: claims, fences, steps and results, as the worker API promises them."""

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

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
    Limits,
    PendingCall,
    ReleaseRequest,
    ResultRequest,
    ToolRequest,
    ToolResult,
    WorkerHello,
    Write,
)
from team.model.content import ContentBlock, TextBlock, ToolCallBlock, text_of
from team.model.errors import TurnConflict, TurnFenced
from team.model.events import FinishReason, Outcome, RequestHeader
from team.model.history import (
    AssistantEntry,
    HeaderEntry,
    HistoryEntry,
    SummaryEntry,
    ToolResultEntry,
    UserEntry,
)
from team.model.ids import SessionId, TeamId, TurnId
from team.model.slices import FileSlice
from team.model.snapshots import HumanSource
from team.model.tools import LOCAL_PARAMETERS, local_tool
from team.model.values import Value

WORKSPACE_ID: Final = "workspace-of-the-test"
WAITING: Final = "waiting"

Status = Literal["queued", "running", "parked", "ended"]
CoordinatorTool = Callable[[str], str]
"""Arguments in, result out; ``WAITING`` leaves the call open."""


@dataclass
class FakeCall:
    pending: PendingCall
    result: ToolResultEntry | None = None


@dataclass
class FakeSession:
    session_id: str
    member: str
    model: str
    cwd: str
    seq: int = 0
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    inbox: list[str] = field(default_factory=list[str])
    files: dict[str, FileSlice] = field(default_factory=dict[str, FileSlice])

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def after(self, seq: int) -> tuple[HistoryEntry, ...]:
        return tuple(entry for entry in self.history if entry.seq > seq)


@dataclass
class FakeTurn:
    turn_id: str
    session: FakeSession
    status: Status = "queued"
    epoch: int = 0
    token: str = ""
    worker: str = ""
    workers: list[str] = field(default_factory=list[str])
    leased_until: float = 0.0
    due: float = 0.0
    dispatched_at: float = 0.0
    step: int = 0
    step_open: bool = False
    answered: bool = False
    finish: FinishReason = "stop"
    calls: list[FakeCall] = field(default_factory=list[FakeCall])
    reason: str | None = None
    code: str | None = None
    message: str | None = None
    losses: int = 0
    releases: int = 0
    backoffs: list[int] = field(default_factory=list[int])
    compacted: list[int] = field(default_factory=list[int])

    @property
    def unanswered(self) -> list[FakeCall]:
        return [call for call in self.calls if call.result is None]

    @property
    def results(self) -> list[ToolResultEntry]:
        return [entry for entry in self.session.history if isinstance(entry, ToolResultEntry)]


class FakeTurns:
    """The state. Every public method is one transaction under one lock."""

    def __init__(self, root: Path, *, lease_seconds: float) -> None:
        self.lock = threading.RLock()
        self.root = root
        self.lease_seconds = lease_seconds
        self.heartbeat_seconds = lease_seconds / 5
        self.sessions: dict[str, FakeSession] = {}
        self.turns: dict[str, FakeTurn] = {}
        self.tools: dict[str, CoordinatorTool] = {}
        self.tool_runs: list[tuple[str, str]] = []
        self.stopped: list[Held] = []
        self.beats: list[HeartbeatRequest] = []
        self.workspace_id = WORKSPACE_ID
        self.context_tokens = 0
        self._cancelled: set[tuple[str, int]] = set()
        self._claims: dict[str, Claim | None] = {}
        self._responses: dict[tuple[str, int, int], tuple[Value, Value]] = {}

    # What a test does.

    def begin(self, prompt: str, *, model: str, member: str = "lead", cwd: Path | None = None) -> FakeTurn:
        """A new Session with one queued turn."""
        with self.lock:
            session = FakeSession(f"session-{len(self.sessions) + 1}", member, model, str(cwd or self.root))
            self.sessions[session.session_id] = session
            header = RequestHeader(
                model=model,
                system="You work on a test.",
                tools=tuple(local_tool(name).to_wire() for name in LOCAL_PARAMETERS),
                digest="0",
            )
            session.history.append(HeaderEntry(seq=session.next_seq(), header=header))
            return self.prompt(session, prompt)

    def prompt(self, session: FakeSession, text: str) -> FakeTurn:
        """One more turn of a Session."""
        with self.lock:
            session.inbox.append(text)
            turn = FakeTurn(f"turn-{len(self.turns) + 1}-{secrets.token_hex(3)}", session)
            self.turns[turn.turn_id] = turn
            return turn

    def interrupt(self, turn: FakeTurn) -> None:
        """End the turn as the product does: epoch + 1, a result for each open call, confirmation expected."""
        with self.lock:
            if turn.status == "running":
                self._cancelled.add((turn.turn_id, turn.epoch))
            for call in turn.unanswered:
                self._settle(turn, call, "error", "interrupted")
            turn.epoch += 1
            turn.status, turn.reason = "ended", "aborted"

    def fence(self, turn: FakeTurn) -> None:
        """Take the claim away without a word: the next write meets a newer epoch."""
        with self.lock:
            turn.epoch += 1
            turn.status = "queued"

    def resolve(self, turn: FakeTurn, content: str) -> None:
        """Answer all waiting calls and queue the turn again."""
        with self.lock:
            for call in turn.unanswered:
                self._settle(turn, call, "ok", content)
            turn.status = "queued"

    def tick(self) -> list[FakeTurn]:
        """Reap lapsed leases and due back-offs; the queued turns whose dispatch is due."""
        now = time.monotonic()
        with self.lock:
            for turn in self.turns.values():
                if turn.status == "running" and turn.leased_until < now:
                    turn.status, turn.losses = "queued", turn.losses + 1
                elif turn.status == "parked" and 0 < turn.due < now:
                    turn.status, turn.due = "queued", 0.0
            due = [item for item in self.turns.values() if item.status == "queued" and item.dispatched_at < now - 1.0]
            for turn in due:
                turn.dispatched_at = now
            return due

    # What the worker API does.

    def hello(self) -> WorkerHello:
        return WorkerHello(
            workspace_id=self.workspace_id,
            workspace_root=str(self.root),
            lease_seconds=self.lease_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
        )

    def claim(self, request: ClaimRequest) -> Claim | None:
        with self.lock:
            if request.request_id not in self._claims:
                self._claims[request.request_id] = self._claim(request)
            return self._claims[request.request_id]

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        now = time.monotonic()
        with self.lock:
            self.beats.append(request)
            renewed: list[Held] = []
            cancelled: list[Held] = []
            for held in request.stopped:
                self.stopped.append(held)
                self._cancelled.discard((held.turn_id, held.epoch))
            for held in request.claims:
                turn = self.turns[held.turn_id]
                if turn.status == "running" and turn.epoch == held.epoch:
                    turn.leased_until = now + self.lease_seconds
                    renewed.append(held)
                elif (held.turn_id, held.epoch) in self._cancelled:
                    cancelled.append(held)
            return HeartbeatResult(renewed=tuple(renewed), cancelled=tuple(cancelled))

    def write(self, turn_id: str, token: str, request: Write) -> Value:
        """One fenced write; a repeated number with the same body returns what was recorded."""
        with self.lock:
            key = (turn_id, request.epoch, request.number)
            turn = self.turns[turn_id]
            if key in self._responses:
                recorded, response = self._responses[key]
                if recorded != request:
                    raise TurnConflict(f"write {request.number} was repeated with another body")
                return response
            if turn.status != "running" or turn.epoch != request.epoch or turn.token != token:
                raise TurnFenced("the claim is over")
            response = self._apply(turn, request)
            self._responses[key] = (request, response)
            return response

    def _claim(self, request: ClaimRequest) -> Claim | None:
        self.tick()
        queued = [turn for turn in self.turns.values() if turn.status == "queued"]
        wanted = [turn for turn in queued if turn.turn_id == request.turn_id]
        if not queued:
            return None
        turn = (wanted or queued)[0]
        turn.status, turn.epoch, turn.token = "running", turn.epoch + 1, secrets.token_hex(8)
        turn.worker, turn.leased_until = request.worker, time.monotonic() + self.lease_seconds
        turn.workers.append(request.worker)
        session = turn.session
        known = request.known.get(session.session_id, 0)
        return Claim(
            turn_id=TurnId(turn.turn_id),
            epoch=turn.epoch,
            token=turn.token,
            session_id=SessionId(session.session_id),
            team_id=TeamId("session-1"),
            member=session.member,
            model=session.model,
            cwd=session.cwd,
            workspace_id=self.workspace_id,
            step=turn.step if turn.step_open else 0,
            answered=turn.step_open and turn.answered,
            compacted=turn.step_open and turn.step in turn.compacted,
            pending=tuple(call.pending for call in turn.unanswered) if turn.step_open else (),
            history_after=known,
            history=session.after(known),
            files=tuple(session.files.values()),
            local_tools=tuple(LOCAL_PARAMETERS),
            limits=Limits(
                max_steps=50,
                lease_seconds=self.lease_seconds,
                output_bytes=30_000,
                context_tokens=self.context_tokens,
            ),
        )

    def _apply(self, turn: FakeTurn, request: Write) -> Value:
        match request:
            case BoundaryRequest():
                return self._boundary(turn, request)
            case AnswerRequest():
                return self._answer(turn, request)
            case CompactRequest():
                return self._compact(turn, request)
            case IntentRequest():
                call = self._call(turn, request.step, request.index)
                update = {"intent_path": request.path, "intent_before": request.before, "intent_after": request.after}
                call.pending = call.pending.model_copy(update=update)
                return Acknowledged(seq=turn.session.next_seq())
            case ResultRequest():
                call = self._call(turn, request.step, request.index)
                turn.session.files.update({item.path: item for item in request.observed})
                turn.session.cwd = request.cwd or turn.session.cwd
                return ToolResult(state="done", entry=self._settle(turn, call, request.outcome, request.content))
            case ToolRequest():
                return self._tool(turn, self._call(turn, request.step, request.index))
            case BackoffRequest():
                turn.status, turn.due = "parked", time.monotonic() + request.delay_ms / 1000
                turn.backoffs.append(request.delay_ms)
            case FailRequest():
                turn.status, turn.reason, turn.code, turn.message = "ended", "error", request.code, request.message
            case ReleaseRequest():
                turn.status, turn.releases, turn.dispatched_at = "queued", turn.releases + 1, 0.0
            case _:
                raise TurnConflict(f"{type(request).__name__} is no write of a claim")
        return Acknowledged(seq=turn.session.next_seq())

    def _boundary(self, turn: FakeTurn, request: BoundaryRequest) -> BoundaryResult:
        session = turn.session
        if turn.step_open:
            open_calls = turn.unanswered
            if not turn.answered or any(not call.pending.waiting for call in open_calls):
                raise TurnConflict("the open step is not finished")
            if open_calls:
                turn.status = "parked"
                return BoundaryResult(action="parked")
            turn.step_open = False
            if not turn.calls and not session.inbox:
                turn.status, turn.reason = "ended", "completed" if turn.finish == "stop" else turn.finish
                return BoundaryResult(action="ended", reason=turn.reason)
        turn.step, turn.step_open, turn.answered, turn.calls = turn.step + 1, True, False, []
        for text in session.inbox:
            block: tuple[ContentBlock, ...] = (TextBlock(text=text),)
            session.history.append(UserEntry(seq=session.next_seq(), content=block, source=HumanSource()))
        session.inbox.clear()
        return BoundaryResult(action="step", step=turn.step, history=session.after(request.history_after))

    def _answer(self, turn: FakeTurn, request: AnswerRequest) -> AnswerResult:
        if not turn.step_open or turn.answered or request.step != turn.step:
            raise TurnConflict("the turn is at another step")
        seq = turn.session.next_seq()
        entry = AssistantEntry(
            seq=seq,
            model=request.model,
            content=request.content,
            provider_detail=request.provider_detail,
            context_tokens=request.usage.input_tokens + request.usage.output_tokens,
        )
        turn.session.history.append(entry)
        turn.answered, turn.finish = True, request.finish_reason
        blocks = [block for block in request.content if isinstance(block, ToolCallBlock)]
        turn.calls = [
            FakeCall(
                PendingCall(
                    step=turn.step, index=index, call_id=block.call_id, name=block.name, arguments=block.arguments
                )
            )
            for index, block in enumerate(blocks)
        ]
        return AnswerResult(seq=seq, content=request.content, calls=tuple(call.pending for call in turn.calls))

    def _compact(self, turn: FakeTurn, request: CompactRequest) -> CompactResult:
        if not turn.step_open or turn.answered or request.step != turn.step or request.step in turn.compacted:
            raise TurnConflict("nothing to compact")
        turn.compacted.append(request.step)
        seq = turn.session.next_seq()
        turn.session.history.append(SummaryEntry(seq=seq, summary=request.summary, context="who you are"))
        return CompactResult(seq=seq, history=turn.session.after(request.history_after))

    def _tool(self, turn: FakeTurn, call: FakeCall) -> ToolResult:
        if call.result is not None:
            return ToolResult(state="done", entry=call.result)
        if call.pending.waiting:
            return ToolResult(state="waiting")
        tool = self.tools.get(call.pending.name)
        self.tool_runs.append((call.pending.name, call.pending.arguments))
        if tool is None:
            unknown = json.dumps({"error": {"code": "TOOL_UNKNOWN", "message": f"no tool {call.pending.name}"}})
            return ToolResult(state="done", entry=self._settle(turn, call, "error", unknown))
        content = tool(call.pending.arguments)
        if content == WAITING:
            call.pending = call.pending.model_copy(update={"waiting": True})
            return ToolResult(state="waiting")
        return ToolResult(state="done", entry=self._settle(turn, call, "ok", content))

    def _call(self, turn: FakeTurn, step: int, index: int) -> FakeCall:
        if not turn.step_open or step != turn.step or index >= len(turn.calls):
            raise TurnConflict("no such call in the open step")
        return turn.calls[index]

    def _settle(self, turn: FakeTurn, call: FakeCall, outcome: Outcome, content: str) -> ToolResultEntry:
        if call.result is not None:
            raise TurnConflict(f"call {call.pending.call_id} has its result")
        call.result = ToolResultEntry(
            seq=turn.session.next_seq(),
            index=call.pending.index,
            call_id=call.pending.call_id,
            outcome=outcome,
            content=content,
        )
        turn.session.history.append(call.result)
        return call.result


def last_text(turn: FakeTurn) -> str:
    """The newest answer's text."""
    answers = [entry for entry in turn.session.history if isinstance(entry, AssistantEntry)]
    return text_of(answers[-1].content) if answers else ""
