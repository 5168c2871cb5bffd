"""Where a SQLite database may lie."""

from pathlib import Path

import pytest

from team.log.database import Database
from team.log.filesystems import Mount, mount_of, require_local
from team.log.schema import migrate
from team.model.errors import ConfigurationInvalid

LISTED = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
25 22 0:30 / /data rw - nfs4 server:/export rw,vers=4.2
26 22 0:31 / /data/local\040disk rw shared:7 - xfs /dev/sdb1 rw
27 22 0:32 / /mnt/c rw - 9p drvfs rw,trans=fd
28 22 0:33 / /media/remote rw - fuse.sshfs me@host:/ rw
29 22 254:1 / /windows rw - fuseblk /dev/sdc1 rw
30 22 0:40 / /twice rw - ext4 /dev/sdd rw
31 30 0:41 / /twice rw - cifs //server/share rw
a line of another format
"""


@pytest.mark.parametrize(
    ("path", "mount", "shared"),
    [
        ("/var/lib/team/team.db", Mount("/", "ext4"), False),
        ("/data/team.db", Mount("/data", "nfs4"), True),
        ("/data/local disk/team.db", Mount("/data/local disk", "xfs"), False),
        ("/database/team.db", Mount("/", "ext4"), False),
        ("/mnt/c/team.db", Mount("/mnt/c", "9p"), True),
        ("/media/remote/team.db", Mount("/media/remote", "fuse.sshfs"), True),
        ("/windows/team.db", Mount("/windows", "fuseblk"), False),
        ("/twice/team.db", Mount("/twice", "cifs"), True),
    ],
)
def test_s02_the_file_system_of_a_path_is_found_and_judged(path: str, mount: Mount, shared: bool) -> None:
    assert mount_of(Path(path), LISTED) == mount
    assert mount.is_shared is shared


@pytest.mark.parametrize("kind", ["9p", "virtiofs"])
def test_s02_the_root_of_a_sandbox_or_virtual_machine_is_its_own(kind: str) -> None:
    listed = f"1 0 0:1 / / rw - {kind} none rw\n2 1 0:2 / /shared rw - {kind} none rw\n"
    found = [mount_of(Path(path), listed) for path in ("/team.db", "/shared/team.db")]
    assert [mount is not None and mount.is_shared for mount in found] == [False, True]


def test_s02_a_shared_file_system_is_refused_with_a_way_out(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {tmp_path} rw - nfs server:/x rw\n")
    with pytest.raises(ConfigurationInvalid, match=r"SQLite cannot work on nfs .*TEAM_DATA_DIR.*PostgreSQL"):
        require_local(tmp_path / "team.db", mounts)
    require_local(Path("/elsewhere/team.db"), mounts)
    require_local(tmp_path / "team.db", tmp_path / "no such list")


def test_s02_a_store_is_not_even_created_where_it_could_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"2 1 0:2 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr(require_local, "__defaults__", (mounts,))
    database = Database(f"sqlite:///{tmp_path / 'team.db'}")
    with pytest.raises(ConfigurationInvalid):
        migrate(database)
    database.close()
    assert not (tmp_path / "team.db").exists()
