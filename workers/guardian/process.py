"""The guard process: it forks a shepherd for each command and sees to it that none outlives its right to run.

One per worker. It ends all commands when the worker's end of the control socket closes, however the worker died; the
commands of a turn when its lease passes without a renewal, or when the turn ends; and any process whose shepherd was
killed, because it adopts what shepherds lose.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

from workers.guardian import kernel
from workers.guardian.protocol import (
    CONTROL_BYTES,
    CommandReport,
    decode_control,
    encode_control,
    encode_report,
)
from workers.guardian.shepherd import MOST_THREADS, run_shepherd

MARK_VARIABLE: Final = "TEAM_GUARD"
"""In the environment of every command: which guard is responsible for it."""

ESCALATE_SECONDS: Final = 4.0
"""After this time a shepherd that was told to stop is killed, and its processes with it."""

LAST_SECONDS: Final = 15.0
_WATCH_SECONDS: Final = 0.2
_ROUND_SECONDS: Final = 0.02
_GROWTH: Final = 256
_COUNT_SECONDS: Final = 5.0


class _Herd:
    """One running shepherd."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.kill_at: float | None = None


class GuardProcess:
    """The loop of the guard; single-threaded, so that its forks and its children are its own."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._herds: dict[int, _Herd] = {}
        self._deadlines: dict[str, float] = {}
        self._ending: list[tuple[str, str]] = []
        self._strays = False
        self._worker_gone = False
        self._counted = 0
        self._count_again = 0.0
        self._wakeup, write_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, kernel.ignore_signal)
        signal.signal(signal.SIGTERM, self._on_term)
        self._poller = select.poll()
        self._poller.register(self._wakeup, select.POLLIN)
        self._poller.register(control, select.POLLIN)

    def _on_term(self, *_: object) -> None:
        self._worker_gone = True

    def serve(self) -> None:
        """Serve the worker until it is gone and nothing that it started is left."""
        self._control.send(encode_control({"op": "ready", "mark": kernel.guard_mark()}))
        last = float("inf")
        while True:
            self._turn()
            if self._worker_gone:
                last = min(last, time.monotonic() + LAST_SECONDS)
                self._deadlines.clear()
                for pid in self._herds:
                    self._stop(pid, signal.SIGTERM)
                if (not self._herds and not kernel.children()) or time.monotonic() > last:
                    return

    def _turn(self) -> None:
        for end, _event in self._poller.poll(self._pause() * 1000):
            if end == self._wakeup:
                with suppress(BlockingIOError):
                    os.read(self._wakeup, 4096)
            else:
                self._receive()
        # A command may stop its own shepherd, which then could not end it in time.
        kernel.reap(self._on_exit, wake=True)
        self._end_strays()
        self._end_overdue()
        self._end_bombs()
        self._answer_ended()

    def _pause(self) -> float:
        if self._strays or self._worker_gone:
            return _ROUND_SECONDS
        return _WATCH_SECONDS if self._herds or self._ending else 3600.0

    def _receive(self) -> None:
        try:
            packet, ancillary, _, _ = self._control.recvmsg(
                CONTROL_BYTES, socket.CMSG_SPACE(3 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            packet, ancillary = b"", []
        handles = _descriptors(ancillary)
        if not packet:
            self._worker_gone = True
            self._poller.unregister(self._control)
            return
        message = decode_control(packet)
        match message["op"]:
            case "run":
                self._run(message["turn"], handles)
                return
            case "renew":
                self._deadlines[message["turn"]] = message["until"]
            case "end":
                self._deadlines.pop(message["turn"], None)
                self._ending.append((message["turn"], message["ref"]))
                for pid, herd in self._herds.items():
                    if herd.turn == message["turn"]:
                        self._stop(pid, signal.SIGTERM)
            case _:
                pass
        for handle in handles:
            os.close(handle)

    def _run(self, turn: str, handles: list[int]) -> None:
        if len(handles) < 2:  # out of descriptors: the worker sees its connection close
            for handle in handles:
                os.close(handle)
            return
        connection = socket.socket(fileno=handles[0])
        directory = handles[1]
        stdin = handles[2] if len(handles) > 2 else None
        if self._deadlines.get(turn, 0.0) <= time.monotonic():
            _refuse(connection, CommandReport(state="refused"))
        else:
            try:
                self._fork(turn, connection, directory, stdin)
            except OSError as error:
                _refuse(connection, CommandReport(state="failed", detail=error.strerror or str(error)))
        connection.close()
        for handle in handles[1:]:
            os.close(handle)

    def _fork(self, turn: str, connection: socket.socket, directory: int, stdin: int | None) -> None:
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                # With a copy of the control socket this shepherd would keep the worker from seeing the guard die.
                self._control.close()
                run_shepherd(connection, directory, stdin, guard)
                code = 0
            except BaseException as error:  # noqa: BLE001  # reported as an uncaught error would be; it must not go on as a guard
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                os._exit(code)
        self._herds[pid] = _Herd(turn)

    def _stop(self, pid: int, number: signal.Signals) -> None:
        herd = self._herds[pid]
        if herd.kill_at is None:
            herd.kill_at = time.monotonic() + ESCALATE_SECONDS
            os.kill(pid, number)

    def _on_exit(self, pid: int, _status: int) -> None:
        self._herds.pop(pid, None)
        # Whatever it could not end, or had no time to end, is a child of this process by now.
        self._strays = True

    def _end_strays(self) -> None:
        if self._strays:
            self._strays = not kernel.kill_children(self._herds, self._on_exit)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for pid, herd in list(self._herds.items()):
            if herd.kill_at is None and self._deadlines.get(herd.turn, 0.0) <= now:
                self._stop(pid, signal.SIGUSR1)
            elif herd.kill_at is not None and herd.kill_at <= now:
                # It may have been stopped by its own command. Its processes become ours.
                os.kill(pid, signal.SIGKILL)

    def _end_bombs(self) -> None:
        if not self._herds:
            return
        count, now = kernel.thread_count(), time.monotonic()
        # Looking at all processes is dear where many run: once, and again when their number has grown.
        if count <= MOST_THREADS or (count < self._counted + _GROWTH and now < self._count_again):
            return
        self._counted, self._count_again = count, now + _COUNT_SECONDS
        table = kernel.process_table()
        for pid in list(self._herds):
            below = [stat for stat in kernel.descendants((pid,), table) if stat.pid != pid]
            if sum(stat.threads for stat in below) > MOST_THREADS:
                self._stop(pid, signal.SIGUSR2)
                for group in {stat.group for stat in below} - {os.getpgid(0)}:
                    with suppress(OSError):
                        os.killpg(group, signal.SIGKILL)

    def _answer_ended(self) -> None:
        if self._strays or not self._ending:
            return
        running = {herd.turn for herd in self._herds.values()}
        for turn, ref in list(self._ending):
            if turn in running:
                continue
            try:
                self._control.send(encode_control({"op": "ended", "ref": ref}), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return  # a slow reader gets it in a later round
            except OSError:
                self._worker_gone = True
            self._ending.remove((turn, ref))


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    handles: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            handles.extend(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) - 3, 4))
    return handles


def _refuse(connection: socket.socket, report: CommandReport) -> None:
    with suppress(OSError):
        connection.sendall(encode_report(report))


def end_orphans() -> int:
    """End what commands of dead guards left: guard and shepherds can be killed together. Returns how many."""
    ended = 0
    for _ in range(5):
        found = 0
        for stat in kernel.processes():
            mark = _mark_of(stat.pid)
            if stat.state not in "ZX" and mark and kernel.mark_is_dead(mark):
                found += kernel.send_signal(stat, signal.SIGKILL)
        ended += found
        if not found:
            break
    return ended


def _mark_of(pid: int) -> str | None:
    key = f"{MARK_VARIABLE}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for variable in file.read(1024 * 1024).split(b"\0"):
                if variable.startswith(key):
                    return variable[len(key) :].decode("ascii", "replace")
    except OSError:
        return None
    return None


def main(control: int) -> None:
    """Run the guard on the inherited descriptor ``control``."""
    kernel.adopt_orphans()
    kernel.set_name("team-guard")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kernel.run_first()
    end_orphans()
    connection: Any = socket.socket(fileno=control)
    connection.set_inheritable(False)
    GuardProcess(connection).serve()
