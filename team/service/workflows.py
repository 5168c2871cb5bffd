"""WorkflowService: the call that runs a script of agents, and what any coordinator does to bring it on.

A step of a workflow is two transactions with a run of the script between them. The first takes the answers of ended
children into the log and takes the run; the second, if nobody else has taken it since, appends what the script asked
for and begins the agents. A crash anywhere leaves a state from which the next coordinator does the same again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection

from config import faults
from team.log import delegations, projections, sessions, workflows
from team.log.transaction import Transaction
from team.log.workflows import Workflow, WorkflowKey
from team.model.errors import InvalidArgument, StoreUnavailable
from team.model.ids import TurnId
from team.model.slices import CallSlice
from team.model.snapshots import SessionHeader
from team.model.values import Json, JsonObject
from team.model.views import WorkflowStateView
from team.rules import capture, children, waiting, workflow
from team.rules.children import PROFILE, Order
from team.service.callers import Caller, Recorded, open_call, record_result
from team.service.scripts import Ask, Bounds, Failed, Note, Outcome, Past, Pause, Returned, SandboxLost, Script, Scripts
from team.service.store import Store

_log = structlog.get_logger(__name__)

ATTEMPTS: Final = 3
"""Runs without an outcome after which a workflow fails: a script must not kill coordinators for ever."""

_SPARE_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
ACCEPTED: Final = '{"status":"accepted"}'


@dataclass(frozen=True)
class WorkflowRequest:
    """What the call asks for; ``args`` is any JSON value that the script gets."""

    name: str
    script: str
    description: str | None = None
    args: Json = None


@dataclass(frozen=True)
class _Taken:
    """One taken run: everything that the script needs."""

    workflow: Workflow
    script: Script
    past: Past
    batches: int


class WorkflowService:
    """Begins workflows and brings them on. Safe with several coordinators and threads."""

    def __init__(self, store: Store, scripts: Scripts) -> None:
        self._store, self._scripts = store, scripts

    def begin(self, caller: Caller, request: WorkflowRequest) -> Recorded | None:
        """Begin a workflow; the call waits for it. Idempotent by the call.

        Raises InvalidArgument, SubagentDepth, TurnFenced.
        """
        if caller.call is None:
            raise InvalidArgument("Only a turn can run a workflow: its call waits for the result.")
        size, limit = len(request.script.encode()), self._store.settings.max_workflow_script_bytes
        if not request.script.strip() or size > limit:
            raise InvalidArgument(f"The script has {size} bytes; it needs some, and {limit} is the limit.")

        def begin(tx: Transaction) -> Recorded | None:
            header = sessions.find_session(tx.connection, caller.session_id).header
            tx.lock_team(header.team_id)
            tx.lock_sessions(header.id)
            assert caller.call is not None
            call = open_call(tx, caller.call)
            if isinstance(call, Recorded):
                return call
            if not waiting.is_registered(tx, call):
                workflow.begin(
                    tx,
                    header,
                    call,
                    name=request.name,
                    description=request.description,
                    script=request.script,
                    args=json.dumps(request.args, ensure_ascii=False),
                )
            return None

        return self._store.writing(begin)

    def report(self, caller: Caller, schema: JsonObject, arguments: str) -> Recorded:
        """Accept the result that a child must report. Raises ResultInvalid, TurnFenced."""

        def report(tx: Transaction) -> Recorded:
            tx.lock_sessions(caller.session_id)
            assert caller.call is not None
            call = open_call(tx, caller.call)
            if isinstance(call, Recorded):
                return call
            capture.require_valid(tx, schema, arguments)
            entry = record_result(tx, caller, "ok", ACCEPTED)
            assert entry is not None
            return Recorded(entry)

        return self._store.writing(report)

    def due(self) -> Sequence[WorkflowKey]:
        """The workflows that have something to do and that nobody runs now."""
        with self._store.reading() as connection:
            return workflows.due_workflows(connection, self._store.database.now(connection))

    def advance(self, key: WorkflowKey) -> bool:
        """Bring one workflow on to its next wait or its end; False when there was nothing to run.

        Raises StoreUnavailable, and whatever an attempt meets: it is counted, and after some the workflow fails.
        """
        try:
            taken = self._store.writing(lambda tx: self._take(tx, key))
        except StoreUnavailable:
            raise
        except Exception:
            self._store.writing(lambda tx: self._put_off(tx, key))
            raise
        if taken is None:
            return False
        found = taken.workflow
        pause = None
        if found.snapshot is not None and found.engine is not None:
            pending = {int(call): item for call, item in json.loads(found.pending).items()}
            pause = Pause(found.snapshot, pending, found.engine)
        try:
            outcome = self._scripts.run(taken.script, self._bounds(), taken.past, pause, found.delivered)
        except SandboxLost as error:
            _log.warning("sandbox lost", turn=key.turn_id, error=str(error)[:300])
            self._store.writing(lambda tx: self._release(tx, taken))
            return True
        faults.reached("in-workflow")
        self._store.writing(lambda tx: self._commit(tx, taken, outcome))
        return True

    def _take(self, tx: Transaction, key: WorkflowKey) -> _Taken | None:
        """Take answers, begin agents, and take the run if the script has something to do."""
        unlocked = workflows.find_workflow(tx.connection, key)
        spent = unlocked is not None and unlocked.attempts >= ATTEMPTS
        header = self._lock(tx, key, also_children=spent)
        found = workflows.find_workflow(tx.connection, key)
        if header is None or found is None or (found.busy_until is not None and found.busy_until > tx.now):
            return None
        if found.attempts >= ATTEMPTS and not spent:
            return None
        if spent:
            workflow.fail(tx, found, f"The script could not be brought on in {found.attempts} attempts.")
            return None
        has_news = workflow.go_on(tx, found, self._model(tx, header)) or found.due
        state = workflow.state_of(tx, found)
        if not has_news:
            return None
        busy_until = tx.now + self._store.settings.workflow_run_seconds + _SPARE_SECONDS
        values = {
            "due": True,
            "busy_until": busy_until,
            "revision": found.revision + 1,
            "attempts": found.attempts + 1,
        }
        workflows.update_workflow(tx.connection, key, **values)
        started = workflow.started_of(tx, found)
        tx.flush()
        records = workflow.records_of(tx, found)
        asks = [Ask(one.label, one.prompt, one.output_schema, one.tools, one.phase) for one in records.asked]
        batches = [dict[int, Json]() for _ in range(state.batches)]
        for answer in records.answered:
            batches[answer.batch - 1][answer.item] = json.loads(answer.value)
        past = Past(asks, state.progress, state.phase, batches)
        script = Script(started.script, json.loads(started.args), seed=found.call_id)
        taken = workflows.find_workflow(tx.connection, key)
        assert taken is not None
        return _Taken(taken, script, past, state.batches)

    def _put_off(self, tx: Transaction, key: WorkflowKey) -> None:
        """Count an attempt that failed before the script ran, and let the next one wait: it may fail for ever."""
        found = workflows.find_workflow(tx.connection, key)
        if found is not None:
            busy_until = tx.now + min(2.0**found.attempts, _LONGEST_PAUSE_SECONDS)
            workflows.update_workflow(tx.connection, key, due=True, busy_until=busy_until, attempts=found.attempts + 1)

    def _commit(self, tx: Transaction, taken: _Taken, outcome: Outcome) -> None:
        """Append what a run brought, unless another one was taken since."""
        final = not isinstance(outcome.end, Pause)
        header = self._lock(tx, taken.workflow.key, also_children=final)
        found = workflows.find_workflow(tx.connection, taken.workflow.key)
        if header is None or found is None or found.revision != taken.workflow.revision:
            return
        for record in outcome.records:
            if isinstance(record, Note):
                workflow.note(tx, found, record.kind, record.text)
            else:
                order = Order(record.label, record.prompt, "one-shot", tools=record.tools, capture=record.schema)
                workflow.ask(tx, found, order, record.phase)
        match outcome.end:
            case Pause(snapshot=snapshot, pending=pending, engine=engine):
                has_news = workflow.go_on(tx, found, self._model(tx, header))
                workflows.update_workflow(
                    tx.connection,
                    found.key,
                    due=has_news,
                    busy_until=None,
                    attempts=0,
                    engine=engine,
                    snapshot=snapshot,
                    pending=json.dumps(dict(pending)),
                    delivered=taken.batches,
                )
                # A child that ended during the run told nobody who could run the script then.
                tx.effects.workflows.add(TurnId(found.turn_id))
            case Returned(value=value):
                workflow.finish(tx, found, value)
            case Failed(message=message):
                workflow.fail(tx, found, message)

    def _release(self, tx: Transaction, taken: _Taken) -> None:
        """Let the next attempt begin at once."""
        self._lock(tx, taken.workflow.key, also_children=False)
        found = workflows.find_workflow(tx.connection, taken.workflow.key)
        if found is not None and found.revision == taken.workflow.revision:
            workflows.update_workflow(tx.connection, found.key, busy_until=None)
            tx.effects.workflows.add(TurnId(found.turn_id))

    def _lock(self, tx: Transaction, key: WorkflowKey, *, also_children: bool) -> SessionHeader | None:
        """Lock the Team and the caller of a workflow, and what its end may write; None when it has ended."""
        found = workflows.find_workflow(tx.connection, key)
        if found is None:
            return None
        tx.lock_team(found.team_id)
        below = children.awaited(tx.connection, found.session_id) if also_children else []
        tx.lock_sessions(found.session_id, *below)
        return tx.header(found.session_id)

    def _model(self, tx: Transaction, header: SessionHeader) -> str | None:
        """An agent speaks to its caller's model, also when that comes from the caller's profile."""
        return None if tx.head(header.id).model is not None else self._store.profile(header.profile).model

    def _bounds(self) -> Bounds:
        settings = self._store.settings
        return Bounds(
            agents=settings.max_workflow_agents,
            notes=settings.max_workflow_notes,
            run_seconds=settings.workflow_run_seconds,
            memory_bytes=settings.workflow_memory_bytes,
            prompt_bytes=settings.max_message_bytes,
            tools=self._store.profile(PROFILE).tools,
        )


def workflow_states(connection: Connection, team_id: str) -> list[WorkflowStateView]:
    """What the open workflows of a Team's tree have come to, for operators."""
    states: list[WorkflowStateView] = []
    for found in workflows.team_workflows(connection, team_id):
        try:
            call = projections.load(connection, found.session_id, ("call", found.call_id))
        except ValidationError:
            continue  # told as the fault of its Session by whoever reads that
        if not isinstance(call, CallSlice) or call.workflow is None:
            continue
        state = call.workflow
        expected = delegations.call_delegations(connection, found.turn_id, found.step, found.index)
        running = sum(delegation.ended_turn is None for delegation in expected)
        states.append(
            WorkflowStateView(
                session_id=found.session_id,
                call_id=found.call_id,
                name=state.name,
                phase=state.phase,
                note=state.note,
                agents=len(state.items),
                running=running,
                waiting=len(state.open_items) - len(expected),
                failed=state.failed,
            )
        )
    return states
