"""Identity: the runtime-context message that tells a Session who it is (DESIGN section 6).

System prompt and tool schemas are the same for all members; what differs between them is only in this message.
"""

from team.model.ids import LEAD_NAME
from team.model.slices import HeadSlice
from team.model.snapshots import MemberSnapshot, SessionHeader


def text(header: SessionHeader, member: MemberSnapshot | None, head: HeadSlice, *, is_team: bool) -> str:
    """Who this Session is. It overrides any identity in an inherited conversation before it."""
    lines = [f"[Runtime context. Your current directory is {head.cwd}."]
    if member is not None:
        lines.append(
            f"You are the teammate {member.name}: {member.description}\n"
            f"Your Lead is {LEAD_NAME}. Only the Lead creates and interrupts teammates."
        )
    elif header.depth == 0 and is_team:
        lines.append(f"You are the Lead of this Team; the other members address you as {LEAD_NAME}.")
    elif head.descriptor is not None:
        lines.append(f"You are the subagent {head.descriptor.label}; your final answer goes to the agent that asked.")
    if header.forked_from is not None:
        lines.append("The conversation before this message is inherited; who you are is what this message says.")
    return "\n".join(lines) + "]"
