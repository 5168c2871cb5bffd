"""ExternalService: invitations for outside agents, and what only those may do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from config.profiles import Profile
from team.log import invites, sessions
from team.log.transaction import Transaction
from team.model.errors import InvalidArgument, NotMember, RequestInvalid, Unauthenticated
from team.model.ids import SessionId, TeamId
from team.model.views import InviteView, MessagesView, RevokedView
from team.rules import externals, roster
from team.service.callers import Caller, Recorded
from team.service.store import Store

MAX_PAGE = 20

_R = TypeVar("_R")


@dataclass(frozen=True)
class Guest:
    """The external member behind an accepted token."""

    session_id: SessionId
    team_id: TeamId
    target: str
    description: str
    profile: Profile
    invite: str


class ExternalService:
    """Invite, revoke, recognise, read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def invite(self, team_id: str, *, name: str, description: str, actor: str | None) -> InviteView:
        """Add an external member to a Team, or give one that is there a new token; the old one ends.

        Repeating the request makes another token, so that none has to be stored. Raises RequestInvalid for a Session
        that leads no Team or whose profile has none, and what ``externals.invite`` raises.
        """

        def invite(tx: Transaction, team: TeamId) -> InviteView:
            if not self._store.profile(tx.header(SessionId(team)).profile).is_team:
                raise RequestInvalid("The profile of this Session has no Team tools; start one with the profile team.")
            token = externals.invite(tx, team, name=name, description=description, actor=actor)
            return InviteView(team_id=team, target=name, token=token)

        return self._in_team(team_id, invite)

    def revoke(self, team_id: str, name: str) -> RevokedView:
        """End a member's invitation at once; it stays in the roster. Raises MemberNotFound, InvalidTarget."""
        return self._in_team(team_id, lambda tx, team: RevokedView(revoked=externals.revoke(tx, team, name)))

    def _in_team(self, team_id: str, body: Callable[[Transaction, TeamId], _R]) -> _R:
        def locked(tx: Transaction) -> _R:
            header = sessions.find_session(tx.connection, team_id).header
            if header.depth != 0:
                raise RequestInvalid(f"{team_id} leads no Team; its Team is {header.root_id}.")
            tx.lock_team(header.team_id)
            tx.lock_sessions(header.id)
            return body(tx, header.team_id)

        return self._store.writing(locked)

    def guest(self, token: str) -> Guest:
        """Who a token lets in. Raises Unauthenticated."""
        token_hash = externals.digest(token)
        with self._store.reading() as connection:
            session_id = invites.invited_session(connection, token_hash)
            if session_id is None:
                raise Unauthenticated(externals.REFUSED)
            header = sessions.find_session(connection, session_id).header
            member = roster.caller(Transaction(self._store.database, connection, self._store.settings), header)
        if member.snapshot is None:
            raise NotMember("An invitation is for a member beside the Lead.")
        return Guest(
            session_id=session_id,
            team_id=header.team_id,
            target=member.target,
            description=member.snapshot.description,
            profile=self._store.profile(header.profile),
            invite=token_hash,
        )

    def read(self, caller: Caller, limit: int) -> MessagesView:
        """Claim the oldest unread messages of an external member, at most ``limit``; each is returned once.

        A repeated Idempotency-Key returns what its first request claimed. Raises InvalidArgument, Unauthenticated,
        Disposed.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidArgument(f"limit must be between 1 and {MAX_PAGE}; it is {limit}.")

        def read(tx: Transaction) -> MessagesView:
            header = sessions.find_session(tx.connection, caller.session_id).header
            tx.lock_team(header.team_id)
            tx.lock_sessions(header.id)
            externals.require_invited(tx, header.team_id, header.id, caller.invite or "")
            return externals.read(tx, header.id, limit)

        result = self._store.writing_once(caller.once, MessagesView, read)
        assert not isinstance(result, Recorded)
        return result
