"""Proofs that a worker sees the right workspace, and that its locks exclude."""

import errno
import os
from pathlib import Path
from typing import Final

from team.model.errors import ConfigurationInvalid, TeamError, WorkspaceMismatch, WorkspaceUnavailable
from workers.checkout.locks import try_lock
from workers.checkout.paths import DATA_AREA, Workspace

ID_FILE: Final = "workspace-id"
_PROOF: Final = "proof"
_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EMFILE, errno.ENFILE}
)
"""Errors of a file system that work again without anybody changing a setting."""


def prove_workspace(root: Path, workspace_id: str) -> None:
    """Raise WorkspaceMismatch unless ``root/.team/workspace-id`` holds ``workspace_id``."""
    path = root / DATA_AREA / ID_FILE
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise WorkspaceMismatch(
            f"{root} is not the workspace of this coordinator: cannot read {path} ({reason}). Mount the coordinator's "
            "workspace there, or set TEAM_WORKSPACE_ROOT to where it is mounted."
        ) from error
    if found != workspace_id:
        raise WorkspaceMismatch(
            f"{root} is another workspace than the coordinator's: {path} holds {found[:64]!r}, not {workspace_id!r}. "
            "Mount the coordinator's workspace there, or set TEAM_WORKSPACE_ROOT to where it is mounted."
        )


def locks_refused(place: Path, error: OSError) -> TeamError:
    """What a worker that cannot lock files under ``place`` ends with: to be configured, or only to be started again."""
    reason = error.strerror or os.strerror(error.errno or 0)
    if error.errno in _PASSING:
        return WorkspaceUnavailable(f"cannot lock files under {place} now: {reason}. It is tried again.")
    return ConfigurationInvalid(
        f"cannot lock files under {place}: {reason}. The workspace must be writable and its file system must support "
        "flock."
    )


def prove_locks(root: Path) -> None:
    """Raise ConfigurationInvalid unless locks under ``root`` exclude: some network mounts grant every lock.

    Proves it between two opens on this machine. Call it once at the start of a worker.
    """
    try:
        workspace = Workspace(root)
        first = None
        # Another worker that starts at the same moment may hold the proof's file for an instant.
        for _ in range(1000):
            first = try_lock(workspace, _PROOF)
            if first:
                break
        if first is None:
            return  # somebody else holds it, which is the proof
        try:
            second = try_lock(workspace, _PROOF)
            if second:
                second.close()
        finally:
            first.close()
    except OSError as error:
        raise locks_refused(root / DATA_AREA, error) from error
    if second:
        raise ConfigurationInvalid(
            f"locks under {root / DATA_AREA} do not exclude: two were granted at once. Mount the workspace with locks."
        )
