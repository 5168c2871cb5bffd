"""A model provider that speaks real HTTP: Chat Completions, Responses and Anthropic at their usual paths.

In a test: ``with ProviderServer() as server: server.replies.append(Reply(...))``. As a process:
``python -m tests.support.provider_server --port N [--scenario FILE] [--script FILE]``; then GET /recorded lists the raw
request bodies, and POST /replies appends replies. Requests beyond the scripted replies get the ``--script`` scenario's
answer, or a plain text.
"""

import argparse
import json
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self, cast

import yaml

from config.scenario import Scenario, load_scenario
from tests.support.provider_replies import (
    Part,
    Reply,
    Wire,
    anthropic_stream,
    chat_stream,
    error_body,
    responses_stream,
)
from tests.support.provider_script import ScriptPlayer
from workers.models.machine import ScenarioFault

WIRES: Final[dict[str, Wire]] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
STREAMS: Final[dict[Wire, Callable[[Reply, int], Iterator[Part]]]] = {
    "chat": chat_stream,
    "responses": responses_stream,
    "anthropic": anthropic_stream,
}


@dataclass(frozen=True)
class Recorded:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.body))


class ProviderServer:
    """The server, in a thread of this process. ``replies`` are used up in order."""

    def __init__(self, *, port: int = 0, script: Scenario | None = None) -> None:
        self.replies: deque[Reply] = deque()
        self.requests: list[Recorded] = []
        self.disconnected = 0
        self.player = ScriptPlayer(script) if script is not None else None
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self._http = _Server(("127.0.0.1", port), _Handler)
        self._http.provider = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Base URL of the Chat Completions API; Anthropic's lacks the /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def next_reply(self, wire: Wire, request: Recorded) -> tuple[int, Reply]:
        """Record a request and decide its reply."""
        with self.lock:
            self.requests.append(request)
            number = len(self.requests)
            if self.replies:
                return number, self.replies.popleft()
        if self.player is None or wire == "responses":
            return number, Reply(text=["Done."])
        try:
            return number, self.player.reply(wire, request.json)
        except (ScenarioFault, AssertionError) as fault:
            return number, Reply(status=400, message=f"the scenario has no answer: {fault}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: ProviderServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  # always this server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
        """Say nothing: tests read ``requests``."""

    def do_GET(self) -> None:
        provider = self.server.provider
        with provider.lock:
            listed = [{"path": item.path, "body": item.body.decode()} for item in provider.requests]
        self._send(200, {"Content-Type": "application/json"}, json.dumps(listed).encode())

    def do_POST(self) -> None:
        provider = self.server.provider
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/replies":
            added = [Reply.model_validate(item) for item in json.loads(body)]
            with provider.lock:
                provider.replies.extend(added)
            self._send(200, {"Content-Type": "application/json"}, b"{}")
            return
        path = self.path.partition("?")[0]
        wire = WIRES.get(path)
        if wire is None:
            self._send(404, {"Content-Type": "application/json"}, b'{"error": {"message": "no such path"}}')
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        number, reply = provider.next_reply(wire, Recorded(self.path, headers, body))
        self._reply(wire, number, reply)

    def _reply(self, wire: Wire, number: int, reply: Reply) -> None:
        if reply.cut == "before-first-byte":
            self._cut()
        elif reply.status != 200:
            headers = {"Content-Type": "application/json", **reply.headers}
            self._send(reply.status, headers, error_body(reply, wire))
        elif reply.html:
            page = b"<html><body><h1>Welcome to the proxy</h1></body></html>"
            self._send(200, {"Content-Type": "text/html"}, page)
        elif reply.empty:
            self._send(200, {"Content-Type": "text/event-stream"}, b"")
        else:
            self._stream(STREAMS[wire](reply, number))

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, parts: Iterator[Part]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in parts:
                if part.data:
                    self.wfile.write(f"{len(part.data):x}\r\n".encode() + part.data + b"\r\n")
                    self.wfile.flush()
                if part.then == "cut":
                    self._cut()
                    return
                if part.then == "hang":
                    self._hang()
                    return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self._gone()

    def _cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _hang(self) -> None:
        """Say nothing until the client closes its side, or the server stops."""
        self.close_connection = True
        while not self.server.provider.stopping.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self._peek():
                self._gone()
                return

    def _peek(self) -> bytes:
        try:
            return self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return b""

    def _gone(self) -> None:
        provider = self.server.provider
        with provider.lock:
            provider.disconnected += 1


def main(arguments: list[str]) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--scenario", type=Path, help="YAML or JSON list of replies, used up in order")
    parser.add_argument("--script", type=Path, help="scenario of the script model that answers all other requests")
    options = parser.parse_args(arguments)
    script = load_scenario(options.script) if options.script is not None else None
    with ProviderServer(port=options.port, script=script) as server:
        if options.scenario is not None:
            listed = yaml.safe_load(options.scenario.read_text(encoding="utf-8"))
            server.replies.extend(Reply.model_validate(item) for item in listed)
        print(f"listening on {server.url}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
