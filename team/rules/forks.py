"""Forks: the conversation of completed turns, and nothing else (DESIGN section 6)."""

from collections.abc import Iterable, Sequence

from team.log.events import stream_events
from team.log.transaction import Transaction
from team.model.events import CONVERSATION, Event, EventData, SessionModel, SubagentDescribed
from team.model.ids import SessionId
from team.model.snapshots import ForkOrigin, SessionHeader
from team.rules.times import iso_time


def completed_prefix(events: Iterable[Event]) -> tuple[list[EventData], int]:
    """The conversation events up to the end of the last completed turn, and that turn's seq.

    The turn that is open now is excluded; inbox, turn-state, wait, descriptor and workflow events are never copied.
    """
    kept: list[EventData] = []
    complete, through = 0, 0
    for event in events:
        if event.type in CONVERSATION:
            kept.append(event.decoded())
        elif event.type == "turn/end":
            complete, through = len(kept), event.seq
    return kept[:complete], through


def create_session(
    tx: Transaction,
    session_id: SessionId,
    source: SessionHeader,
    *,
    parent: SessionHeader | None,
    inherits: bool,
    model: str | None,
    profile: str | None = None,
    descriptor: SubagentDescribed | None = None,
) -> None:
    """Create a Session beside ``source``: its directory and model, its profile unless another is named, and its
    conversation when it inherits.

    In the log: the descriptor, then the seed, then the model. Without a parent it is a new root, and the Team records
    in its seed carry the ancestor's id, so they fold out. ``source`` must be locked.
    """
    seed, through = completed_prefix(stream_events(tx.connection, source.id)) if inherits else (list[EventData](), 0)
    first: Sequence[EventData] = [] if descriptor is None else [descriptor]
    tx.create_session(
        SessionHeader(
            id=session_id,
            created_at=iso_time(tx.now),
            profile=profile or source.profile,
            cwd=tx.head(source.id).cwd,
            depth=0 if parent is None else parent.depth + 1,
            root_id=session_id if parent is None else parent.root_id,
            parent_id=None if parent is None else parent.id,
            forked_from=ForkOrigin(session_id=source.id, through=through) if inherits else None,
            seed_through=len(seed) + len(first) if seed else 0,
        )
    )
    for data in (*first, *seed):
        tx.append(session_id, data)
    selected = model or tx.head(source.id).model
    if selected is not None:
        tx.append(session_id, SessionModel(model=selected))
