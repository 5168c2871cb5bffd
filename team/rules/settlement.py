"""Settlement: no teammate's and no background subagent's work ends unseen (DESIGN sections 6 and 7)."""

from team.log import projections
from team.log.transaction import Transaction
from team.model.content import text_block, text_of
from team.model.errors import LogDamaged
from team.model.events import AssistantMessage
from team.model.ids import SessionId, new_message_id
from team.model.slices import TurnSlice
from team.model.snapshots import MemberSnapshot, SessionHeader, SettlementSource
from team.rules.inbox import accept, has_ended_for_good

MAX_TEXT_CHARACTERS = 4_000


def notify(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> None:
    """Put the notice of an ended turn into the inbox of the Lead, or of the parent of a background subagent.

    For a member when the setting asks for one; ``silent``: only when the turn did not message the Lead, or ended other
    than completed. For a background subagent always: nothing else tells what it did. One notice per turn, in log order
    behind the turn's own messages.
    """
    header, setting = tx.header(session_id), tx.settings.settlement
    member = tx.member_of(header)
    if member is None:
        _notify_parent(tx, header, turn)
        return
    if member.phase != "active" or member.provider == "external" or setting == "off":
        return
    lead = SessionId(header.team_id)
    reported = projections.sent_during(tx.connection, lead, turn.turn_id)
    if setting == "silent" and reported and turn.reason == "completed":
        return
    source = SettlementSource(member_id=session_id, member_name=member.name, turn_id=turn.turn_id)
    accept(tx, lead, text_block(_notice(tx, session_id, member, turn)), source, "steer", new_message_id())


def _notify_parent(tx: Transaction, header: SessionHeader, turn: TurnSlice) -> None:
    descriptor = tx.head(header.id).descriptor
    if header.parent_id is None or descriptor is None or descriptor.mode != "continuable":
        return
    if has_ended_for_good(tx.head(header.parent_id)):
        return
    lines = [
        f"[Notice: the turn of the subagent {descriptor.label} (agent_id {header.id}) ended: {why_ended(turn)}.]",
        _said(tx, header.id, turn),
    ]
    source = SettlementSource(member_id=header.id, member_name=descriptor.label, turn_id=turn.turn_id)
    accept(tx, header.parent_id, text_block("\n".join(lines)), source, "steer", new_message_id())


def why_ended(turn: TurnSlice) -> str:
    """The reason of an ended turn with its detail."""
    detail = f" ({turn.code}: {turn.message})" if turn.code else f" ({turn.message})" if turn.message else ""
    return f"{turn.reason or 'completed'}{detail}"


def _said(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> str:
    said = last_text(tx, session_id, turn)
    if not said:
        return "It said nothing in this turn."
    cut = said if len(said) <= MAX_TEXT_CHARACTERS else said[:MAX_TEXT_CHARACTERS] + " [cut]"
    # The count says where the text ends, so that nothing in it can pass for a part of the notice.
    return f"Its last text is the next {len(cut.encode())} bytes, to the end of this message:\n{cut}"


def _notice(tx: Transaction, session_id: SessionId, member: MemberSnapshot, turn: TurnSlice) -> str:
    owned = [
        f"{task.id} ({task.status})"
        for task in projections.live_tasks(tx.connection, SessionId(tx.header(session_id).team_id))
        if task.owner_id == session_id and task.status != "completed"
    ]
    lines = [
        f"[Notice: the turn of {member.name} ended: {why_ended(turn)}. This is no message of the member.]",
        f"Open tasks it owns: {', '.join(owned) or 'none'}.",
        _said(tx, session_id, turn),
    ]
    return "\n".join(lines)


def last_text(tx: Transaction, session_id: SessionId, turn: TurnSlice) -> str:
    """The last text that the turn's model said, or empty; damage to it is told in its place."""
    if turn.text_seq is None:
        return ""
    try:
        message = tx.event(session_id, turn.text_seq)
    except LogDamaged as error:
        # Damage to what was said must not hide that the turn has ended.
        return f"[it cannot be read: {error.message}]"
    return text_of(message.content) if isinstance(message, AssistantMessage) else ""
