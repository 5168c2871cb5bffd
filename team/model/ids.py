"""Branded identifiers. Each is opaque text except a task id, which is ``task-N``."""

import secrets
import uuid
from typing import Final, NewType

SessionId = NewType("SessionId", str)
TeamId = NewType("TeamId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
TaskId = NewType("TaskId", str)
CallId = NewType("CallId", str)

LEAD_NAME: Final = "lead"
MAX_SAFE_INTEGER: Final = 2**53 - 1
_CHILDREN: Final = uuid.UUID("8a1d5c0e-6d55-5a0b-9d0c-6f1d1d6f2c11")
"""Namespace of the ids of children."""


def new_session_id() -> SessionId:
    return SessionId(str(uuid.uuid4()))


def child_session_id(parent: SessionId, call_key: str, item: int = 0) -> SessionId:
    """The id of the child that a call creates, however often the call is made; ``item`` counts the call's children."""
    return SessionId(str(uuid.uuid5(_CHILDREN, f"{parent}:{call_key}:{item}")))


def new_turn_id() -> TurnId:
    return TurnId(f"turn-{secrets.token_hex(12)}")


def new_message_id() -> MessageId:
    return MessageId(f"msg-{secrets.token_hex(12)}")


def new_token() -> str:
    return secrets.token_urlsafe(32)


def task_id(number: int) -> TaskId:
    return TaskId(f"task-{number}")


def task_number(identifier: str) -> int | None:
    """The number in ``task-N``, or None when the text is not a task id in its only spelling."""
    digits = identifier.removeprefix("task-")
    if digits == identifier or not digits.isascii() or not digits.isdigit() or digits.startswith("0"):
        return None
    number = int(digits) if len(digits) <= 16 else MAX_SAFE_INTEGER + 1
    return number if number <= MAX_SAFE_INTEGER else None
