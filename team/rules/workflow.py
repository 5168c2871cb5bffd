"""Workflows: a call that runs a script of agents (DESIGN section 7). All rules need the Team and the caller locked.

The script itself runs outside of any transaction (``service.workflows``); what it asks for and what it is given are
events of the caller's log. An agent is a one-shot child: its id follows from the call and its number, so whoever does a
step of a workflow again finds the children of the first time.
"""

import json
from dataclasses import dataclass
from typing import Final, Literal

from team.log import delegations, runs, sessions, waits, workflows
from team.log.transaction import Transaction
from team.log.workflows import Workflow
from team.model.errors import LogDamaged, TeamError, WorkflowFailed, error_json
from team.model.events import (
    WorkflowAnswered,
    WorkflowAsked,
    WorkflowEnded,
    WorkflowProgressed,
    WorkflowStarted,
)
from team.model.ids import SessionId, TurnId, child_session_id
from team.model.slices import CallSlice
from team.model.snapshots import SessionHeader
from team.model.views import WorkflowFailureView, WorkflowView
from team.model.workflow_state import WorkflowState
from team.rules import capture, children, turns
from team.rules.children import Ending, Order
from team.rules.queue import resume_if_free
from team.rules.results import give_result

MAX_FAILURES: Final = 10
"""Failed agents that a result names."""


def begin(
    tx: Transaction,
    header: SessionHeader,
    call: CallSlice,
    *,
    name: str,
    description: str | None,
    script: str,
    args: str,
) -> None:
    """Begin the workflow of a call, or go on with one whose log was imported; the call waits from here on.

    Raises SubagentDepth, InvalidArgument.
    """
    children.require_order(tx, header, Order(label=name, prompt=name, mode="one-shot"))
    if call.workflow is None:
        tx.append(
            header.id,
            WorkflowStarted(call_id=call.call_id, name=name, description=description, script=script, args=args),
        )
    workflow = Workflow(call.turn_id, call.step, call.index, header.id, header.team_id, call.call_id)
    workflows.insert_workflow(tx.connection, workflow)
    children.register_wait(tx, "workflow", header.id, call)
    tx.effects.workflows.add(TurnId(call.turn_id))


def call_of(tx: Transaction, workflow: Workflow) -> CallSlice:
    """The call of a workflow as it is now."""
    call = tx.find(workflow.session_id, ("call", workflow.call_id), CallSlice)
    assert call is not None
    return call


def state_of(tx: Transaction, workflow: Workflow) -> WorkflowState:
    """What the log says of a workflow as it is now."""
    state = call_of(tx, workflow).workflow
    assert state is not None
    return state


def started_of(tx: Transaction, workflow: Workflow) -> WorkflowStarted:
    started = tx.event(workflow.session_id, state_of(tx, workflow).start_seq)
    assert isinstance(started, WorkflowStarted)
    return started


def asked_of(tx: Transaction, workflow: Workflow, item: int) -> WorkflowAsked:
    asked = tx.event(workflow.session_id, state_of(tx, workflow).items[item].seq)
    assert isinstance(asked, WorkflowAsked)
    return asked


@dataclass(frozen=True)
class Records:
    """What a workflow has asked and been answered so far; ``asked`` is in order of the items."""

    asked: list[WorkflowAsked]
    answered: list[WorkflowAnswered]


def records_of(tx: Transaction, workflow: Workflow) -> Records:
    """The records of a workflow; what this transaction appended must be flushed."""
    found = workflows.read_records(tx.connection, workflow.session_id, state_of(tx, workflow).start_seq)
    own = [data for data in found if data.call_id == workflow.call_id]
    return Records(
        asked=[data for data in own if isinstance(data, WorkflowAsked)],
        answered=[data for data in own if isinstance(data, WorkflowAnswered)],
    )


def note(tx: Transaction, workflow: Workflow, kind: Literal["phase", "log"], text: str) -> None:
    """Append one progress record."""
    tx.append(workflow.session_id, WorkflowProgressed(call_id=workflow.call_id, kind=kind, text=text))


def ask(
    tx: Transaction,
    workflow: Workflow,
    order: Order,
    phase: str | None,
) -> None:
    """Append that the script asks for one more agent; ``go_on`` begins it."""
    item = len(state_of(tx, workflow).items)
    key = f"{workflow.turn_id}:{workflow.step}:{workflow.index}"
    tx.append(
        workflow.session_id,
        WorkflowAsked(
            call_id=workflow.call_id,
            item=item,
            child_id=child_session_id(workflow.session_id, key, item),
            label=order.label,
            prompt=order.prompt,
            output_schema=order.capture,
            tools=order.tools,
            phase=phase,
        ),
    )


def go_on(tx: Transaction, workflow: Workflow, model: str | None) -> bool:
    """Take the answers of children that have ended and begin agents that were asked for, up to the width.

    The new answers are one batch. ``model`` is the one of the caller's profile. True when there are new answers.
    """
    batch = state_of(tx, workflow).batches + 1
    expected = {
        found.child_id: found
        for found in delegations.call_delegations(tx.connection, workflow.turn_id, workflow.step, workflow.index)
    }
    running = 0
    for number in state_of(tx, workflow).open_items:
        child_id = state_of(tx, workflow).items[number].child_id
        delegation = expected.get(child_id)
        if delegation is None:
            continue
        if delegation.ended_turn is None:
            running += 1
        elif delegation.ended_turn == workflow.turn_id:
            delegations.drop_delegation(tx.connection, child_id)
            _answer(tx, workflow, number, batch, None, "it cannot be read, so it cannot go on")
        else:
            _take(tx, workflow, number, batch, children.take_ending(tx, delegation))
    for number in state_of(tx, workflow).open_items:
        child_id = state_of(tx, workflow).items[number].child_id
        if child_id not in expected and running < tx.settings.max_workflow_width:
            running += _begin_child(tx, workflow, number, batch, model)
    return state_of(tx, workflow).batches == batch


