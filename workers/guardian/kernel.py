"""What the guard asks of Linux: process control by ``prctl``, the process tree by ``/proc``."""

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

_SET_PDEATHSIG: Final = 1
_SET_DUMPABLE: Final = 4
_SET_NAME: Final = 15
_CAPBSET_READ: Final = 23
_CAPBSET_DROP: Final = 24
_SET_CHILD_SUBREAPER: Final = 36

INSPECTING: Final = (16, 17, 19, 21, 22, 38, 39, 40)
"""Capabilities that let root look into or take over other processes and the kernel: SYS_MODULE, SYS_RAWIO, SYS_PTRACE,
SYS_ADMIN, SYS_BOOT, PERFMON, BPF, CHECKPOINT_RESTORE. Any of SYS_PTRACE, PERFMON and SYS_ADMIN opens
``/proc/PID/environ`` of a process that made itself non-dumpable."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes = 0) -> int:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    answer: int = _libc.prctl(ctypes.c_int(option), argument, zero, zero, zero)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


def adopt_orphans() -> None:
    """Orphaned descendants become children of this process, however they detached themselves."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Get ``number`` when the parent dies; ``parent`` is its pid, read before the fork.

    Exits at once when the parent is dead already.
    """
    _prctl(_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    """Set the name that ``ps`` and ``pkill`` (without -f) see."""
    _prctl(_SET_NAME, name.encode())


def make_non_dumpable() -> None:
    """No other process of this user may read this one's memory or environment, and no core file is written.

    Root, and whoever holds CAP_SYS_PTRACE, still may; the guard starts commands without such capabilities.
    """
    _prctl(_SET_DUMPABLE, 0)


def run_first() -> None:
    """Preempt ordinary processes, so that a fork bomb cannot starve this one; does nothing without the privilege.

    Processes that this one forks are ordinary again.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def limit_threads(more: int) -> None:
    """Let this process and its children have ``more`` threads beyond what runs now. The kernel exempts root."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = thread_count() + more
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def drop_inspection() -> None:
    """Take the capabilities of ``INSPECTING`` from whatever this process executes next; does nothing without root."""
    for capability in INSPECTING:
        with suppress(OSError):  # unknown to this kernel, or this process is not privileged and its children neither
            if _prctl(_CAPBSET_READ, capability):
                _prctl(_CAPBSET_DROP, capability)


class ProcessStat(NamedTuple):
    pid: int
    name: str
    state: str
    parent: int
    group: int
    started: int
    threads: int


def process_stat(pid: int) -> ProcessStat | None:
    """The process as ``/proc`` shows it, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return ProcessStat(
        pid, head.partition("(")[2], fields[0], int(fields[1]), int(fields[2]), int(fields[19]), int(fields[17])
    )


def processes() -> Iterator[ProcessStat]:
    """Every process of this PID namespace."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = process_stat(int(entry))
            if stat:
                yield stat


def process_table() -> dict[int, ProcessStat]:
    return {stat.pid: stat for stat in processes()}


def children() -> list[int]:
    """The direct children of this single-threaded process, zombies included."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [stat.pid for stat in processes() if stat.parent == own]


def descendants(roots: Collection[int], table: Mapping[int, ProcessStat] | None = None) -> list[ProcessStat]:
    """Live processes below ``roots``, the roots included. ``table`` spares a look at all processes."""
    if table is None:
        table = process_table()
    below: dict[int, list[int]] = {}
    for stat in table.values():
        below.setdefault(stat.parent, []).append(stat.pid)
    found: list[ProcessStat] = []
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid in seen:
            continue
        seen.add(pid)
        pending.extend(below.get(pid, ()))
        stat = table.get(pid)
        if stat and stat.state not in "ZX":
            found.append(stat)
    return found


def send_signal(stat: ProcessStat, number: signal.Signals) -> bool:
    """Signal exactly the process that ``stat`` describes: a reused pid is left alone."""
    try:
        handle = os.pidfd_open(stat.pid)
    except OSError:
        return False
    try:
        now = process_stat(stat.pid)
        if now is None or now.started != stat.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_children(spare: Collection[int], on_exit: Callable[[int, int], None]) -> bool:
    """One round of SIGKILL to all direct children besides ``spare``; True when there are none any more.

    Only direct children and their process groups are signalled, whose numbers cannot be reused while the child is
    not reaped. Their own children come to this process, as it adopts orphans, and fall in the next round.
    ``on_exit`` gets (pid, wait status) of each child that was reaped.
    """
    reap(on_exit)
    group = os.getpgid(0)
    remaining = [pid for pid in children() if pid not in spare]
    for pid in remaining:
        with suppress(OSError):
            target = os.getpgid(pid)
            if target != group:
                os.killpg(target, signal.SIGKILL)
        with suppress(OSError):  # not ours to signal, such as a setuid program: the caller's deadline bounds the wait
            os.kill(pid, signal.SIGKILL)
    return not remaining


def reap(on_exit: Callable[[int, int], None], *, wake: bool = False) -> None:
    """Collect every child that has exited; with ``wake`` let one that was stopped go on."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | (os.WUNTRACED if wake else 0))
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGCONT)
        else:
            on_exit(pid, status)


def thread_count() -> int:
    """Threads of the whole system: one cheap read that bounds what any command may have started."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].partition(b"/")[2])


def ignore_signal(_number: int, _frame: object) -> None:
    """A handler that does nothing but write to the wake-up descriptor."""


def guard_mark() -> str:
    """Names this process for ever: its PID namespace, its pid, and when it started."""
    stat = process_stat(os.getpid())
    started = stat.started if stat else 0
    return f"{os.readlink('/proc/self/ns/pid')}:{os.getpid()}:{started}"


def mark_is_dead(mark: str) -> bool:
    """Whether ``mark`` names a process of this PID namespace that has ended."""
    space, _, identity = mark.rpartition("]:")
    pid, _, started = identity.partition(":")
    if f"{space}]" != os.readlink("/proc/self/ns/pid") or not pid.isdigit() or not started.isdigit():
        return False
    stat = process_stat(int(pid))
    return stat is None or stat.state in "ZX" or stat.started != int(started)
