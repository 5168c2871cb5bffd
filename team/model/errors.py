"""One error base: a stable code, an HTTP status, and a text that tells the reader what to do next."""

import json
from typing import ClassVar

_BY_CODE: dict[str, type["TeamError"]] = {}


class TeamError(Exception):
    """Base of every error that leaves the product. Nothing was changed when one is raised."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __init_subclass__(cls, *, code: str, status: int) -> None:
        cls.code, cls.status = code, status
        if _BY_CODE.setdefault(code, cls) is not cls:
            raise TypeError(f"two errors share the code {code}")


def error_types() -> dict[str, type[TeamError]]:
    """Every error by its code."""
    return dict(_BY_CODE)


def error_from(code: str, message: str) -> TeamError:
    """The error that a response body names; an unknown code becomes the base class."""
    return _BY_CODE.get(code, TeamError)(message)


def error_json(code: str, message: str) -> str:
    """An error as a model and an HTTP client see it: compact JSON."""
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False, separators=(",", ":"))


# Team operations (DESIGN section 6).
class LeadRequired(TeamError, code="TEAM_LEAD_REQUIRED", status=403): ...


class NotMember(TeamError, code="TEAM_NOT_MEMBER", status=403): ...


class InvalidMemberName(TeamError, code="TEAM_INVALID_MEMBER_NAME", status=422): ...


class MemberNameTaken(TeamError, code="TEAM_MEMBER_NAME_TAKEN", status=409): ...


class MemberLimit(TeamError, code="TEAM_MEMBER_LIMIT", status=409): ...


class MemberNotFound(TeamError, code="TEAM_MEMBER_NOT_FOUND", status=404): ...


class SelfMessage(TeamError, code="TEAM_SELF_MESSAGE", status=422): ...


class MessageTooLarge(TeamError, code="TEAM_MESSAGE_TOO_LARGE", status=413): ...


class InboxFull(TeamError, code="TEAM_INBOX_FULL", status=409): ...


class TaskNotFound(TeamError, code="TEAM_TASK_NOT_FOUND", status=404): ...


class TaskStaleRevision(TeamError, code="TEAM_TASK_STALE_REVISION", status=409): ...


class TaskDeleted(TeamError, code="TEAM_TASK_DELETED", status=410): ...


class TaskUnauthorized(TeamError, code="TEAM_TASK_UNAUTHORIZED", status=403): ...


class TaskAlreadyClaimed(TeamError, code="TEAM_TASK_ALREADY_CLAIMED", status=409): ...


class TaskBlocked(TeamError, code="TEAM_TASK_BLOCKED", status=409): ...


class TaskInvalidTransition(TeamError, code="TEAM_TASK_INVALID_TRANSITION", status=409): ...


class TaskHasDependents(TeamError, code="TEAM_TASK_HAS_DEPENDENTS", status=409): ...


class TaskDependencyCycle(TeamError, code="TEAM_TASK_DEPENDENCY_CYCLE", status=409): ...


class TaskLimit(TeamError, code="TEAM_TASK_LIMIT", status=409): ...


class InvalidWriteScope(TeamError, code="TEAM_INVALID_WRITE_SCOPE", status=422): ...


class InvalidArgument(TeamError, code="TEAM_INVALID_ARGUMENT", status=422): ...


class InvalidTimeout(TeamError, code="TEAM_INVALID_TIMEOUT", status=422): ...


class InvalidTarget(TeamError, code="TEAM_INVALID_TARGET", status=422): ...


class ModelNotAllowed(TeamError, code="TEAM_MODEL_NOT_ALLOWED", status=422): ...


class WaitAborted(TeamError, code="TEAM_WAIT_ABORTED", status=409): ...


class ProvisioningConflict(TeamError, code="TEAM_PROVISIONING_CONFLICT", status=409): ...


class Disposed(TeamError, code="TEAM_DISPOSED", status=410): ...


class DisposalTimeout(TeamError, code="TEAM_DISPOSAL_TIMEOUT", status=504): ...


# Subagents (DESIGN section 7).
class SubagentNotFound(TeamError, code="SUBAGENT_NOT_FOUND", status=404): ...


class SubagentDepth(TeamError, code="SUBAGENT_DEPTH", status=409): ...


class SubagentEnded(TeamError, code="SUBAGENT_ENDED", status=410):
    """A one-shot child has had its only turn, or takes no messages."""


class SubagentFailed(TeamError, code="SUBAGENT_FAILED", status=409):
    """The result of a call whose child did not complete its work."""


# Workflows (DESIGN section 7).
class WorkflowFailed(TeamError, code="WORKFLOW_FAILED", status=409):
    """The result of a workflow call whose script did not return."""


class ResultInvalid(TeamError, code="RESULT_INVALID", status=422):
    """A child reported a result that its schema refuses."""


# Turns.
class TurnFenced(TeamError, code="TURN_FENCED", status=409): ...


class TurnConflict(TeamError, code="TURN_CONFLICT", status=409):
    """A current claim asked for a step that the turn is not at; nothing was written."""


# Shared checkout.
class StaleVersion(TeamError, code="FS_STALE_VERSION", status=409): ...


class NotObserved(TeamError, code="FS_NOT_OBSERVED", status=409): ...


class OutsideWorkspace(TeamError, code="FS_OUTSIDE_WORKSPACE", status=403): ...


# Sessions, the log and the service.
class SessionNotFound(TeamError, code="SESSION_NOT_FOUND", status=404): ...


class SessionExists(TeamError, code="SESSION_EXISTS", status=409): ...


class LogDamaged(TeamError, code="LOG_DAMAGED", status=422):
    """A record cannot be read or does not fit its log; names the Session and the event number."""


class ToolUnknown(TeamError, code="TOOL_UNKNOWN", status=404): ...


class ProfileUnknown(TeamError, code="PROFILE_UNKNOWN", status=422): ...


class ConfigurationInvalid(TeamError, code="CONFIGURATION_INVALID", status=422): ...


class IdempotencyConflict(TeamError, code="IDEMPOTENCY_CONFLICT", status=409): ...


class Unauthenticated(TeamError, code="UNAUTHENTICATED", status=401): ...


class Forbidden(TeamError, code="FORBIDDEN", status=403): ...


class RequestInvalid(TeamError, code="REQUEST_INVALID", status=422): ...


class WorkspaceMismatch(TeamError, code="WORKSPACE_MISMATCH", status=409): ...


class WorkspaceUnavailable(TeamError, code="WORKSPACE_UNAVAILABLE", status=503):
    """The checkout cannot be used now, for a reason that passes: a full disk, a file server that is away."""


class StoreUnavailable(TeamError, code="STORE_UNAVAILABLE", status=503): ...


class CoordinatorUnreachable(TeamError, code="COORDINATOR_UNREACHABLE", status=503):
    """No coordinator answered within the caller's patience; the request may have been processed all the same."""
