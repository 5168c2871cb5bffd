"""A small HTTP server in a thread that answers as a test says and remembers what it was asked."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answer = tuple[int, Any]


@dataclass
class RecordingServer:
    """Answers every request with ``answer``, which may look at the request. A body of bytes goes out as it is."""

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list[Asked])

    def __enter__(self) -> Self:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body: Any = json.loads(self.rfile.read(size)) if size else None
                request = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                recorder.asked.append(request)
                status, content = recorder.answer(request)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any  # noqa: N815  # the base looks for these names

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base names it
                """Say nothing: pytest shows what matters."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
