"""The core in one process: services over a fresh database, and an agent that plays the worker's part by hand."""

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, event, text

from config.settings import Settings
from team.log import runs
from team.log.database import Database
from team.log.events import read_events, stream_events
from team.log.runs import Run
from team.log.sessions import find_session
from team.log.tables import Row
from team.log.transaction import Effects, Transaction
from team.model.claims import (
    AnswerRequest,
    AnswerResult,
    BoundaryRequest,
    BoundaryResult,
    Claim,
    ClaimRequest,
    ResultRequest,
    ToolResult,
)
from team.model.content import ContentBlock, TextBlock, ToolCallBlock
from team.model.errors import TeamError
from team.model.events import Event, EventData, FinishReason, InboxInserted, UserMessage
from team.model.history import HistoryEntry, ToolResultEntry, UserEntry
from team.model.ids import SessionId, TeamId
from team.model.slices import HeadSlice
from team.model.snapshots import Context, MemberSnapshot
from team.model.views import SpawnView
from team.service.callers import Caller, CallRef, ClaimRef, Recorded
from team.service.recovery import RecoveryService
from team.service.scripts import Scripts
from team.service.sessions import SessionService
from team.service.store import Store
from team.service.subagents import SubagentService
from team.service.teams import TeamService
from team.service.turns import TurnService
from team.service.workflows import WorkflowService
from team.tools.catalog import request_header
from team.tools.execution import ToolExecutor

_R = TypeVar("_R")
Arguments = dict[str, Any]


class Vanished(BaseException):
    """A process that is gone: no handler of the product sees this."""

    def __init__(self, session_id: SessionId) -> None:
        super().__init__(session_id)
        self.session_id = session_id


def create_tables(url: str) -> None:
    database = Database(url)
    database.writing(Row.metadata.create_all)
    database.close()


def empty_tables(url: str) -> None:
    """Delete every row: much faster than a new PostgreSQL database."""
    database = Database(url)
    empty(database)
    database.close()


def empty(database: Database) -> None:
    """Delete every row of an open database."""
    names = [f'"{name}"' for name in Row.metadata.tables]
    statements = [f"DELETE FROM {name}" for name in names] if database.is_sqlite else [f"TRUNCATE {', '.join(names)}"]

    def body(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement))

    database.writing(body)


