"""What a claim tells its worker: where the turn stands, and everything that it needs to go on."""

from collections.abc import Mapping

from team.log import projections
from team.log.events import read_history
from team.log.runs import Run
from team.log.transaction import Transaction
from team.model.claims import Claim, Limits
from team.model.ids import SessionId
from team.model.tools import LOCAL_PARAMETERS
from team.rules import turns
from team.service.store import Store


def claim_of(store: Store, tx: Transaction, run: Run, known: Mapping[str, int]) -> Claim:
    """The claim of a running turn whose Session is locked; the history starts behind what ``known`` says of it.

    Raises LogDamaged when the log cannot be read, ProfileUnknown.
    """
    settings, session_id = store.settings, run.session_id
    head, turn = tx.head(session_id), tx.open_turn(session_id)
    assert turn is not None
    assert run.token is not None
    profile = store.profile(tx.header(session_id).profile)
    after = known.get(session_id, 0)
    if after > head.seq or after < head.compacted_seq:
        after = 0
    return Claim(
        turn_id=run.turn_id,
        epoch=run.epoch,
        token=run.token,
        session_id=session_id,
        team_id=run.team_id,
        member=run.member,
        model=model_of(store, tx, session_id),
        cwd=head.cwd,
        workspace_id=store.workspace_id,
        step=turn.step if turn.step_open else 0,
        answered=turn.step_open and turn.answered,
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
        ),
    )


def model_of(store: Store, tx: Transaction, session_id: SessionId) -> str:
    """The model of a Session's requests: selected, else of its profile, else of the deployment."""
    profile = store.profile(tx.header(session_id).profile)
    return tx.head(session_id).model or profile.model or store.settings.model or "none"
