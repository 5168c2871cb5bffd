"""The worker's side of the guard, which ends every process of a turn (DESIGN section 5, "effects stop")."""

import asyncio
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from team.model.errors import ConfigurationInvalid, TurnFenced
from workers.checkout.blocking import until_done
from workers.checkout.errors import CommandLostError
from workers.guardian import kernel
from workers.guardian.process import MARK_VARIABLE
from workers.guardian.protocol import (
    CONTROL_BYTES,
    CommandReport,
    CommandSpec,
    decode_control,
    decode_report,
    encode_control,
    encode_spec,
)

READY_SECONDS: Final = 15.0
GONE_SECONDS: Final = 20.0
"""How long to wait for processes that were told to end: beyond the guard's own patience."""

_BOOT: Final = (
    "import sys; sys.path.append(sys.argv[1]); from workers.guardian.process import main; main(int(sys.argv[2]))"
)
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_KEPT_DEADLINES: Final = 512

_log = structlog.stdlib.get_logger(__name__)


def make_non_dumpable() -> None:
    """Keep this process's memory and environment from every other process of its user.

    Commands that a guard runs cannot read them even as root, as they lack the capabilities for it; another process
    of root still can. Call it at the start of a worker, before it reads a secret.
    """
    kernel.make_non_dumpable()


