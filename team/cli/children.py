"""One supervised child process: it never outlives its supervisor, and it is started again when it exits."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from team.cli.tokens import keys_pipe

_PR_SET_PDEATHSIG: Final = 1
_FIRST_DELAY_SECONDS: Final = 0.2
_LONGEST_DELAY_SECONDS: Final = 5.0
_STEADY_SECONDS: Final = 10.0
_LOG_BYTES: Final = 5_000_000
_TAIL_BYTES: Final = 8_192

_LIBC = ctypes.CDLL(None)


def _die_with(parent: int) -> Callable[[], None] | None:
    """Code for the child between fork and exec: the kernel kills it when its parent thread ends.

    Elsewhere than on Linux there is no such signal; an orderly stop still ends every child.
    """
    if sys.platform != "linux":
        return None
    libc = _LIBC

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died between the fork and the call above: then no signal will come.
        if os.getppid() != parent:
            os._exit(1)

    return arrange


@dataclass(frozen=True)
class ChildSpec:
    """How to start one child. ``keys`` reach it through a pipe that it reads once, never by its environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    standard_input: bytes = b""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])


class Child:
    """A child process and its restarts. Use it from one thread: its end is bound to that thread's life."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._delay = _FIRST_DELAY_SECONDS
        self._due = 0.0
        self._log_offset = 0

    @property
    def pid(self) -> int | None:
        """Its process id, or None when it was never started."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal, None while it runs or before its first start."""
        return self._process.poll() if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._process is not None and self._process.poll() is None

    @property
    def age_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started

    @property
    def delay_seconds(self) -> float:
        """How long a restart waits after the next failure."""
        return self._delay

    def start(self) -> None:
        """Start it; its output goes to its log.

        Raises:
            ConfigurationInvalid: The provider keys cannot be handed over.
            OSError: The program cannot be executed.
        """
        spec = self.spec
        environment = dict(spec.environment)
        handed: tuple[int, ...] = ()
        if spec.keys:
            reader = keys_pipe(spec.keys)
            handed = (reader,)
            environment["TEAM_PROVIDER_KEYS_FILE"] = f"/dev/fd/{reader}"
        try:
            with _open_log(spec.log) as log:
                self._log_offset = log.tell()
                process = subprocess.Popen(  # noqa: S603  # commands are built by the supervisor
                    spec.command,
                    cwd=spec.directory,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=handed,
                    # Ctrl-C in a terminal reaches the supervisor alone, which stops its children in order.
                    start_new_session=True,
                    preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  # runs two calls of libc and nothing else
                )
        finally:
            for descriptor in handed:
                os.close(descriptor)
        self._process, self._started = process, time.monotonic()
        if process.stdin is not None:
            try:
                process.stdin.write(spec.standard_input)
                process.stdin.close()
            except BrokenPipeError:
                return  # it ended at once; its exit code and last words tell why

    def revive(self) -> bool:
        """Start it again when it has exited and its back-off is over; True when it was started now."""
        if self.alive or self._process is None:
            return False
        now = time.monotonic()
        if self._due == 0.0:
            if self.age_seconds > _STEADY_SECONDS:
                self._delay = _FIRST_DELAY_SECONDS
            self._due = now + self._delay
            self._delay = min(self._delay * 2, _LONGEST_DELAY_SECONDS)
        if now < self._due:
            return False
        self._due = 0.0
        self.restarts += 1
        self.start()
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def last_words(self) -> str:
        """The last line that it wrote since its newest start, or an empty text."""
        try:
            with self.spec.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_offset, size - _TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _open_log(path: Path):  # noqa: ANN202  # a binary file
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    log = path.open("ab")
    os.chmod(path, 0o600)  # noqa: PTH101  # keeps the open file and its mode in one place
    return log
