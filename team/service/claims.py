"""Claiming: which queued turn a worker gets, and everything that it needs to go on with it."""

from collections.abc import Mapping
from typing import Final

import structlog

from config.models import context_window
from team.log import delegations, projections, runs, sessions
from team.log.delegations import Delegation
from team.log.events import read_history
from team.log.runs import Run, ids_of
from team.log.transaction import Claimed, Transaction
from team.model.claims import Claim, ClaimRequest, Limits
from team.model.errors import LogDamaged, ProfileUnknown
from team.model.ids import SessionId, new_token
from team.model.tools import LOCAL_PARAMETERS
from team.rules import children, turns
from team.service.store import Store

_log = structlog.get_logger(__name__)

CANDIDATES: Final = 8
"""Queued turns that one claim looks at."""


class _UnreadableError(Exception):
    """Rolls a claim back whose turn cannot run here."""

    def __init__(self, run: Run, code: str, fault: str) -> None:
        super().__init__(fault)
        self.run, self.code, self.fault = run, code, fault


class _LostChildError(Exception):
    """Rolls a claim back that found a child whose state cannot be read, and for which a call waits."""

    def __init__(self, child: Run, delegation: Delegation, fault: str) -> None:
        super().__init__(fault)
        self.child, self.delegation, self.fault = child, delegation, fault


def claim_turn(store: Store, request: ClaimRequest) -> Claim | None:
    """See ``TurnService.claim``."""

    def claim(tx: Transaction) -> Claim | None:
        earlier = runs.find_request(tx.connection, request.request_id)
        if earlier is not None:
            tx.lock_sessions(earlier.session_id)
            current = runs.find_request(tx.connection, request.request_id)
            return None if current is None else claim_of(store, tx, current, request.known)
        for candidate in _candidates(tx, request):
            try:
                claimed = _try_claim(store, tx, candidate, request)
            except LogDamaged as error:
                waiting = delegations.find_delegation(tx.connection, candidate.session_id)
                if waiting is not None and waiting.ended_turn is None:
                    raise _LostChildError(candidate, waiting, error.message) from error
                # Its very state is unreadable, so its turn cannot even be ended; everyone else goes on.
                _log.error("turn passed over", **ids_of(candidate), fault=error.message)  # noqa: TRY400 -- the text says it all
                continue
            if claimed is not None:
                try:
                    return claim_of(store, tx, claimed, request.known)
                except LogDamaged as error:
                    raise _UnreadableError(candidate, "log-damaged", error.message) from error
                except ProfileUnknown as error:
                    raise _UnreadableError(candidate, "configuration", error.message) from error
        return None

    while True:
        try:
            return store.writing(claim)
        except _UnreadableError as found:
            _end_unreadable(store, found)
        except _LostChildError as found:
            _tell_parent(store, found)


def _end_unreadable(store: Store, found: _UnreadableError) -> None:
    unreadable = found.run

    def end(tx: Transaction) -> None:
        tx.lock_team(unreadable.team_id)
        header = sessions.find_session(tx.connection, unreadable.session_id).header
        tx.lock_sessions(*turns.sessions_of_end(tx, header))
        run, turn = runs.find_run(tx.connection, unreadable.turn_id), tx.open_turn(unreadable.session_id)
        if run is None or turn is None or run.state != "queued":
            return
        turn = turns.abandon_calls(tx, run.session_id, turn, turns.LOST_CALL)
        turns.end(tx, run.session_id, turn, "error", code=found.code, message=found.fault)

    store.writing(end)


def _tell_parent(store: Store, found: _LostChildError) -> None:
    def tell(tx: Transaction) -> None:
        tx.lock_team(found.child.team_id)
        delegation = delegations.find_delegation(tx.connection, found.child.session_id)
        run = runs.find_run(tx.connection, found.delegation.turn_id)
        if delegation is None or run is None:
            delegations.drop_delegation(tx.connection, found.child.session_id)
            return
        tx.lock_sessions(run.session_id)
        children.tell_unreadable(tx, delegation, found.fault)

    store.writing(tell)


def _candidates(tx: Transaction, request: ClaimRequest) -> list[Run]:
    wanted = runs.find_run(tx.connection, request.turn_id) if request.turn_id else None
    named = [wanted] if wanted and wanted.state == "queued" and wanted.queue in request.queues else []
    return [*named, *runs.queued_runs(tx.connection, request.queues, tx.now, CANDIDATES)]


def _try_claim(store: Store, tx: Transaction, candidate: Run, request: ClaimRequest) -> Run | None:
    if candidate.turn_id == request.turn_id and not tx.has_locks:
        # The turn that this task is about is worth a wait: whoever holds its Session is about to commit.
        tx.lock_sessions(candidate.session_id)
    elif not tx.try_lock_session(candidate.session_id):
        return None
    guarded_until = tx.session(candidate.session_id).guard_until
    run = runs.find_run(tx.connection, candidate.turn_id)
    if run is None or run.state != "queued" or (guarded_until is not None and guarded_until > tx.now):
        return None
    claimed = runs.claim_run(
        tx.connection,
        run,
        worker=request.worker,
        token=new_token(),
        request_id=request.request_id,
        now=tx.now,
        lease_until=tx.now + store.settings.lease_seconds,
    )
    if not claimed:
        return None
    tx.effects.claimed.append(Claimed(run, request.worker, run.epoch + 1, max(0.0, tx.now - run.state_since)))
    return runs.find_run(tx.connection, run.turn_id)


def claim_of(store: Store, tx: Transaction, run: Run, known: Mapping[str, int]) -> Claim:
    """The claim of a running turn whose Session is locked; the history starts behind what ``known`` says of it.

    Raises LogDamaged when the log cannot be read, ProfileUnknown.
    """
    settings, session_id = store.settings, run.session_id
    head, turn = tx.head(session_id), tx.open_turn(session_id)
    assert turn is not None
    assert run.token is not None
    profile = store.profile_of(tx, session_id)
    after = known.get(session_id, 0)
    if after > head.seq or after < head.compacted_seq:
        after = 0
    model = model_of(store, tx, session_id)
    return Claim(
        turn_id=run.turn_id,
        epoch=run.epoch,
        token=run.token,
        session_id=session_id,
        team_id=run.team_id,
        member=run.member,
        model=model,
        cwd=head.cwd,
        workspace_id=store.workspace_id,
        step=turn.step if turn.step_open else 0,
        answered=turn.step_open and turn.answered,
        compacted=turn.step_open and turn.compacted_step == turn.step,
        attempt=run.attempts,
        pending=turns.pending_calls(tx, session_id, turn) if turn.step_open else (),
        history_after=after,
        history=tuple(read_history(tx.connection, session_id, after, head.compacted_seq)),
        files=tuple(projections.files(tx.connection, session_id)),
        local_tools=tuple(tool for tool in profile.tools if tool in LOCAL_PARAMETERS),
        limits=Limits(
            max_steps=profile.max_steps or settings.max_steps,
            lease_seconds=settings.lease_seconds,
            output_bytes=settings.output_bytes,
            context_tokens=context_window(model, profile.context_windows, settings.context_windows),
        ),
    )


def model_of(store: Store, tx: Transaction, session_id: SessionId) -> str:
    """The model of a Session's requests: selected, else of its profile, else of the deployment."""
    profile = store.profile(tx.header(session_id).profile)
    return tx.head(session_id).model or profile.model or store.settings.model or "none"
