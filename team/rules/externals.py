"""External members: outside agents that run their own turns and act by an invitation (DESIGN section 10)."""

import hashlib

from team.log import invites
from team.log.transaction import Transaction
from team.model.errors import InvalidTarget, MemberNameTaken, Unauthenticated
from team.model.events import InboxClaimed, InboxInserted, MemberChanged, SubagentDescribed, UserMessage
from team.model.ids import SessionId, TeamId, new_session_id, new_token
from team.model.snapshots import MemberSnapshot, SessionHeader
from team.model.views import MessagesView, MessageView
from team.rules import roster
from team.rules.times import iso_time

REFUSED = "This invitation is not valid: it was revoked or replaced. Ask the operator of the Team for a new one."


def digest(token: str) -> str:
    """What is stored of a token. It is random and long, so a plain hash cannot be searched."""
    return hashlib.sha256(token.encode()).hexdigest()


def invite(tx: Transaction, team_id: TeamId, *, name: str, description: str, actor: str | None) -> str:
    """Add an external member, or name one that is there, and give it a new invitation; returns its token.

    The token that it had before ends. The Team and the Lead are locked. An edge: the roster looks different. Raises
    InvalidMemberName, InvalidArgument, MemberNameTaken (a member that is not external), MemberLimit, Disposed.
    """
    roster.require_open(tx, team_id)
    roster.require_description(name, description)
    snapshot = next((member for member in tx.members(team_id) if member.name == name), None)
    if snapshot is None:
        roster.require_room(tx, team_id)
        snapshot = _create(tx, team_id, name, description, actor)
    elif snapshot.provider != "external" or snapshot.phase != "active":
        raise MemberNameTaken(f"The name {name} is taken for ever by another member; invite under a new name.")
    token = new_token()
    invites.put_invite(tx.connection, snapshot.id, team_id, digest(token), tx.now)
    tx.raise_edge(team_id)
    return token


def _create(tx: Transaction, team_id: TeamId, name: str, description: str, actor: str | None) -> MemberSnapshot:
    """One commit creates it: nothing runs at the start of its Session that could be cut off."""
    lead_id = SessionId(team_id)
    lead = tx.header(lead_id)
    snapshot = MemberSnapshot(
        id=new_session_id(), name=name, description=description, provider="external", context="fresh", phase="active"
    )
    tx.append(lead_id, MemberChanged(team_id=team_id, member=snapshot, actor=actor))
    tx.create_session(
        SessionHeader(
            id=snapshot.id,
            created_at=iso_time(tx.now),
            profile=lead.profile,
            cwd=tx.head(lead_id).cwd,
            depth=lead.depth + 1,
            root_id=lead.root_id,
            parent_id=lead.id,
        )
    )
    tx.append(snapshot.id, SubagentDescribed(mode="continuable", provider="external", label=name))
    return snapshot


def revoke(tx: Transaction, team_id: TeamId, name: str) -> bool:
    """Take a member's invitation away; whether it had one. The Team is locked.

    An edge: whoever waits for the member must learn that it cannot act. Raises MemberNotFound, InvalidTarget.
    """
    member = roster.resolve(tx, team_id, name)
    if member.snapshot is None or member.snapshot.provider != "external":
        raise InvalidTarget(f"{name} is no external member, so it has no invitation.")
    revoked = invites.drop_invite(tx.connection, member.session_id)
    if revoked:
        tx.raise_edge(team_id)
    return revoked


def require_invited(tx: Transaction, team_id: TeamId, session_id: SessionId, token_hash: str) -> None:
    """Check the right of an outside agent under the Team's lock: a revocation, and a close, end it at once.

    Raises Unauthenticated, Disposed.
    """
    if invites.invited_session(tx.connection, token_hash) != session_id:
        raise Unauthenticated(REFUSED)
    roster.require_open(tx, team_id)


def read(tx: Transaction, session_id: SessionId, limit: int) -> MessagesView:
    """Claim the oldest unread messages of a locked external member, in log order."""
    shown: list[MessageView] = []
    for item in tx.pending(session_id)[:limit]:
        inserted = tx.event(session_id, item.seq)
        assert isinstance(inserted, InboxInserted)
        tx.append(session_id, InboxClaimed(message_id=item.message_id))
        message = UserMessage(message_id=item.message_id, content=inserted.content, source=inserted.source)
        tx.append(session_id, message)
        shown.append(MessageView(message_id=item.message_id, kind=inserted.source.kind, content=inserted.content))
    return MessagesView(messages=tuple(shown), unread=tx.head(session_id).pending)
