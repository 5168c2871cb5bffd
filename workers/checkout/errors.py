"""Faults of the checkout tools that only a worker can meet. Each text tells the model what to do next."""

from team.model.errors import TeamError


class FileMissingError(TeamError, code="FS_NOT_FOUND", status=404):
    """A file or directory is not there."""


class NotAFileError(TeamError, code="FS_NOT_A_FILE", status=409):
    """A directory, a device or a pipe stands where a regular file is needed."""


class BinaryFileError(TeamError, code="FS_BINARY", status=415):
    """The file is not text."""


class FileTooLargeError(TeamError, code="FS_TOO_LARGE", status=413):
    """The file is beyond what the tool handles."""


class NoMatchError(TeamError, code="FS_NO_MATCH", status=409):
    """The text to replace does not occur in the file."""


class AmbiguousMatchError(TeamError, code="FS_AMBIGUOUS_MATCH", status=409):
    """The text to replace occurs more than once."""


class LockTimeoutError(TeamError, code="FS_LOCKED", status=409):
    """Another worker held the lock of the path for too long."""


class FileFaultError(TeamError, code="FS_FAILED", status=500):
    """The operating system refused: no permission, no space, a read-only or broken file system."""


class CommandLostError(TeamError, code="COMMAND_LOST", status=500):
    """What ran the command ended before its result was known."""


class JobLimitError(TeamError, code="JOB_LIMIT", status=429):
    """As many jobs run as may."""


class JobMissingError(TeamError, code="JOB_NOT_FOUND", status=404):
    """No such job runs."""


class OutcomeUnknownError(TeamError, code="CALL_OUTCOME_UNKNOWN", status=409):
    """The worker was lost during the call: it may or may not have had its effect."""


class CallInterruptedError(TeamError, code="CALL_INTERRUPTED", status=409):
    """The worker was lost during the call, which had no effect."""
