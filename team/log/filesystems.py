"""Where a SQLite file may lie: its locks and its shared memory end at the machine, so its file system must too."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from team.model.errors import ConfigurationInvalid

MOUNTS: Final = Path("/proc/self/mountinfo")

SHARED: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "prl_fs",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    ]
)
"""Kinds that several machines, or a guest and its host, may have mounted at once."""

_PRIVATE_ROOTS: Final = frozenset({"9p", "virtiofs"})
"""Of these kinds the root of a virtual machine or a sandbox is its own."""


@dataclass(frozen=True)
class Mount:
    place: str
    kind: str

    @property
    def is_shared(self) -> bool:
        if self.place == "/" and self.kind in _PRIVATE_ROOTS:
            return False
        # What a FUSE program does with locks and mapped memory is its own choice; sshfs and its like do nothing.
        return self.kind in SHARED or self.kind == "fuse" or self.kind.startswith("fuse.")


def require_local(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise ConfigurationInvalid when ``path`` lies on a file system that other machines may have mounted too.

    Nothing is checked where the kernel does not list its mounts.
    """
    try:
        listed = mounts.read_text(errors="surrogateescape")
    except OSError:
        return
    found = mount_of(path.resolve(), listed)
    if found is not None and found.is_shared:
        raise ConfigurationInvalid(
            f"SQLite cannot work on {found.kind} (mounted at {found.place}): its locks would not reach other machines, "
            f"and the database {path} could be damaged. Put TEAM_DATA_DIR on a local disk, or set TEAM_DATABASE_URL "
            "to a PostgreSQL database."
        )


def mount_of(path: Path, listed: str) -> Mount | None:
    """The mount that holds an absolute path, from the kernel's list of them."""
    best: Mount | None = None
    for line in listed.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5 or not kinds[0]:  # noqa: PLR2004 -- the mount point is the fifth field
            continue
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # Of mounts at one place the last one is seen.
        if path.is_relative_to(place) and (best is None or len(place) >= len(best.place)):
            best = Mount(place, kinds[0])
    return best
