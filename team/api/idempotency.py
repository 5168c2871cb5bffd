"""The ``Idempotency-Key`` header of public POSTs: a repeated request gets the response of the first."""

import hashlib
from typing import Annotated, Final

from fastapi import Depends, Header, Request
from pydantic import BaseModel

from team.service.callers import Once

ACTOR: Final = "operator"
MAX_KEY_CHARACTERS: Final = 200


def _idempotency(
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_CHARACTERS)] = None,
) -> str | None:
    return idempotency_key or None


IdempotencyKey = Annotated[str | None, Depends(_idempotency)]


def once_of(key: str | None, request: Request, body: bytes | BaseModel, actor: str = ACTOR) -> Once | None:
    """What makes this request unrepeatable; None without a key. Keys of different actors are different."""
    if key is None:
        return None
    text = body if isinstance(body, bytes) else body.model_dump_json().encode()
    digest = hashlib.sha256(request.url.path.encode() + b"\n" + text).hexdigest()
    return Once(actor, key, digest)