def _begin_child(tx: Transaction, workflow: Workflow, number: int, batch: int, model: str | None) -> bool:
    """Begin the child of an item, or join the one that is there; False when it has an answer already."""
    asked, call = asked_of(tx, workflow, number), call_of(tx, workflow)
    there = sessions.find_sessions(tx.connection, [asked.child_id]).get(asked.child_id)
    if there is not None:
        if there.header.parent_id != workflow.session_id:
            _answer(tx, workflow, number, batch, None, "its Session belongs to another parent")
            return False
        ended = children.last_ending(tx, asked.child_id)
        if ended is not None:
            _take(tx, workflow, number, batch, ended)
            return False
    else:
        order = Order(
            label=asked.label,
            prompt=asked.prompt,
            mode="one-shot",
            model=model,
            tools=asked.tools,
            capture=asked.output_schema,
        )
        try:
            children.require_order(tx, tx.header(workflow.session_id), order)
        except TeamError as error:
            _answer(tx, workflow, number, batch, None, error.message)
            return False
        children.create(tx, workflow.session_id, asked.child_id, order)
    children.expect(tx, asked.child_id, call)
    return True


def _take(tx: Transaction, workflow: Workflow, number: int, batch: int, ended: Ending) -> None:
    """The answer of a child that has ended."""
    asked = asked_of(tx, workflow, number)
    if ended.reason != "completed":
        _answer(tx, workflow, number, batch, None, ended.why)
    elif asked.output_schema is None:
        _answer(tx, workflow, number, batch, json.dumps(ended.text, ensure_ascii=False), None)
    else:
        try:
            turn = children.last_turn(tx, asked.child_id)
            value = None if turn is None else capture.reported(tx, asked.child_id, turn)
        except LogDamaged as error:
            _answer(tx, workflow, number, batch, None, f"it cannot be read: {error.message}")
            return
        _answer(tx, workflow, number, batch, value, None if value is not None else "it reported no result")


def _answer(tx: Transaction, workflow: Workflow, number: int, batch: int, value: str | None, error: str | None) -> None:
    tx.append(
        workflow.session_id,
        WorkflowAnswered(
            call_id=workflow.call_id,
            item=number,
            batch=batch,
            value="null" if value is None else value,
            error=None if error is None else error[:1_000],
        ),
    )


def finish(tx: Transaction, workflow: Workflow, value: str) -> None:
    """The script returned ``value``, JSON text: the call gets its result. Locked too: ``children.awaited``."""
    state = state_of(tx, workflow)
    limit = tx.settings.output_bytes
    cut = len(value.encode()) > limit
    result = value.encode()[:limit].decode(errors="ignore") if cut else json.loads(value)
    tx.flush()
    failed = [answer for answer in records_of(tx, workflow).answered if answer.error is not None]
    view = WorkflowView(
        result=result,
        cut=True if cut else None,
        agents=len(state.items),
        failed=len(failed),
        failures=tuple(
            WorkflowFailureView(label=state.items[answer.item].label, error=answer.error or "")
            for answer in failed[:MAX_FAILURES]
        )
        or None,
    )
    # The value itself may be null, which is left out elsewhere.
    content = json.dumps({"result": result} | view.to_wire(), ensure_ascii=False, separators=(",", ":"))
    _end(tx, workflow, "ok", content)


def fail(tx: Transaction, workflow: Workflow, message: str) -> None:
    """The script cannot go on: its running children end, the call gets the error. Locked too: ``children.awaited``."""
    state = state_of(tx, workflow)
    answered = len(state.items) - len(state.open_items)
    done = (
        f" {answered} of its {len(state.items)} agents had ended and the others were ended with it; what they did is "
        "in the checkout."
        if state.items
        else " No agent had begun."
    )
    text = f"{message}{done} Correct the script, then call workflow again for what is left to do."
    _end(tx, workflow, "error", error_json(WorkflowFailed.code, text))


def _end(tx: Transaction, workflow: Workflow, outcome: Literal["ok", "error"], content: str) -> None:
    wait = waits.find_wait(tx.connection, workflow.turn_id, workflow.step, workflow.index)
    assert wait is not None
    waits.take_wait(tx.connection, wait)
    workflows.drop_workflow(tx.connection, workflow.key)
    left = delegations.call_delegations(tx.connection, workflow.turn_id, workflow.step, workflow.index)
    for delegation in left:
        delegations.drop_delegation(tx.connection, delegation.child_id)
    tx.append(workflow.session_id, WorkflowEnded(call_id=workflow.call_id, outcome=outcome))
    give_result(tx, workflow.session_id, call_of(tx, workflow), outcome, content)
    for delegation in left:
        _end_child(tx, delegation.child_id)
    resume_if_free(tx, workflow.session_id, "its workflow ended")


def _end_child(tx: Transaction, child_id: SessionId) -> None:
    if not tx.is_locked(child_id):
        if children.is_running(tx.connection, child_id):
            raise RuntimeError("a workflow ends with children.awaited locked")
        return
    turn = tx.open_turn(child_id)
    if turn is not None:
        run = runs.lock_run(tx.connection, turn.turn_id)
        turns.abort(tx, child_id, turn, run, "the workflow that waited for it ended", notify=False)
