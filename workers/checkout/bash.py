"""``bash``: one command in the Session's directory, and nothing of it left when the call returns but a job."""

import asyncio
import os
import re
import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from team.model.errors import InvalidArgument, TeamError
from team.model.tools import BashParameters
from team.model.values import text_fault
from workers.checkout.blocking import off_loop
from workers.checkout.environment import command_environment
from workers.checkout.errors import FileFaultError, FileMissingError, NotAFileError
from workers.checkout.guard import Guard
from workers.checkout.jobs import Jobs
from workers.checkout.paths import DATA_AREA, Place, Workspace
from workers.checkout.sandbox import Sandbox
from workers.checkout.spill import SPILL, prune_spill
from workers.guardian.protocol import DIRECTORY_FD, CommandReport, CommandSpec

LONGEST_COMMAND: Final = 120_000
"""UTF-8 bytes: the kernel takes no longer argument than 128 KiB."""

SPILL_BYTES: Final = 64 * 1024 * 1024
COMMANDS_AT_ONCE: Final = 8
"""Commands of one turn that run side by side; more wait for their turn."""

JOB_SECONDS: Final = 24 * 3600.0
"""Longest time of a job whose call gave no timeout: the claim ends it much sooner."""

_TURNS: Final = 1024
_NOTE_BYTES: Final = 600
# On one line with the command, so that line numbers in the shell's messages are those of the command.
_REPORT_DIRECTORY: Final = (
    f"trap '{{ set +x; }} 2>/dev/null; pwd -P >&{DIRECTORY_FD} 2>/dev/null || echo >&{DIRECTORY_FD}' EXIT; "
)


@dataclass(frozen=True)
class Ran:
    """The text for the model, and where the command left the Session's directory, if it moved."""

    text: str
    cwd: str | None