class Core:
    """Services over one database that has its tables. ``effects`` collects what each commit asked for.

    ``database`` is an open one to use, which then stays open: what it has prepared serves many tests.
    """

    def __init__(self, url: str, workspace: Path, database: Database | None = None, **settings: Any) -> None:
        workspace.mkdir(exist_ok=True)
        self.workspace = workspace
        self._lent = database is not None
        self.database = database or Database(url)
        self.effects: list[Effects] = []
        self.may_be_damaged = False
        chosen: dict[str, Any] = {"workspace_root": workspace, "model": "script:unused", **settings}
        self.store = Store(self.database, Settings(**chosen), request_header, self.effects.append, "workspace-1")
        self.sessions = SessionService(self.store)
        self.teams = TeamService(self.store)
        self.turns = TurnService(self.store)
        self.recovery = RecoveryService(self.store)
        self.subagents = SubagentService(self.store)
        self.scripts = Scripts()
        self.workflows = WorkflowService(self.store, self.scripts)
        self.tools = ToolExecutor(self.teams, self.subagents, self.turns, self.workflows)

    def close(self) -> None:
        self.scripts.close()
        if not self._lent:
            self.database.close()

    # What people do.

    def lead(self, prompt: str | None = None, profile: str = "team") -> SessionId:
        """A new root; with a prompt its first turn is queued."""
        created = self.sessions.create(
            cwd=str(self.workspace), profile=profile, model=None, prompt=prompt, actor="tester", once=None
        )
        return created.id

    def prompt(self, session_id: str, words: str, *, steer: bool = False) -> str:
        delivery = "steer" if steer else "turn"
        return self.sessions.prompt(session_id, text=words, delivery=delivery, actor="tester", once=None).message_id

    def act(self, session_id: str, tool: str, /, **arguments: Any) -> Any:
        """Run a tool as this Session's member, on behalf of an operator; the decoded result."""
        outcome = self.tools.execute(Caller(SessionId(session_id), actor="tester"), tool, json.dumps(arguments))
        assert outcome is not None
        assert not isinstance(outcome, Recorded)
        return json.loads(outcome.model_dump_json(by_alias=True, exclude_none=True))

    def refused(self, session_id: str, tool: str, /, **arguments: Any) -> str:
        """The code of the error that a tool call raises."""
        try:
            result = self.act(session_id, tool, **arguments)
        except TeamError as error:
            return error.code
        raise AssertionError(f"{tool} was accepted: {result}")

    def spawn(self, lead: str, name: str, prompt: str = "begin", context: str = "fresh") -> SessionId:
        """An active teammate with its first turn queued."""
        self.act(lead, "spawn_teammate", name=name, description=f"does {name}", prompt=prompt, context=context)
        return self.sessions.member_session(lead, name)

    def idle(self, lead: str, name: str, prompt: str = "begin") -> SessionId:
        """An active teammate between turns."""
        member = self.spawn(lead, name, prompt)
        self.agent(member).finish("ready")
        return member

    def reserve_only(self, lead: str, name: str, context: str = "fresh") -> SessionId:
        """The first commit of a creation whose creator then vanishes; the reserved Session id."""

        def vanish(_caller: object, reserved: MemberSnapshot, _prompt: str) -> SpawnView:
            raise Vanished(reserved.id)

        teams = TeamService(self.store)
        setattr(teams, "_finish_spawn", vanish)  # noqa: B010 -- the crash is between the two commits
        caller = Caller(SessionId(lead), actor="tester")
        try:
            teams.spawn(caller, name=name, description="d", prompt="begin", context=cast("Context", context))
        except Vanished as vanished:
            return vanished.session_id
        raise AssertionError("the creation went through")

    # What workers do.

    def claim_request(self, turn_id: str | None = None, worker: str = "w1", **more: Any) -> ClaimRequest:
        return ClaimRequest.model_validate(
            {"request_id": secrets.token_hex(8), "worker": worker, "turn_id": turn_id, "queues": ("turns",), **more}
        )

    def agent(self, session_id: str, worker: str = "w1", **more: Any) -> "Agent":
        """Claim the queued turn of this Session."""
        run = self.run(session_id)
        assert run is not None, "the Session has no open turn"
        claim = self.turns.claim(self.claim_request(run.turn_id, worker, **more))
        assert claim is not None, f"the turn is {run.state}"
        assert claim.session_id == session_id
        return Agent(self, claim)

    def agent_of(self, claim: Claim) -> "Agent":
        return Agent(self, claim)

    # What the log and the rows say.

    def reading(self, body: Callable[[Connection], _R]) -> _R:
        with self.store.reading() as connection:
            return body(connection)

    def run(self, session_id: str) -> Run | None:
        return self.reading(lambda connection: runs.session_run(connection, session_id))

    def head(self, session_id: str) -> HeadSlice:
        return self.reading(lambda connection: find_session(connection, session_id).head)

    def statements(self, action: Callable[[], Any]) -> list[str]:
        """The SQL that an action sends, without its values."""
        sent: list[str] = []

        def note(_c: Any, _k: Any, statement: str, _p: Any, _x: Any, _m: Any) -> None:
            sent.append(statement)

        event.listen(self.database.engine, "before_cursor_execute", note)
        try:
            action()
        finally:
            event.remove(self.database.engine, "before_cursor_execute", note)
        return sent

    def head_team(self, session_id: str) -> TeamId:
        return self.reading(lambda connection: find_session(connection, session_id).header.team_id)

    def log(self, session_id: str) -> list[Event]:
        return self.reading(lambda connection: list(stream_events(connection, session_id)))

    def types(self, session_id: str, after: int = 0) -> list[str]:
        return [event.type for event in self.reading(lambda c: read_events(c, session_id, after))]

    def count(self) -> int:
        """All events of all Sessions."""
        return int(self.reading(lambda c: c.execute(text("SELECT count(*) FROM event")).scalar_one()))

    def messages(self, session_id: str) -> list[UserMessage]:
        """What the Session's history shows of its inbox, in order."""
        decoded = [event.decoded() for event in self.log(session_id)]
        return [d for d in decoded if isinstance(d, UserMessage) and d.source.kind != "runtime-context"]

    def notices(self, session_id: str) -> list[str]:
        """The settlement notices ever accepted into this inbox."""
        decoded = [event.decoded() for event in self.log(session_id)]
        return [
            words_of(data.content)
            for data in decoded
            if isinstance(data, InboxInserted) and data.source.kind == "settlement"
        ]

    def next_deadline_seconds(self) -> float | None:
        """Seconds until the next deadline of any open wait, or None without one."""

        def read(connection: Connection) -> float | None:
            earliest = connection.execute(text("SELECT min(deadline) FROM wait")).scalar_one()
            return None if earliest is None else float(earliest) - self.database.now(connection)

        return self.reading(read)

    def member(self, lead: str, name: str) -> Any:
        """One row of the roster as a model sees it."""
        return next(member for member in self.act(lead, "list_agents") if member["target"] == name)

    def task(self, lead: str, task_id: str) -> Any:
        return self.act(lead, "team_task_get", task_id=task_id)

    # What time and faults do.

    def sql(self, statement: str, **parameters: Any) -> None:
        """Change rows behind the product's back: only the clock's work, and damage."""
        self.database.writing(lambda connection: connection.execute(text(statement), parameters))

    def append(self, session_id: str, *data: EventData, locks: Sequence[str] = ()) -> None:
        """Append events as the coordinator would, without a service."""

        def body(tx: Transaction) -> None:
            tx.lock_team(find_session(tx.connection, session_id).header.team_id)
            tx.lock_sessions(SessionId(session_id), *(SessionId(lock) for lock in locks))
            for item in data:
                tx.append(SessionId(session_id), item)

        self.store.writing(body)

    def insert_raw(self, session_id: str, event_type: str, data: str, *, visible: bool = False) -> int:
        """Write a log line that this version would never write; returns its seq."""
        head = self.head(session_id)
        seq = head.seq + 1
        self.sql(
            "INSERT INTO event (session_id, seq, time, type, visible, data) VALUES (:s, :q, 't', :k, :v, :d)",
            s=session_id,
            q=seq,
            k=event_type,
            v=visible,
            d=data,
        )
        moved = head.model_copy(update={"seq": seq}).to_json()
        self.sql("UPDATE session SET head = :h, seq = :q WHERE id = :s", h=moved, q=seq, s=session_id)
        return seq

    def lose_worker(self, session_id: str) -> int:
        """The lease of this Session's claim runs out, and the reaper sees it."""
        self.sql("UPDATE run SET lease_until = 1 WHERE session_id = :s AND state = 'running'", s=session_id)
        return self.turns.reap()

    def pass_deadlines(self) -> int:
        """Every open wait's deadline passes, and the timer sees it."""
        self.sql("UPDATE wait SET deadline = 1")
        return self.recovery.expire_waits()

    def wake(self, lead: str) -> int:
        return self.recovery.wake(TeamId(lead))