class Guard:
    """Ends the processes of commands when the worker dies, their turn ends, or its lease is not renewed.

    A turn may have effects only while its lease is known to be valid: call ``renewed`` as soon as the turn is
    claimed and after every acknowledged heartbeat. Without a valid lease ``bash``, ``glob``, ``grep`` and the
    replace of a file are refused with TurnFenced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = asyncio.Lock()
        self._deadlines: dict[str, float] = {}
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._closed = False
        self._running: dict[str, set[asyncio.Task[CommandReport]]] = {}
        self._ending: dict[str, asyncio.Future[None]] = {}
        self._reviving: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The guard process, None while it does not run."""
        process = self._process
        return process.pid if process else None

    async def start(self) -> None:
        """Start the guard process; returns when it is ready. Idempotent.

        Processes that an earlier guard of this machine could not end, because it was killed together with its
        commands' shepherds, are ended now.

        Raises:
            ConfigurationInvalid: The guard needs Linux, or did not become ready.
        """
        async with self._starting:
            if self._control is None and not self._closed:
                await self._spawn()

    async def close(self) -> None:
        """End every process of every turn, then the guard. Returns when all are gone. Idempotent."""
        self._closed = True
        async with self._starting:
            process = self._process
            self._lost()
        if self._reviving:
            await asyncio.wait({self._reviving})
        if process:
            await asyncio.to_thread(_wait_or_kill, process)
        tasks = {task for tasks in self._running.values() for task in tasks}
        if tasks:
            await asyncio.wait(tasks, timeout=GONE_SECONDS)

    def renewed(self, turn_id: str, seconds_valid: float) -> None:
        """The lease of ``turn_id`` was acknowledged: its effects may go on for ``seconds_valid`` more.

        Counted on the monotonic clock from now. Callable from any thread, also before ``start``.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._deadlines) > _KEPT_DEADLINES:
                self._deadlines = {turn: until for turn, until in self._deadlines.items() if until > now}
            self._deadlines[turn_id] = now + seconds_valid
            try:
                self._send({"op": "renew", "turn": turn_id, "until": now + seconds_valid})
            except OSError as error:
                # The guard is dying or does not keep up: it acts on the deadline that it has, which is the safe side.
                _log.warning("renewal did not reach the guard", turn=turn_id, error=str(error))

    def require(self, turn_id: str) -> None:
        """Raise TurnFenced unless the lease of ``turn_id`` is known to be valid now."""
        if self._deadlines.get(turn_id, 0.0) <= time.monotonic():
            raise TurnFenced("the lease of this turn was not renewed in time: it may have no more effects here")

    async def run(self, turn_id: str, spec: CommandSpec, *, directory: int, stdin: int | None = None) -> CommandReport:
        """Run a command for a turn until it ends, and all that it started with it.

        Args:
            turn_id: The turn whose lease allows the command.
            spec: The command.
            directory: Open directory in which it starts; the caller keeps it.
            stdin: Open file for its standard input, empty by default; the caller keeps it.

        Raises:
            TurnFenced: The lease is not valid, or was not renewed while the command ran.
            CommandLostError: Guard or shepherd was killed: the command was ended, its outcome is unknown.
        """
        self.require(turn_id)
        await self.start()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            spec = spec._replace(environment={**spec.environment, MARK_VARIABLE: self._mark})
            data = encode_spec(spec)
            handles = [theirs.fileno(), directory, *([] if stdin is None else [stdin])]
            with self._lock:
                self._send({"op": "run", "turn": turn_id}, handles)
        except OSError as error:
            ours.close()
            raise CommandLostError(f"The command was not started ({error.strerror or error}). Run it again.") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        task = asyncio.get_running_loop().create_task(self._converse(ours, data, spec.timeout + GONE_SECONDS))
        self._running.setdefault(turn_id, set()).add(task)
        task.add_done_callback(lambda done: self._forget(turn_id, done))
        try:
            report = await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_WR)
            await until_done(task)
            raise
        if report.state in {"lease", "refused"}:
            raise TurnFenced("the lease of this turn was not renewed in time: its command was ended")
        return report

    async def end_turn(self, turn_id: str) -> None:
        """End every process of the turn and forget its lease; returns when they are gone. Idempotent."""
        with self._lock:
            self._deadlines.pop(turn_id, None)
        if self._control is None and turn_id not in self._running:
            return
        ref = secrets.token_hex(8)
        reply = asyncio.get_running_loop().create_future()
        self._ending[ref] = reply
        try:
            with self._lock:
                self._send({"op": "end", "turn": turn_id, "ref": ref})
        except OSError:
            # The guard is dead: its shepherds end their commands by themselves, the next guard what they lost.
            reply.cancel()
        waiting: set[asyncio.Future[Any]] = {reply, *self._running.get(turn_id, ())}
        _, late = await asyncio.wait(waiting, timeout=GONE_SECONDS)
        self._ending.pop(ref, None)
        if late:
            _log.error("processes of a turn did not end in time", turn=turn_id, waited_seconds=GONE_SECONDS)
        if not self._closed:
            await self.start()

    async def _spawn(self) -> None:
        if sys.platform != "linux":
            raise ConfigurationInvalid("a worker needs Linux: its guard relies on prctl and /proc")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = await asyncio.to_thread(_spawn_process, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            ours.settimeout(READY_SECONDS)
            hello = await asyncio.to_thread(ours.recv, CONTROL_BYTES)
        except OSError as error:
            hello, process_fault = b"", str(error)
        else:
            process_fault = "it ended at once"
        if not hello:
            ours.close()
            await asyncio.to_thread(_wait_or_kill, process, 0.0)
            raise ConfigurationInvalid(f"the guard process did not become ready: {process_fault}")
        ours.setblocking(False)
        self._mark = str(decode_control(hello)["mark"])
        with self._lock:
            self._process, self._control = process, ours
            for turn, until in self._deadlines.items():
                self._send({"op": "renew", "turn": turn, "until": until})
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear, ours)

    def _send(self, message: dict[str, str | float], handles: list[int] | None = None) -> None:
        """Send one packet; called with the lock held. Raises OSError when the guard does not take it."""
        if self._control is None:
            if message["op"] == "renew":
                return
            raise ConnectionError("the guard is not running")
        socket.send_fds(self._control, [encode_control(message)], handles or [], socket.MSG_DONTWAIT)

    def _hear(self, control: socket.socket) -> None:
        try:
            packet = control.recv(CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            reply = self._ending.get(str(decode_control(packet).get("ref")))
            if reply and not reply.done():
                reply.set_result(None)
            return
        process = self._process
        self._lost()
        _log.warning("the guard was killed; its commands were ended", pid=process.pid if process else None)
        self._reviving = asyncio.get_running_loop().create_task(self._revive(process))

    def _lost(self) -> None:
        with self._lock:
            control, self._control, self._process = self._control, None, None
        if control:
            asyncio.get_running_loop().remove_reader(control.fileno())
            control.close()
        for reply in self._ending.values():
            if not reply.done():
                reply.set_result(None)

    async def _revive(self, process: subprocess.Popen[bytes] | None) -> None:
        if process:
            await asyncio.to_thread(_wait_or_kill, process)
        try:
            await self.start()
        except (ConfigurationInvalid, OSError) as error:
            _log.error("the guard could not be started again; the next command tries it", error=str(error))

    async def _converse(self, connection: socket.socket, data: bytes, seconds: float) -> CommandReport:
        loop = asyncio.get_running_loop()
        answer = bytearray()
        try:
            async with asyncio.timeout(seconds):
                try:
                    await loop.sock_sendall(connection, data)
                    while part := await loop.sock_recv(connection, 65_536):
                        answer += part
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the report that is missing below says what that means
        except TimeoutError:
            # Stopped by a signal, perhaps: as it does not act on its deadlines, it must go.
            _log.error("the guard does not answer; it is killed", after_seconds=seconds)
            if self._process:
                self._process.kill()
        finally:
            connection.close()
        report = decode_report(bytes(answer))
        if report is None:
            raise CommandLostError(
                "What ran the command was killed, and the command with it. It may have had some of its effects: "
                "look before you run it again."
            )
        return report

    def _forget(self, turn_id: str, task: asyncio.Task[CommandReport]) -> None:
        tasks = self._running.get(turn_id)
        if tasks:
            tasks.discard(task)
            if not tasks:
                del self._running[turn_id]
        if not task.cancelled():
            task.exception()  # a cancelled caller never looks at it


def _spawn_process(control: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own interpreter and our own code
        [sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGES), str(control.fileno())],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[control.fileno()],
        start_new_session=True,
    )


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float = GONE_SECONDS) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