class DirectoryGoneError(Exception):
    """The Session's directory does not exist any more; it moves to ``nearest``."""

    def __init__(self, error: TeamError, nearest: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.nearest = nearest


@dataclass(frozen=True)
class BashCall:
    """Whose call it is: the Session's id and directory, the claim whose lease allows it, and the call's id."""

    session_id: str
    cwd: str
    execution: str
    call_id: str


class Bash:
    """The shell of one workspace. Without a ``sandbox`` commands are not confined."""

    def __init__(self, workspace: Workspace, guard: Guard, output_bytes: int, sandbox: Sandbox | None = None) -> None:
        self._workspace = workspace
        self._guard = guard
        self._output_bytes = output_bytes
        self._sandbox = sandbox
        self._jobs = Jobs()
        self._running: OrderedDict[str, asyncio.Semaphore] = OrderedDict()

    async def run(self, parameters: BashParameters, call: BashCall) -> Ran:
        """Run a command until its shell exits or its time is up, and end whatever it left; or start a job.

        Raises:
            DirectoryGoneError: The Session's directory is not there.
            TurnFenced, CommandLostError: See ``Guard.run``.
            TeamError: A fault of the call.
        """
        self._guard.require(call.execution)
        if len(parameters.command.encode()) > LONGEST_COMMAND:
            raise InvalidArgument(
                f"command is longer than {LONGEST_COMMAND:,} bytes. Write it to a file with write and run the file."
            )
        shell = shutil.which("bash")
        if shell is None:
            raise FileFaultError("This worker has no bash. Use the file tools.")
        spec = self._spec(shell, parameters, call)
        if parameters.stop_job is not None:
            await self._jobs.stop(call.execution, parameters.stop_job)
        if parameters.background:
            return await self._start(spec, parameters, call)
        async with self._slot(call.execution):
            report = await self._run(spec, call)
        if report.state == "failed":
            raise FileFaultError(f"The command could not be started: {report.detail}. Nothing was run.")
        if report.spill:
            await off_loop(prune_spill, self._workspace, _file_name(call.execution))
        moved, note = await off_loop(self._moved, report.directory, call.cwd)
        notes = [note] if note else []
        return Ran(_text(report, parameters.timeout_ms, [*notes, *self._jobs.report(call.execution)]), moved)

    def _spec(self, shell: str, parameters: BashParameters, call: BashCall) -> CommandSpec:
        # What a result may hold besides output is kept free, so that the whole stays within the limit.
        room = 0 if parameters.background else max(200, self._output_bytes - _NOTE_BYTES)
        unlimited = parameters.background and "timeout_ms" not in parameters.model_fields_set
        return CommandSpec(
            program=shell,
            argv=["bash", "--noprofile", "--norc", "-c", _REPORT_DIRECTORY + parameters.command],
            environment=command_environment(call.cwd),
            timeout=JOB_SECONDS if unlimited else parameters.timeout_ms / 1000,
            head=room // 2,
            tail=room - room // 2,
            spill_root=str(self._workspace.root),
            spill=[DATA_AREA, SPILL, _file_name(call.execution), f"{_file_name(call.call_id)}.txt"],
            spill_bytes=SPILL_BYTES,
            spill_at_once=parameters.background,
            track_directory=not parameters.background,
        )

    async def _run(self, spec: CommandSpec, call: BashCall) -> CommandReport:
        with await off_loop(self._start_directory, call.cwd) as place:
            if self._sandbox is None:
                return await self._guard.run(call.execution, spec, directory=place.directory)
            directory = str(self._workspace.root / place.path)
            async with self._sandbox.confined(spec, directory, call.session_id) as confined:
                report = await self._guard.run(call.execution, confined, directory=place.directory)
        if report.code == 1 and report.head.startswith("bwrap: "):
            raise FileFaultError(f"The command could not be confined: {report.head.strip()}. Nothing was run.")
        return report

    async def _start(self, spec: CommandSpec, parameters: BashParameters, call: BashCall) -> Ran:
        with await off_loop(self._start_directory, call.cwd):
            pass  # the job opens it again; a directory that is gone is this call's error
        output = "/".join([str(self._workspace.root), *(spec.spill or [])])
        job = await self._jobs.start(call.execution, parameters.command, output, lambda: self._run(spec, call))
        reports = self._jobs.report(call.execution)
        if job.task.done():
            return Ran(f"[{'; '.join(reports)}]", None)
        return Ran(f"Started {job.name}; its output goes to {output}\n[{'; '.join(reports)}]", None)

    def _slot(self, turn_id: str) -> asyncio.Semaphore:
        slot = self._running.setdefault(turn_id, asyncio.Semaphore(COMMANDS_AT_ONCE))
        self._running.move_to_end(turn_id)
        if len(self._running) > _TURNS:
            self._running.popitem(last=False)
        return slot

    def end_turn(self, turn_id: str) -> None:
        """Forget the turn, and end its jobs. Idempotent."""
        self._jobs.end_turn(turn_id)
        self._running.pop(turn_id, None)

    def _start_directory(self, cwd: str) -> Place:
        try:
            return self._workspace.directory(cwd, cwd)
        except (FileMissingError, NotAFileError) as error:
            nearest = self._nearest(cwd)
            raise DirectoryGoneError(
                FileMissingError(
                    f"Your directory {cwd} does not exist any more; somebody removed or renamed it. Nothing was run. "
                    f"Your directory is now {nearest}: go on from there."
                ),
                nearest,
            ) from error

    def _nearest(self, cwd: str) -> str:
        for parent in PurePosixPath(cwd).parents:
            try:
                with self._workspace.directory(str(parent), str(parent)):
                    return str(parent)
            except TeamError:
                continue
        return str(self._workspace.root)

    def _moved(self, directory: str | None, cwd: str) -> tuple[str | None, str]:
        """Where the Session's directory moves, and a note when it does not go where the command went."""
        if directory is None or directory == os.path.realpath(cwd):
            return None, ""
        stays = f"your directory stays {cwd}"
        if not directory:
            return None, f"the directory you changed to is gone; {stays}"
        if text_fault(directory):
            return None, f"the name of the directory you changed to is not UTF-8; {stays}"
        spelled = self._workspace.spelled(directory)
        if spelled is None:
            return None, f"the directory you changed to is outside of the workspace; {stays}"
        try:
            with self._workspace.directory(directory, directory):
                return spelled, f"your directory is now {spelled}"
        except TeamError:
            return None, f"the directory you changed to is gone; {stays}"


def _file_name(identity: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", identity)[:100] or "_"


def _text(report: CommandReport, timeout_ms: int, more: list[str]) -> str:
    parts = [report.head]
    if report.tail is not None:
        parts = [f"{report.head.rstrip()}\n[… {_left_out(report)} …]\n{report.tail.lstrip()}"]
    if parts[0] and not parts[0].endswith("\n"):
        parts.append("\n")
    notes: list[str] = []
    match report.state:
        case "timed-out":
            notes.append(f"timed out after {timeout_ms:,} ms: the command and every process of it were ended")
        case "too-many":
            notes.append("ended: the command started too many processes")
        case "stopped":
            notes.append("ended: the command was stopped from outside")
        case _ if report.code is not None and report.code < 0:
            notes.append(f"ended by signal {-report.code}")
        case _:
            notes.append(f"exit code {report.code}")
    if report.left:
        notes.append(f"ended what it left running: {', '.join(report.left)}")
    if report.immortal:
        notes.append(f"{report.immortal} of its processes could not be ended")
    notes += more
    return "".join(parts) + f"[{'; '.join(notes)}]"


def _left_out(report: CommandReport) -> str:
    shown = len(report.head.encode("utf-8", "replace")) + len((report.tail or "").encode("utf-8", "replace"))
    text = f"about {max(0, report.total - shown):,} of {report.total:,} bytes left out here"
    if not report.spill:
        return text + (f"; the rest could not be kept: {report.detail}" if report.detail else "")
    kept = "the whole output" if report.spilled >= report.total else f"its first {report.spilled:,} bytes"
    return f"{text}; {kept}: {report.spill}"
