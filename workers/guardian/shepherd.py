"""A shepherd runs one command, keeps a bounded view of its output, and ends all that the command started.

It adopts every orphan among the command's descendants, so a process that detached itself (``setsid``, a double fork)
is still below the shepherd and is found when the command returns. Only a process that asks a foreign service to start
something for it (``cron``, ``systemd-run``, a container engine) gets out.
"""

import fcntl
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from workers.guardian import kernel
from workers.guardian.capture import Capture, Records
from workers.guardian.protocol import (
    DIRECTORY_FD,
    CommandReport,
    CommandSpec,
    State,
    encode_report,
    receive_spec,
)

LINGER_SECONDS: Final = 0.1
"""How long the rest of a command may take to end by itself, such as ``>(tee log)``."""

LEFT_GRACE_SECONDS: Final = 0.5
TIMEOUT_GRACE_SECONDS: Final = 2.0
KILL_SECONDS: Final = 10.0
MOST_THREADS: Final = 1024
"""Threads that one command may have at once; beyond, it is ended as a fork bomb."""

_PIECE: Final = 256 * 1024
_PIPE_BYTES: Final = 512 * 1024
_LARGEST_DIRECTORY: Final = 8192
_LARGEST_ERRORS: Final = 4096
_NAMES: Final = 10

_STOPS: Final[dict[int, State]] = {
    signal.SIGTERM: "stopped",
    signal.SIGUSR1: "lease",
    signal.SIGUSR2: "too-many",
}


def run_shepherd(connection: socket.socket, directory: int, stdin: int | None, guard: int) -> None:
    """Be the shepherd of the command that the worker sends on ``connection``; ``guard`` is the parent's pid."""
    kernel.adopt_orphans()
    kernel.set_name("team-shepherd")
    shepherd = Shepherd(connection, directory, stdin)
    kernel.die_with_parent(guard, signal.SIGTERM)
    report = shepherd.run()
    if report:
        # The worker may be gone, or stuck: nothing of the command lives any more, so nobody else waits for this.
        connection.settimeout(30)
        with suppress(OSError):
            connection.sendall(encode_report(report))


