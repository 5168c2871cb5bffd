"""A coordinator for tests of the worker: real HTTP in front of turns in memory, with faults on demand."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import ValidationError

from team.model.claims import (
    AnswerRequest,
    BackoffRequest,
    BoundaryRequest,
    ClaimRequest,
    CompactRequest,
    ErrorBody,
    ErrorResponse,
    FailRequest,
    HeartbeatRequest,
    IntentRequest,
    ReleaseRequest,
    ResultRequest,
    ToolRequest,
    Write,
)
from team.model.errors import Forbidden, RequestInvalid, SessionNotFound, TeamError, Unauthenticated
from team.model.values import Value
from tests.support.fake_turns import FakeTurn, FakeTurns
from tests.support.ports import free_port

WORKER_TOKEN: Final = "token-of-the-workers"

_WRITES: Final[dict[str, type[Write]]] = {
    "boundary": BoundaryRequest,
    "answer": AnswerRequest,
    "compact": CompactRequest,
    "intent": IntentRequest,
    "result": ResultRequest,
    "tool": ToolRequest,
    "backoff": BackoffRequest,
    "fail": FailRequest,
    "release": ReleaseRequest,
}


@dataclass
class Fault:
    """What happens to the next ``times`` requests of ``verb``.

    drop: processed, then the connection is closed without an answer. refuse: closed unprocessed. status: answered
    with ``status``, unprocessed. slow: processed, then answered ``seconds`` later.
    """

    verb: str
    kind: Literal["drop", "refuse", "status", "slow"]
    times: int = 1
    status: int = 503
    seconds: float = 0.0
    used: int = 0


@dataclass(frozen=True)
class Request:
    verb: str
    turn_id: str | None
    body: Value | None


class FakeCoordinator:
    """Serves ``turns`` on one loopback port; ``stop`` and ``start`` are a restart that keeps the state."""

    def __init__(self, root: Path, *, lease_seconds: float = 3.0) -> None:
        self.turns = FakeTurns(root, lease_seconds=lease_seconds)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.dispatch: Callable[[FakeTurn], None] | None = None
        self._server: _Server | None = None
        self._closing = threading.Event()
        self._ticker: threading.Thread | None = None

    def start(self) -> None:
        self._closing.clear()
        self._server = _Server(self.port, self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def stop(self) -> None:
        """Close the port and every connection."""
        self._closing.set()
        if self._server is not None:
            self._server.end()
            self._server = None
        if self._ticker is not None:
            self._ticker.join()

    def fault(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def verbs(self, turn: FakeTurn) -> list[str]:
        """The writes that arrived for a turn, in order."""
        return [request.verb for request in self.requests if request.turn_id == turn.turn_id]

    def answer(self, method: str, path: str, token: str, claim_token: str, body: bytes) -> tuple[int, str]:
        """Status and body of one request."""
        try:
            if token != f"Bearer {WORKER_TOKEN}":
                raise Unauthenticated("the worker token is wrong")
            value = self._route(method, path, claim_token, body)
        except ValidationError as error:
            invalid = ErrorBody(code=RequestInvalid.code, message=str(error))
            return RequestInvalid.status, ErrorResponse(error=invalid).to_json()
        except TeamError as error:
            return error.status, ErrorResponse(error=ErrorBody(code=error.code, message=error.message)).to_json()
        return (204, "") if value is None else (200, value.to_json())

    def take_fault(self, verb: str) -> Fault | None:
        for fault in self.faults:
            if fault.verb == verb and fault.used < fault.times:
                fault.used += 1
                return fault
        return None

    def _route(self, method: str, path: str, claim_token: str, body: bytes) -> Value | None:
        match method, path.strip("/").split("/"):
            case "GET", ["worker", "hello"]:
                self.requests.append(Request("hello", None, None))
                return self.turns.hello()
            case "POST", ["worker", "claim"]:
                claim = ClaimRequest.model_validate_json(body)
                self.requests.append(Request("claim", claim.turn_id, claim))
                return self.turns.claim(claim)
            case "POST", ["worker", "heartbeat"]:
                return self.turns.heartbeat(HeartbeatRequest.model_validate_json(body))
            case "POST", ["worker", "turns", turn_id, verb] if verb in _WRITES:
                write = _WRITES[verb].model_validate_json(body)
                self.requests.append(Request(verb, turn_id, write))
                if not claim_token:
                    raise Forbidden("the claim token is missing")
                return self.turns.write(turn_id, claim_token, write)
            case _:
                raise SessionNotFound(f"no such path: {method} {path}")

    def _tick(self) -> None:
        while not self._closing.wait(0.05):
            for turn in self.turns.tick():
                if self.dispatch is not None:
                    self.dispatch(turn)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, coordinator: FakeCoordinator) -> None:
        self.coordinator = coordinator
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that was killed leaves broken connections; nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _owner(self) -> _Server:
        return cast("_Server", self.server)

    def setup(self) -> None:
        super().setup()
        self._owner.connections.add(self.connection)

    def finish(self) -> None:
        self._owner.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it
        """Requests are recorded by the coordinator."""

    def _serve(self) -> None:
        coordinator = self._owner.coordinator
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = coordinator.take_fault(self.path.rsplit("/", 1)[-1])
        if fault is not None and fault.kind == "refuse":
            self._drop()
            return
        if fault is not None and fault.kind == "status":
            self._reply(fault.status, "")
            return
        status, text = coordinator.answer(
            self.command,
            self.path,
            self.headers.get("Authorization", ""),
            self.headers.get("Team-Claim", ""),
            body,
        )
        if fault is not None and fault.kind == "drop":
            self._drop()
            return
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        self._reply(status, text)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reply(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if status != 204:
            self.wfile.write(content)