class Agent:
    """One claim, played by hand: it numbers its writes and keeps the history that it was shown."""

    def __init__(self, core: Core, claim: Claim) -> None:
        self.core, self.claim = core, claim
        self.ref = ClaimRef(claim.turn_id, claim.epoch, claim.token)
        self.history: list[HistoryEntry] = list(claim.history)
        self.step = claim.step
        self.answered = claim.answered
        self.written = 0
        self.answers = 0

    def numbered(self) -> dict[str, Any]:
        """Epoch and number of the next write."""
        self.written += 1
        return {"epoch": self.claim.epoch, "number": self.written}

    @property
    def seq(self) -> int:
        return max((entry.seq for entry in self.history), default=self.claim.history_after)

    def boundary(self) -> BoundaryResult:
        result = self.core.turns.boundary(self.ref, BoundaryRequest(**self.numbered(), history_after=self.seq))
        self.history.extend(result.history)
        self.step, self.answered = result.step, False
        return result

    def begin(self) -> list[str]:
        """Go to the next step; the texts of the messages that it claimed."""
        known = len(self.history)
        result = self.boundary()
        assert result.action == "step", result
        return [
            words_of(entry.content)
            for entry in self.history[known:]
            if isinstance(entry, UserEntry) and entry.source.kind != "runtime-context"
        ]

    def answer(
        self, *blocks: ContentBlock, finish: FinishReason = "stop", step: int | None = None, **more: Any
    ) -> AnswerResult:
        if self.step == 0 or self.answered:
            self.begin()
        request = AnswerRequest(
            **self.numbered(),
            step=self.step if step is None else step,
            model="m",
            content=tuple(blocks),
            finish_reason=finish,
            **more,
        )
        result = self.core.turns.answer(self.ref, request)
        self.answered = True
        return result

    def ask(self, *calls: tuple[str, Arguments]) -> AnswerResult:
        """Answer with tool calls."""
        self.answers += 1
        blocks = [
            ToolCallBlock(
                call_id=f"{self.claim.turn_id}-{self.claim.epoch}-{self.answers}-{index}",
                name=name,
                arguments=json.dumps(arguments),
            )
            for index, (name, arguments) in enumerate(calls)
        ]
        return self.answer(*blocks, finish="tool-calls")

    def run_call(self, index: int = 0, step: int | None = None) -> ToolResult:
        return self.core.tools.run_call(CallRef(self.ref, self.step if step is None else step, index))

    def local_result(self, index: int = 0, content: str = "done", **more: Any) -> ToolResult:
        fields: dict[str, Any] = {"step": self.step, "index": index, "outcome": "ok", "content": content, **more}
        return self.core.turns.result(self.ref, ResultRequest(**self.numbered(), **fields))

    def call(self, tool: str, **arguments: Any) -> Any:
        """One step with one coordinator-side call: its decoded result, or None when it waits now."""
        self.ask((tool, arguments))
        result = self.run_call()
        return None if result.state == "waiting" else decoded(result)

    def wait(self, timeout_ms: int | None = None) -> str:
        """One step that calls wait_agent, and the boundary behind it: 'parked', or 'step' when it got its result."""
        arguments = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
        self.call("wait_agent", **arguments)
        return self.boundary().action

    def finish(self, words: str = "done", finish: FinishReason = "stop") -> BoundaryResult:
        """Say something and end the turn, unless input keeps it going."""
        self.answer(TextBlock(text=words), finish=finish)
        return self.boundary()

    def last_result(self) -> Any:
        """The newest tool result that this agent was shown, decoded."""
        return json.loads(next(e.content for e in reversed(self.history) if isinstance(e, ToolResultEntry)))


def words_of(blocks: tuple[ContentBlock, ...]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def decoded(result: ToolResult) -> Any:
    assert isinstance(result.entry, ToolResultEntry)
    return json.loads(result.entry.content)


def code_of(result: Any) -> str:
    """The error code in a decoded tool result."""
    return str(result["error"]["code"])


def together(*actions: Callable[[], Any]) -> list[Any]:
    """Run the actions at once, each on its own thread; their results, or what they raised, in order."""
    barrier = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)

    def run(place: int, action: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[place] = action()
        except Exception as error:  # noqa: BLE001 -- the test judges every outcome
            results[place] = error

    threads = [threading.Thread(target=run, args=(place, action)) for place, action in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def codes(results: Sequence[Any]) -> list[str]:
    """What became of each: 'ok', or the code of its error. Any other exception is raised."""
    found: list[str] = []
    for result in results:
        if isinstance(result, TeamError):
            found.append(result.code)
        elif isinstance(result, BaseException):
            raise result
        else:
            found.append("ok")
    return found
