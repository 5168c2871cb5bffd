"""The local tools of a worker: one object per process, one call of ``run`` per tool call."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from team.model.claims import PendingCall
from team.model.events import Outcome
from team.model.slices import FileSlice
from workers.checkout.guard import Guard


@dataclass(frozen=True)
class LocalResult:
    """What a local call returned.

    ``observed`` is what the Session now knows of files, paths relative to the workspace root. ``cwd`` is set when
    the call moved the Session's directory: an absolute path inside the workspace.
    """

    outcome: Outcome
    content: str
    observed: tuple[FileSlice, ...] = ()
    cwd: str | None = None


class CallContext(Protocol):
    """One call, as the step loop knows it."""

    @property
    def session_id(self) -> str: ...
    @property
    def turn_id(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def cwd(self) -> str: ...
    @property
    def files(self) -> Mapping[str, FileSlice]:
        """What the Session has seen so far, by path relative to the workspace root."""
        ...

    async def intent(self, path: str, before: str | None, after: str) -> None:
        """Log that ``path`` is about to be replaced. Raises when the turn is fenced; then nothing is replaced."""
        ...


class LocalTools:
    """``read``, ``write``, ``edit``, ``glob``, ``grep`` and ``bash`` on one shared checkout.

    Args:
        root: The workspace root; nothing outside it is read or written by the file tools.
        output_bytes: UTF-8 bytes of output that a model is shown of one call.
        guard: Started by the caller, closed by the caller.
    """

    def __init__(self, root: Path, *, output_bytes: int, guard: Guard) -> None:
        raise NotImplementedError

    async def run(self, name: str, arguments: str, context: CallContext) -> LocalResult:
        """Run one call to its end.

        A fault of the call (bad arguments, a missing file, a stale version) is an error result, not an exception.
        Raises TurnFenced when the turn's lease is not valid, and whatever ``context.intent`` raises. Cancelling
        ends the call's processes before CancelledError goes on; a replace is then either done or not begun.
        """
        raise NotImplementedError

    async def end_turn(self, turn_id: str) -> None:
        """End every process of the turn and forget its lease; returns when they are gone. Idempotent."""
        raise NotImplementedError

    def recover(self, call: PendingCall) -> LocalResult:
        """The result of a call that a lost worker left without one; the call is not run again.

        ``write`` and ``edit`` change a file only after a logged intent, so the file's hash tells what happened.
        """
        raise NotImplementedError
