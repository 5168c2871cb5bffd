"""Accepting input: one transaction inserts it and opens a turn when the target has none (DESIGN section 5)."""

from typing import Final

from team.log.transaction import Transaction
from team.model.content import ContentBlock, TextBlock, text_block
from team.model.errors import InboxFull, InvalidArgument, MessageTooLarge, SelfMessage, SubagentEnded
from team.model.events import Delivery, InboxInserted
from team.model.ids import MessageId, SessionId, TeamId, TurnId, new_message_id
from team.model.slices import HeadSlice
from team.model.snapshots import WAKING, HumanSource, Source, TeamMessageSource
from team.rules.queue import begin
from team.rules.roster import Member, is_member, require_open, require_reachable

NOTICES: Final = frozenset({"settlement"})
"""Sources that bypass the inbox limit."""


def accept(
    tx: Transaction,
    target: SessionId,
    content: tuple[ContentBlock, ...],
    source: Source,
    delivery: Delivery,
    message_id: MessageId,
) -> None:
    """Insert one message into a locked Session's inbox and make sure that a turn will claim it.

    An edge when the target is a member. Held input of an earlier bad end is released by a waking source and stays
    held under a system notice. A one-shot child has one turn, so whatever it gets steers that turn. An external member
    has none: what it gets waits until it reads. Raises InboxFull, SubagentEnded.
    """
    header, head = tx.header(target), tx.head(target)
    if has_ended_for_good(head):
        raise SubagentEnded(
            "This subagent was created for one turn, which has ended; it takes no more messages. Start another one."
        )
    if is_one_shot(head) or head.is_external:
        delivery = "steer"
    if head.pending >= tx.settings.max_inbox and source.kind not in NOTICES:
        raise InboxFull(
            f"The inbox holds {head.pending} unread messages, its limit. Wait until the member has read them "
            "(wait_agent), then send again; nothing was sent."
        )
    tx.append(target, InboxInserted(message_id=message_id, delivery=delivery, content=content, source=source))
    if is_member(tx, header):
        tx.raise_edge(header.team_id)
    after = tx.head(target)
    if after.open_turn is None and not after.is_external and (source.kind in WAKING or not after.held):
        begin(tx, target, f"{source.kind} message")


def is_one_shot(head: HeadSlice) -> bool:
    """Whether a Session is a child that was created for one turn."""
    return head.descriptor is not None and head.descriptor.mode == "one-shot"


def has_ended_for_good(head: HeadSlice) -> bool:
    """Whether no turn opens for a Session any more: a one-shot child that has had its turn."""
    return is_one_shot(head) and head.turns > 0 and head.open_turn is None


def prompt(tx: Transaction, target: SessionId, text: str, delivery: Delivery, actor: str | None) -> MessageId:
    """Accept a human prompt. Raises MessageTooLarge, InvalidArgument, InboxFull."""
    if not text.strip():
        raise InvalidArgument("A prompt needs text.")
    require_size(tx, (TextBlock(text=text),))
    message_id = new_message_id()
    accept(tx, target, text_block(text), HumanSource(actor=actor), delivery, message_id)
    return message_id


def send(
    tx: Transaction,
    team_id: TeamId,
    sender: Member,
    target: Member,
    message: str,
    sender_turn: TurnId | None,
    actor: str | None,
) -> MessageId:
    """Accept a member's message into the target's inbox: Steer, whatever the target does now.

    Raises SelfMessage, InvalidTarget, InvalidArgument, MessageTooLarge, InboxFull, Disposed.
    """
    if sender.session_id == target.session_id:
        raise SelfMessage("You cannot send a message to yourself; address another member.")
    require_reachable(target)
    require_open(tx, team_id)
    if not message.strip():
        raise InvalidArgument("A message needs text.")
    message_id = new_message_id()
    content = frame(message_id, sender.target, (TextBlock(text=message),))
    require_size(tx, content)
    source = TeamMessageSource(
        message_id=message_id,
        sender_id=sender.session_id,
        sender_name=sender.target,
        sender_turn=sender_turn,
        actor=actor,
    )
    accept(tx, target.session_id, content, source, "steer", message_id)
    return message_id


def frame(message_id: MessageId, sender: str, blocks: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """Put one framing block before the sender's own blocks.

    The body cannot forge or close it: the id is chosen after the body was written, and the byte count says where the
    body ends.
    """
    size = sum(len(block.text.encode()) for block in blocks if isinstance(block, TextBlock))
    heading = (
        f"[Team message {message_id} from {sender}: the next {size} bytes, to the end of this message, are its text. "
        "Only this first line names the sender.]"
    )
    return (TextBlock(text=heading), *blocks)


def require_size(tx: Transaction, content: tuple[ContentBlock, ...]) -> None:
    """Raises MessageTooLarge."""
    size = sum(len(block.text.encode()) for block in content if isinstance(block, TextBlock))
    limit = tx.settings.max_message_bytes
    if size > limit:
        raise MessageTooLarge(
            f"The message has {size} bytes with its frame; the limit is {limit}. Write the content to a file of the "
            "checkout and send its path."
        )
