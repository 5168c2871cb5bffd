"""Settlement: no teammate's work ends unseen (DESIGN section 6)."""

from team.log import projections
from team.log.transaction import Transaction
from team.model.content import text_block, text_of
from team.model.errors import LogDamaged
from team.model.events import AssistantMessage
from team.model.ids import SessionId, new_message_id
from team.model.slices import TurnSlice
from team.model.snapshots import MemberSnapshot, SettlementSource
from team.rules.inbox import accept

MAX_TEXT_CHARACTERS = 4_000


def notify(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> None:
    """Put the notice of a member's ended turn into the Lead's inbox when the setting asks for one.

    ``silent``: only when the turn did not message the Lead, or ended other than completed. One notice per turn, in
    log order behind the turn's own messages.
    """
    header, setting = tx.header(session_id), tx.settings.settlement
    member = tx.member_of(header)
    if member is None or member.phase != "active" or member.provider == "external" or setting == "off":
        return
    lead = SessionId(header.team_id)
    reported = projections.sent_during(tx.connection, lead, turn.turn_id)
    if setting == "silent" and reported and turn.reason == "completed":
        return
    source = SettlementSource(member_id=session_id, member_name=member.name, turn_id=turn.turn_id)
    accept(tx, lead, text_block(_notice(tx, session_id, member, turn)), source, "steer", new_message_id())


def _notice(tx: Transaction, session_id: SessionId, member: MemberSnapshot, turn: TurnSlice) -> str:
    why = turn.reason or "completed"
    detail = f" ({turn.code}: {turn.message})" if turn.code else f" ({turn.message})" if turn.message else ""
    lines = [f"[Notice: the turn of {member.name} ended: {why}{detail}. This is no message of the member.]"]
    said = _last_text(tx, session_id, turn)
    if said:
        cut = said if len(said) <= MAX_TEXT_CHARACTERS else said[:MAX_TEXT_CHARACTERS] + " [cut]"
        lines.append(f"Its last text:\n{cut}")
    else:
        lines.append("It said nothing in this turn.")
    owned = [
        f"{task.id} ({task.status})"
        for task in projections.live_tasks(tx.connection, SessionId(tx.header(session_id).team_id))
        if task.owner_id == session_id and task.status != "completed"
    ]
    lines.append(f"Open tasks it owns: {', '.join(owned) or 'none'}.")
    return "\n".join(lines)


def _last_text(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> str:
    if turn.text_seq is None:
        return ""
    try:
        message = tx.event(session_id, turn.text_seq)
    except LogDamaged as error:
        # Damage to what was said must not hide that the turn has ended.
        return f"[it cannot be read: {error.message}]"
    return text_of(message.content) if isinstance(message, AssistantMessage) else ""
