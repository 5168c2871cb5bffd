"""What every service shares: the database, the settings, request headers, and the way out after a commit."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection

from config.profiles import Profile, ProfileError, load_profile
from config.settings import Settings
from team.log import operations, transaction
from team.log.database import Database
from team.log.transaction import Effects, Transaction
from team.model.errors import IdempotencyConflict, ProfileUnknown
from team.model.events import RequestHeader
from team.model.ids import SessionId
from team.model.values import JsonObject
from team.service.callers import Once, Recorded

_R = TypeVar("_R")
_V = TypeVar("_V", bound=BaseModel)


class HeaderSource(Protocol):
    """Builds what requests of a profile show a model. Equal for all members of a Team.

    ``capture`` is the schema of the result that a child must report.
    """

    def __call__(self, profile: Profile, model: str, capture: JsonObject | None = None) -> RequestHeader: ...


@dataclass
class Store:
    """The log and what surrounds it. ``after_commit`` gets the effects of each committed transaction."""

    database: Database
    settings: Settings
    header_of: HeaderSource
    after_commit: Callable[[Effects], None]
    workspace_id: str

    def reading(self) -> AbstractContextManager[Connection]:
        return self.database.reading()

    def writing(self, body: Callable[[Transaction], _R]) -> _R:
        """Run one append transaction; see ``team.log.transaction.write``."""
        return transaction.write(self.database, self.settings, self.after_commit, body)

    def writing_once(
        self, once: Once | None, view: type[_V], body: Callable[[Transaction], _V | Recorded]
    ) -> _V | Recorded:
        """Like ``writing``, but a repeated Idempotency-Key returns the response that was recorded for it.

        Raises IdempotencyConflict when the key was used for another request.
        """
        if once is None:
            return self.writing(body)

        def recorded_or_new(tx: Transaction) -> _V | Recorded:
            recorded = self.recorded(tx, once, view)
            if recorded is not None:
                return recorded
            result = body(tx)
            if not isinstance(result, Recorded):
                operations.record_request(
                    tx.connection, once.actor, once.key, once.request, result.model_dump_json(), tx.now
                )
            return result

        return self.writing(recorded_or_new)

    def recorded(self, tx: Transaction, once: Once | None, view: type[_V]) -> _V | None:
        """The response that was recorded for this Idempotency-Key. Raises IdempotencyConflict."""
        recorded = None if once is None else operations.recorded_request(tx.connection, once.actor, once.key)
        if once is None or recorded is None:
            return None
        if recorded[0] != once.request:
            raise IdempotencyConflict("This Idempotency-Key was used for another request; take a new key.")
        return view.model_validate_json(recorded[1])

    def profile_of(self, tx: Transaction, session_id: SessionId) -> Profile:
        """The profile of a locked Session, with the tools that its parent left it. Raises ProfileUnknown."""
        profile = self.profile(tx.header(session_id).profile)
        descriptor = tx.head(session_id).descriptor
        if descriptor is None or descriptor.tool_filter is None:
            return profile
        left = tuple(name for name in profile.tools if name in descriptor.tool_filter)
        return profile.model_copy(update={"tools": left})

    def profile(self, name: str) -> Profile:
        """Raises ProfileUnknown."""
        try:
            return load_profile(name, self.settings.profile_dir)
        except ProfileError as error:
            raise ProfileUnknown(str(error)) from error
