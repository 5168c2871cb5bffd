"""Finding every process that a test run started, whoever its parent is by now."""

import os
import re
import secrets
from pathlib import Path
from typing import Final

import psutil

MARKER: Final = "TEAM_TEST_RUN"


class RunProcesses:
    """Knows the processes of this test run by an inherited variable, or by a path inside its directory."""

    def __init__(self, directory: Path) -> None:
        self._inside = re.compile(re.escape(str(directory.resolve())) + r"(?![^/\s:])")
        self.token = secrets.token_hex(8)
        os.environ[MARKER] = self.token

    def survivors(self) -> list[psutil.Process]:
        """Live processes of the run besides this one and its ancestors."""
        own = psutil.Process()
        spared = {own.pid, *(parent.pid for parent in own.parents())}
        return [process for process in psutil.process_iter() if process.pid not in spared and self._belongs(process)]

    def _belongs(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process.environ().get(MARKER) == self.token:
                return True
            places = [process.cwd(), *process.cmdline()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            return False
        # As a whole directory: the run beside ours may have a name that begins like ours.
        return any(self._inside.search(place) for place in places)


def describe(processes: list[psutil.Process]) -> str:
    """One line per process: pid and command."""
    lines: list[str] = []
    for process in processes:
        try:
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            lines.append(f"{process.pid}: gone")
    return "\n".join(lines)
