"""``python -m team.api``: one coordinator process."""

import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn

from config import faults
from config.settings import settings
from team.api.coordinator import Coordinator
from team.model.errors import ConfigurationInvalid, StoreUnavailable, TeamError

MISCONFIGURED = 2
STOP_SECONDS = 5
KEEP_ALIVE_SECONDS = 75


def main() -> int:
    """Serve until SIGTERM. Returns 2, with one sentence on stderr, when the configuration cannot work."""
    # Until the server has its own: as the first process of a container it would not hear SIGTERM at all.
    signal.signal(signal.SIGTERM, _leave)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        configured = settings()
        faults.arm(configured.fault_points, configured.fault_file)
        coordinator = Coordinator(configured)
        listener = _listen(configured.host, configured.port)
        coordinator.open()
    except StoreUnavailable:
        sys.stderr.write("team: the database cannot be reached; check TEAM_DATABASE_URL and that it is running.\n")
        return MISCONFIGURED
    except TeamError as error:
        sys.stderr.write(f"team: {error.message}\n")
        return MISCONFIGURED
    server = _Server(
        uvicorn.Config(
            coordinator.application(),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
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


class _Server(uvicorn.Server):
    """Ends the streams first when it is told to stop: they would last for ever."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        address = sockets[0].getsockname() if sockets else ("", 0)
        structlog.get_logger(__name__).info("coordinator ready", host=address[0], port=address[1])


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
