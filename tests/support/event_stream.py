"""A reader of server-sent events in a thread."""

import contextlib
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Frame:
    event: str
    data: Any
    cursor: str | None


class EventStream:
    """One connection to ``/v1/stream``; ``frames`` grows until it is closed."""

    def __init__(
        self,
        url: str,
        token: str,
        parameters: Sequence[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.frames: list[Frame] = []
        self.comments = 0
        self.status = 0
        self._client = httpx2.Client(base_url=url, trust_env=False, timeout=httpx2.Timeout(60, connect=5))
        self._headers = {"Authorization": f"Bearer {token}", **(headers or {})}
        self._parameters: list[tuple[str, str | int | float | bool | None]] = [*parameters]
        self._closing = False
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.status, "the stream to answer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        if self._socket is not None:
            # Closing the client does not wake a reader that waits for the next frame.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._client.close()
        self._thread.join(timeout=20)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def of(self, event: str) -> list[Any]:
        """The data of all frames of one kind."""
        return [frame.data for frame in list(self.frames) if frame.event == event]

    def seqs(self, session: str) -> list[int]:
        """The log events of a Session, as they came."""
        pages = [data for data in self.of("log") if data["sessionId"] == session]
        return [event["seq"] for page in pages for event in page["events"]]

    @property
    def cursor(self) -> str | None:
        """What a browser would send as ``Last-Event-ID``."""
        return next((frame.cursor for frame in reversed(self.frames) if frame.cursor is not None), None)

    def status_of(self, session: str) -> dict[str, Any] | None:
        """The newest live status of a Session."""
        found = [row for data in self.of("sessions") for row in data["sessions"] if row["id"] == session]
        return found[-1] if found else None

    def _read(self) -> None:
        asked = self._client.stream("GET", "/v1/stream", params=self._parameters, headers=self._headers)
        with contextlib.suppress(httpx2.TransportError, httpx2.StreamError, OSError), asked as response:
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            self.status = response.status_code
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif fields:
                    if "data" in fields:
                        data = json.loads(fields["data"])
                        self.frames.append(Frame(fields.get("event", "message"), data, fields.get("id")))
                    fields = {}
