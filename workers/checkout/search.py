"""``glob`` and ``grep`` on ripgrep, run by the guard like any other command of the turn."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from team.model.errors import ConfigurationInvalid, InvalidArgument
from team.model.tools import GlobParameters, GrepParameters
from workers.checkout.blocking import off_loop
from workers.checkout.errors import FileFaultError
from workers.checkout.globs import glob_regex
from workers.checkout.guard import Guard
from workers.checkout.paths import Place, Workspace, os_fault
from workers.checkout.storage import LARGEST_READ, open_file
from workers.guardian.protocol import CommandReport, CommandSpec, Selection

TIMEOUT_SECONDS: Final = 60.0
MOST_FILES: Final = 1000
_LONGEST_LINE: Final = 500
_NOTE_BYTES: Final = 500
_OPERATING_SYSTEM: Final = re.compile(r"rg: .*\(os error \d+\)")
_ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8"}


def find_ripgrep() -> str:
    """The ``rg`` of this installation. Raises ConfigurationInvalid when it is missing."""
    beside = Path(sys.executable).with_name("rg")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("rg")
    if not found:
        raise ConfigurationInvalid("ripgrep (rg) is missing on this worker: install the package 'ripgrep'")
    return found


class Search:
    """The search tools of one workspace."""

    def __init__(self, workspace: Workspace, guard: Guard, output_bytes: int) -> None:
        self._workspace = workspace
        self._guard = guard
        self._output_bytes = output_bytes
        self._rg = find_ripgrep()

    async def glob(self, parameters: GlobParameters, cwd: str, turn_id: str) -> str:
        """List files, newest first.

        Raises:
            TurnFenced, CommandLostError: See ``Guard.run``.
            TeamError: A fault of the call.
        """
        pattern = glob_regex(parameters.pattern)
        with await off_loop(self._workspace.directory, parameters.path or ".", cwd) as place:
            # The filter is ours: ripgrep's own --glob would bring ignored and hidden files back.
            argv = ["--files", "--null", "--sortr", "modified", "--", "./"]
            selection = Selection("\0", "", pattern, MOST_FILES, self._output_bytes)
            report = await self._run(turn_id, argv, selection, place.directory)
        label = _label(self._workspace, place, cwd)
        names = _bounded([label + name for name in report.records or ()], self._output_bytes - _NOTE_BYTES)
        if not names:
            hint = f" To search below it use '**/{parameters.pattern}'." if "/" not in parameters.pattern else ""
            return f"No files match {parameters.pattern} in {parameters.path or cwd}.{hint}{_faults(report)}"
        return _listing(names, report, "files")

    async def grep(self, parameters: GrepParameters, cwd: str, turn_id: str) -> str:
        """Search contents. Raises like ``glob``."""
        argv = ["--line-number", "--max-columns", str(_LONGEST_LINE), "--max-columns-preview", "--crlf", "--no-heading"]
        if parameters.ignore_case:
            argv.append("--ignore-case")
        path_pattern = None
        if parameters.glob:
            if "/" in parameters.glob:
                path_pattern = glob_regex(parameters.glob)
            else:
                # A file type matches names at any depth, and unlike --glob keeps ignored and hidden files out.
                glob_regex(parameters.glob)
                argv += ["--type-add", f"wanted:{parameters.glob}", "--type", "wanted"]
        with await off_loop(self._workspace.place, parameters.path or ".", cwd) as place:
            if place.is_directory or not place.exists:
                report, label = await self._grep_directory(parameters, argv, path_pattern, cwd, turn_id)
            else:
                report, label = await self._grep_file(parameters, argv, place, cwd, turn_id)
        lines = [f"{label}{record.rstrip(chr(13)).replace(chr(0), ':', 1)}" for record in report.records or ()]
        lines = _bounded(lines, self._output_bytes - _NOTE_BYTES)
        if not lines:
            return f"No matches for {parameters.pattern} in {parameters.path or cwd}.{_faults(report)}"
        return _listing(lines, report, "files" if parameters.files_only else "matching lines")

    async def _grep_directory(
        self, parameters: GrepParameters, argv: list[str], pattern: str | None, cwd: str, turn_id: str
    ) -> tuple[CommandReport, str]:
        with await off_loop(self._workspace.directory, parameters.path or ".", cwd) as place:
            if parameters.files_only:
                argv = [*argv, "--files-with-matches"]
                selection = Selection("\0", "", pattern, MOST_FILES, self._output_bytes)
            else:
                selection = Selection("\n", "\0", pattern, self._output_bytes, self._output_bytes)
            argv = ["--null", "--with-filename", "--sort", "path", *argv, "--regexp", parameters.pattern, "--", "./"]
            report = await self._run(turn_id, argv, selection, place.directory)
            return report, _label(self._workspace, place, cwd)

    async def _grep_file(
        self, parameters: GrepParameters, argv: list[str], place: Place, cwd: str, turn_id: str
    ) -> tuple[CommandReport, str]:
        # Through standard input: the file that was checked is the file that is searched.
        try:
            file = await off_loop(open_file, place, LARGEST_READ)
        except OSError as error:
            raise os_fault(place.shown, error) from error
        name = _label(self._workspace, place, cwd).removesuffix("/")
        with file:
            argv = [*argv, "--no-filename", "--regexp", parameters.pattern, "--", "-"]
            selection = Selection("\n", "", None, self._output_bytes, self._output_bytes)
            report = await self._run(turn_id, argv, selection, place.directory, file.fileno())
        if parameters.files_only:
            return report._replace(records=[name] if report.matched else [], matched=min(report.matched, 1)), ""
        return report, f"{name}:"

    async def _run(
        self, turn_id: str, argv: list[str], selection: Selection, directory: int, stdin: int | None = None
    ) -> CommandReport:
        spec = CommandSpec(
            program=self._rg,
            argv=["rg", "--no-config", "--color", "never", *argv],
            environment=_ENVIRONMENT,
            timeout=TIMEOUT_SECONDS,
            head=0,
            tail=0,
            selection=selection,
        )
        report = await self._guard.run(turn_id, spec, directory=directory, stdin=stdin)
        if report.state == "failed":
            raise FileFaultError(f"The search could not be started: {report.detail}. Try again.")
        if report.code == 2 and not report.records and not _OPERATING_SYSTEM.match(report.errors):
            raise InvalidArgument(report.errors.strip().removeprefix("rg: "))
        return report


def _label(workspace: Workspace, place: Place, cwd: str) -> str:
    """What to put before the names in ``place``: relative to the Session's directory where that is possible."""
    here = workspace.relative(cwd)
    path = place.path
    if here is None or path == here:
        return "" if path == here else f"{workspace.root}/{path}/"
    if here == "":
        return f"{path}/"
    if path.startswith(f"{here}/"):
        return f"{path[len(here) + 1 :]}/"
    return f"{workspace.root}/{path}/" if path else f"{workspace.root}/"


def _bounded(lines: list[str], size: int) -> list[str]:
    kept: list[str] = []
    for line in lines:
        size -= len(line.encode("utf-8", "replace")) + 1
        if size < 0:
            break
        kept.append(line)
    return kept


def _listing(lines: list[str], report: CommandReport, what: str) -> str:
    text = "\n".join(lines)
    if report.matched > len(lines):
        text += f"\n[{len(lines):,} of {report.matched:,} {what}; narrow the pattern or the path to see others]"
    return text + _faults(report)


def _faults(report: CommandReport) -> str:
    notes: list[str] = []
    if report.state == "timed-out":
        notes.append(f"the search was stopped after {TIMEOUT_SECONDS:g} s and is not complete: narrow the path")
    elif report.state != "exited":
        notes.append(f"the search was {report.state} and is not complete")
    if report.code == 2:
        notes.append("; ".join(report.errors.strip().splitlines()[:3]))
    return f"\n[{'; '.join(notes)}]" if notes else ""
