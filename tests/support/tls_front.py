"""A certificate of a test's own, and a TLS front for a server on loopback that speaks none itself."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.support.ports import free_port

_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")
"""What libpq sends before it speaks TLS."""


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Of a server that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def sign(directory: Path, name: str, *, password: str | None = None) -> Pair:
    """A certificate for 127.0.0.1 that is its own authority; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so no certificate can be made")
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    lock = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *lock),
            *("-days", "30", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(pair.key), "-out", str(pair.certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return pair


class TlsFront:
    """Takes TLS connections on a port of its own and passes their bytes on in clear.

    Args:
        target: (host, port) of the server, or the path of its Unix socket.
        pair: What clients are shown.
        speaks: ``postgresql`` waits for libpq's request for TLS first, and drops whoever begins in clear.
    """

    def __init__(
        self, target: tuple[str, int] | Path, pair: Pair, speaks: Literal["tls", "postgresql"] = "tls"
    ) -> None:
        self.port = free_port()
        self.refused = 0
        self._target, self._context, self._speaks = target, pair.context(), speaks
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-front", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        """Drop every connection and listen no longer."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return await asyncio.start_server(accept, "127.0.0.1", self.port)

    async def _close(self) -> None:
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        try:
            if self._speaks == "postgresql":
                if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                    self.refused += 1
                    return
                writer.write(b"S")
                await writer.drain()
            await writer.start_tls(self._context, ssl_handshake_timeout=10)
            if isinstance(self._target, Path):
                answers, back = await asyncio.open_unix_connection(str(self._target))
            else:
                answers, back = await asyncio.open_connection(*self._target)
            await asyncio.wait(
                {asyncio.ensure_future(_pump(reader, back)), asyncio.ensure_future(_pump(answers, writer))},
                return_when=asyncio.FIRST_COMPLETED,
            )
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            # A client that does not trust the certificate, or goes away.
            self.refused += 1
        finally:
            for stream in (writer, back):
                if stream is not None:
                    stream.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
