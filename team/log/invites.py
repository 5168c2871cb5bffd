"""Invitations of external members: at most one each, kept as the hash of its token."""

from sqlalchemy import Connection, delete, insert, select

from team.log.tables import InviteRow, table
from team.model.ids import SessionId

_invite = table(InviteRow)


def put_invite(connection: Connection, session_id: str, team_id: str, token_hash: str, now: float) -> None:
    """Give a member this invitation in place of the one that it had."""
    drop_invite(connection, session_id)
    row = {"session_id": session_id, "team_id": team_id, "token_hash": token_hash, "created_at": now}
    connection.execute(insert(_invite).values(**row))


def drop_invite(connection: Connection, session_id: str) -> bool:
    """Take a member's invitation away; whether there was one."""
    return connection.execute(delete(_invite).where(_invite.c.session_id == session_id)).rowcount > 0


def invited_session(connection: Connection, token_hash: str) -> SessionId | None:
    """The member that a token belongs to."""
    found = connection.execute(select(_invite.c.session_id).where(_invite.c.token_hash == token_hash))
    session_id = found.scalar_one_or_none()
    return None if session_id is None else SessionId(session_id)


def invited_members(connection: Connection, team_id: str) -> set[SessionId]:
    """The members of a Team that hold an invitation."""
    found = connection.execute(select(_invite.c.session_id).where(_invite.c.team_id == team_id))
    return {SessionId(session_id) for session_id in found.scalars()}
