"""``python -m team.api``: one coordinator process.

Exit codes: 0 after an orderly end, 1 when the database stayed away or the end had to be cut short, 2 when the
configuration cannot work.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn

from config import faults, logs
from config.settings import settings
from team.api.coordinator import Coordinator
from team.model.errors import ConfigurationInvalid, StoreUnavailable, TeamError

AWAY = 1
MISCONFIGURED = 2
"""How long a starting coordinator waits for its database: both may be starting."""

STOP_SECONDS = 5
CUT_SECONDS = 15.0
"""After the first signal: whatever still hangs then is left behind. SQL holds the truth at any moment."""

CUT_SOON_SECONDS = 1.0
"""After a second signal."""

KEEP_ALIVE_SECONDS = 75
DATABASE_LOOK_SECONDS = 0.5


def main() -> int:
    """Serve until SIGTERM; what cannot work is told in one sentence on stderr."""
    # Until the server has its own: as the first process of a container it would not hear SIGTERM at all.
    signal.signal(signal.SIGTERM, _leave)
    try:
        configured = settings()
        logs.configure(configured)
        faults.arm(configured.fault_points, configured.fault_dir)
        coordinator = Coordinator(configured)
        listener = _listen(configured.host, configured.port)
        _open(coordinator, configured.database_wait_seconds)
    except StoreUnavailable:
        sys.stderr.write("team: the database cannot be reached; check TEAM_DATABASE_URL and that it is running.\n")
        return AWAY
    except TeamError as error:
        sys.stderr.write(f"team: {error.message}\n")
        return MISCONFIGURED
    server = _Server(
        uvicorn.Config(
            coordinator.application(),
            log_level="warning",
            log_config=None,  # its lines go where all others go, and through the same mask
            access_log=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ssl_certfile=configured.tls_cert,
            ssl_keyfile=configured.tls_key,
        ),
        coordinator.viewers.close,
    )
    # From here on a signal is an orderly end, also before the server has its own handlers and after it gave them back.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _open(coordinator: Coordinator, patience: float) -> None:
    """Open the store. Raises StoreUnavailable when it stayed away for `patience` seconds, ConfigurationInvalid."""
    end = time.monotonic() + patience
    waiting = False
    while True:
        try:
            return coordinator.open()
        except StoreUnavailable:
            if time.monotonic() >= end:
                raise
            if not waiting:
                structlog.get_logger(__name__).warning("waiting for the database", seconds=patience)
            waiting = True
            time.sleep(DATABASE_LOOK_SECONDS)


class _Server(uvicorn.Server):
    """Ends the streams first when it is told to stop: they would last for ever.

    The end is bounded, and a second signal shortens it: a request or a loop may hang in a database that is away.
    """

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._cut: threading.Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self._cut is not None
        self._cut_after(CUT_SOON_SECONDS if again else CUT_SECONDS)
        self._on_exit()
        super().handle_exit(sig, frame)
        self.force_exit = self.force_exit or again

    def _cut_after(self, seconds: float) -> None:
        if self._cut is not None:
            self._cut.cancel()
        self._cut = threading.Timer(seconds, _cut_short)
        self._cut.daemon = True
        self._cut.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        address = sockets[0].getsockname() if sockets else ("", 0)
        structlog.get_logger(__name__).info("coordinator ready", host=address[0], port=address[1])


def _cut_short() -> None:
    structlog.get_logger(__name__).critical("coordinator did not end in time, leaves what still hangs")
    os._exit(AWAY)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
    except OSError as error:
        raise ConfigurationInvalid(
            f"cannot listen on {host} port {port} ({error.strerror or error}): choose another TEAM_PORT "
            "or stop what uses it."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
