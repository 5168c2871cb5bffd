"""What the command line itself refuses, and the exit code of every error."""

from typing import Final

from team.model.errors import (
    ConfigurationInvalid,
    CoordinatorUnreachable,
    Forbidden,
    OutsideWorkspace,
    ProfileUnknown,
    RequestInvalid,
    SessionNotFound,
    TeamError,
    Unauthenticated,
    WorkspaceMismatch,
)

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class StackBusy(TeamError, code="STACK_BUSY", status=409):
    """Another stack runs on the same data directory."""


class StackFailed(TeamError, code="STACK_FAILED", status=500):
    """A process of the embedded stack did not start; the text ends with its own last words."""


_USAGE = (
    ConfigurationInvalid,
    CoordinatorUnreachable,
    Forbidden,
    OutsideWorkspace,
    ProfileUnknown,
    RequestInvalid,
    SessionNotFound,
    StackBusy,
    StackFailed,
    Unauthenticated,
    WorkspaceMismatch,
)


def exit_code(error: TeamError) -> int:
    """2 for what the caller has to correct before anything can run, 1 for a failure of the work itself."""
    return USAGE if isinstance(error, _USAGE) else FAILED