class Shepherd:
    """One command from its start until nothing of it is left."""

    def __init__(self, connection: socket.socket, directory: int, stdin: int | None) -> None:
        self._connection = connection
        self._directory = directory
        self._stdin = stdin
        self._stop: State | None = None
        self._status: int | None = None
        self._command = 0
        self._wakeup, write_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in _STOPS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, kernel.ignore_signal)
        self._poller = select.poll()
        self._poller.register(self._wakeup, select.POLLIN)
        self._sinks: dict[int, Capture | Records] = {}

    def _on_stop(self, number: int, _frame: object) -> None:
        self._stop = self._stop or _STOPS[number]

    def run(self) -> CommandReport | None:
        """The report, or None when the worker went away before it had sent the command."""
        spec = receive_spec(self._connection)
        if spec is None or self._stop:
            return None
        spill_path = "/".join([spec.spill_root or "", *(spec.spill or [])])
        output = Capture(spec.head, spec.tail, _spill_opener(spec), spec.spill_bytes)
        if spec.spill_at_once:
            output.spill_at_once()
        errors = Capture(_LARGEST_ERRORS, 0)
        records = Records(spec.selection) if spec.selection else None
        directory_end = -1
        fault = ""
        try:
            directory_end, fault = self._start(spec, records or output, errors)
        except OSError as error:
            fault = error.strerror or str(error)
        state: State = "failed"
        left: list[str] = []
        immortal = 0
        if not fault:
            state = self._wait(time.monotonic() + spec.timeout)
            left, immortal = self._end_all(state, confined=spec.confinement != "none")
        self._drain()
        output.close()
        if records:
            records.close()
        view = output.view()
        return CommandReport(
            state=state,
            code=None if self._status is None else os.waitstatus_to_exitcode(self._status),
            head=view.head,
            tail=view.tail,
            total=view.total,
            spill=spill_path if view.spilled else None,
            spilled=view.spilled,
            errors=errors.view().head,
            directory=_reported_directory(directory_end),
            left=left,
            immortal=immortal,
            records=records.kept if records else None,
            matched=records.matched if records else 0,
            detail=fault or output.spill_fault,
        )

    def _start(self, spec: CommandSpec, output: Capture | Records, errors: Capture) -> tuple[int, str]:
        """Fork the command. Returns the read end on which it reports its directory, and why it did not start."""
        out_read, out_write = os.pipe()
        with suppress(OSError):  # over the user's quota of pipe memory
            fcntl.fcntl(out_write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        status_read, status_write = os.pipe()
        directory_read, directory_write = os.pipe()
        error_read, error_write = os.pipe() if spec.selection else (-1, out_write)
        shepherd = os.getpid()
        self._command = os.fork()
        if self._command == 0:
            try:
                self._become(spec, shepherd, out_write, error_write, directory_write)
            except BaseException as error:  # noqa: BLE001  # whatever failed, this child must not go on as a shepherd
                os.write(status_write, str(getattr(error, "strerror", None) or error).encode()[:1000])
            finally:
                os._exit(127)
        for end in {out_write, error_write, status_write, directory_write, self._directory}:
            os.close(end)
        self._watch(out_read, output)
        if spec.selection:
            self._watch(error_read, errors)
        self._poller.register(self._connection.fileno(), select.POLLIN)
        fault = os.read(status_read, 1000).decode("utf-8", "replace")
        os.close(status_read)
        if fault:
            with suppress(ChildProcessError):
                os.waitpid(self._command, 0)
        return directory_read, fault

    def _become(self, spec: CommandSpec, shepherd: int, output: int, errors: int, directory: int) -> None:
        os.setsid()
        kernel.die_with_parent(shepherd, signal.SIGKILL)
        os.fchdir(self._directory)
        if self._stdin is None:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        else:
            os.dup2(self._stdin, 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        if spec.track_directory:
            os.dup2(directory, DIRECTORY_FD)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kernel.limit_threads(MOST_THREADS)
        _offer_to_oom_killer()
        if spec.confinement != "root":
            kernel.drop_inspection()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(spec.program, spec.argv, spec.environment)  # noqa: S606  # argv is ours, the shell is the command

    def _watch(self, end: int, sink: Capture | Records) -> None:
        os.set_blocking(end, False)
        self._sinks[end] = sink
        self._poller.register(end, select.POLLIN)

    def _wait(self, deadline: float) -> State:
        """Until the command exits, is stopped, or its time is up."""
        while True:
            self._turn(min(deadline - time.monotonic(), 60.0))
            if self._stop:
                return self._stop
            if self._status is not None:
                return "exited"
            if time.monotonic() >= deadline:
                return "timed-out"

    def _turn(self, seconds: float) -> None:
        """Wait for at most ``seconds`` for something to happen, and handle it."""
        for end, _event in self._poller.poll(max(0.0, seconds) * 1000):
            if end == self._wakeup:
                with suppress(BlockingIOError):
                    os.read(self._wakeup, 4096)
            elif end in self._sinks:
                self._pump(end)
            else:
                self._hear()
        kernel.reap(self._on_exit)

    def _hear(self) -> None:
        """The worker says nothing after the command: what can be read is its hanging up."""
        try:
            gone = not self._connection.recv(64)
        except OSError:
            gone = True
        if gone:
            self._poller.unregister(self._connection.fileno())
            self._stop = self._stop or "stopped"

    def _on_exit(self, pid: int, status: int) -> None:
        if pid == self._command:
            self._status = status

    def _pump(self, end: int) -> bool:
        """Read one piece; False when there is nothing to read now or ever."""
        try:
            data = os.read(end, _PIECE)
        except BlockingIOError:
            return False
        if data:
            self._sinks[end].feed(data)
            return True
        self._poller.unregister(end)
        os.close(end)
        del self._sinks[end]
        return False

    def _drain(self) -> None:
        """What is still in the pipes. Their writers are dead, but for one that got out: hence the bound."""
        for end in list(self._sinks):
            for _ in range(64):
                if not self._pump(end):
                    break

    def _end_all(self, state: State, *, confined: bool) -> tuple[list[str], int]:
        """End every descendant. Returns the names of those that an exited command had left, and how many resist."""
        names: list[str] = []
        if state == "exited":
            self._turn_until(time.monotonic() + LINGER_SECONDS)
        if state == "too-many":
            # Atomic for the whole group, unlike anything that looks at processes one by one.
            with suppress(OSError):
                os.killpg(self._command, signal.SIGKILL)
        # A fork bomb gets no grace: asking thousands of processes one by one gives it time to grow.
        alive = kernel.descendants(kernel.children()) if kernel.children() and state != "too-many" else []
        if state == "exited":
            # Bubblewrap's own first process of the namespace came to this one, and is nothing that was left.
            left = [stat.name for stat in alive if not confined or stat.parent != os.getpid()]
            names = left[:_NAMES]
            if len(left) > _NAMES:
                names.append(f"{len(left) - _NAMES} more")
        for number in (signal.SIGTERM, signal.SIGCONT):
            for stat in alive:
                kernel.send_signal(stat, number)
        if alive:
            grace = TIMEOUT_GRACE_SECONDS if state == "timed-out" else LEFT_GRACE_SECONDS
            self._turn_until(time.monotonic() + grace)
        give_up = time.monotonic() + KILL_SECONDS
        while not kernel.kill_children((), self._on_exit) and time.monotonic() < give_up:
            self._turn(0.02)
        return names, len(kernel.children())

    def _turn_until(self, end: float) -> None:
        """Go on until no child is left or ``end`` has come."""
        while kernel.children():
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            self._turn(remaining)


def _reported_directory(end: int) -> str | None:
    if end < 0:
        return None
    os.set_blocking(end, False)
    with suppress(OSError):
        path = os.read(end, _LARGEST_DIRECTORY)
        if path.endswith(b"\n") and len(path) < _LARGEST_DIRECTORY:
            # JSON can carry the lone surrogates that stand for bytes which are not UTF-8.
            return os.fsdecode(path[:-1])
    return None


def _offer_to_oom_killer() -> None:
    """When memory runs out the kernel takes the command, not the worker."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _spill_opener(spec: CommandSpec) -> Callable[[], int] | None:
    root, names = spec.spill_root, spec.spill
    if root is None or not names:
        return None

    def opener() -> int:
        # Step by step without following links: a command may have put one in the way.
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names[:-1]:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=directory)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = inner
            with suppress(FileNotFoundError):
                os.unlink(names[-1], dir_fd=directory)
            return os.open(names[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
        finally:
            os.close(directory)

    return opener
