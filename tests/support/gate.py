"""A TCP gate before a coordinator: it can be shut, opened again, and led to another coordinator."""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

_BLOCK = 65_536


class Gate:
    """Forwards connections of one loopback port; ``streams`` counts event streams that are open now."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._is_open = True
        self._closing = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._streams: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.join(timeout=10)
        for one in [self._listener, *self._pairs]:
            one.close()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def streams(self) -> int:
        with self._lock:
            return len(self._streams)

    def shut(self) -> None:
        """Cut every connection and refuse new ones."""
        self._is_open = False
        with self._lock:
            for one in list(self._pairs):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def open(self, target: int | None = None) -> None:
        """Let connections through again, to another port if one is given."""
        self.target = target or self.target
        self._is_open = True

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing:
                for key, _events in selector.select(timeout=0.1):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is self._listener:
                        self._accept(selector)
                    elif ready in self._pairs:
                        self._forward(selector, ready)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _address = self._listener.accept()
        if not self._is_open:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            near.close()
            return
        with self._lock:
            self._pairs[near], self._pairs[far] = far, near
        for one in (near, far):
            selector.register(one, selectors.EVENT_READ)

    def _forward(self, selector: selectors.BaseSelector, source: socket.socket) -> None:
        other = self._pairs[source]
        try:
            data = source.recv(_BLOCK)
            if data:
                if data.startswith(b"GET /v1/stream"):
                    with self._lock:
                        self._streams.add(source)
                other.sendall(data)
                return
        except OSError:
            pass
        for one in (source, other):
            selector.unregister(one)
            with self._lock:
                self._pairs.pop(one, None)
                self._streams.discard(one)
            one.close()
