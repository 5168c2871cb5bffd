"""The shared checkout's identity: an id in its data area, which every worker proves that it sees (DESIGN section 8)."""

import os
import uuid
from pathlib import Path
from typing import Final

from team.model.errors import ConfigurationInvalid, OutsideWorkspace, RequestInvalid

DATA_AREA: Final = ".team"


def directory_within(workspace: Path, cwd: str) -> str:
    """The absolute path of an existing directory of the workspace; a relative ``cwd`` starts at the workspace.

    Raises OutsideWorkspace, RequestInvalid when there is no such directory.
    """
    root = workspace.resolve()
    directory = Path(cwd).resolve() if Path(cwd).is_absolute() else (root / cwd).resolve()
    if directory != root and root not in directory.parents:
        raise OutsideWorkspace(f"{cwd} lies outside the workspace {root}; choose a directory inside it.")
    if not directory.is_dir():
        raise RequestInvalid(f"{cwd} is not a directory of the workspace {root}.")
    return str(directory)


def ensure_workspace(root: Path, identity: str | None = None) -> str:
    """The id of the checkout under ``root``; written when it is missing, atomically.

    Args:
        root: The workspace.
        identity: The id to write when there is none: a new one, or the one that a running coordinator knows and that
            somebody has cleaned away.

    Raises:
        ConfigurationInvalid: The root is no writable directory.
    """
    area = root / DATA_AREA
    path = area / "workspace-id"
    try:
        if not root.is_dir():
            raise NotADirectoryError(root)
        if not path.exists():
            area.mkdir(exist_ok=True)
            (area / ".gitignore").write_text("*\n", encoding="ascii")
            fresh = area / f".workspace-id-{uuid.uuid4().hex}"
            fresh.write_text(f"{identity or uuid.uuid4()}\n", encoding="ascii")
            try:
                os.link(fresh, path)
            except FileExistsError:
                # Another coordinator wrote it in the same moment; there is one id, and it is theirs.
                pass
            finally:
                fresh.unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigurationInvalid(
            f"The workspace {root} cannot be used ({error.strerror or error}): "
            "set TEAM_WORKSPACE_ROOT to a writable directory."
        ) from error
