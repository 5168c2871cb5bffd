"""Proof that a worker sees the right workspace."""

from pathlib import Path


def prove_workspace(root: Path, workspace_id: str) -> None:
    """Raise WorkspaceMismatch unless ``root/.team/workspace-id`` holds ``workspace_id``."""
    raise NotImplementedError
