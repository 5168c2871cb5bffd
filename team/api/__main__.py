"""``python -m team.api``: one coordinator process."""

import logging
import signal
import socket
import sys
from types import FrameType

import structlog
import uvicorn

from config.settings import settings
from team.api.coordinator import Coordinator
from team.model.errors import ConfigurationInvalid, StoreUnavailable, TeamError

MISCONFIGURED = 2
STOP_SECONDS = 5


def main() -> int:
    """Serve until SIGTERM. Returns 2, with one sentence on stderr, when the configuration cannot work."""
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
        coordinator = Coordinator(configured)
        listener = _listen(configured.host, configured.port)
        coordinator.open()
    except StoreUnavailable:
        sys.stderr.write("team: the database cannot be reached; check TEAM_DATABASE_URL and that it is running.\n")
        return MISCONFIGURED
    except TeamError as error:
        sys.stderr.write(f"team: {error.message}\n")
        return MISCONFIGURED
    server = uvicorn.Server(
        uvicorn.Config(
            coordinator.application(),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=75,
        )
    )
    address = listener.getsockname()
    structlog.get_logger(__name__).info("coordinator ready", host=address[0], port=address[1])
    # uvicorn raises the signal that stopped it once more; by then an orderly end has been reached.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    server.run(sockets=[listener])
    return 0


def _stopped(_number: int, _frame: FrameType | None) -> None:
    """Nothing is left to do when the server has ended."""


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
