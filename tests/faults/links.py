"""TCP links that a fault may cut, slow down or silence: what lies between workers, senders and coordinators."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")
State = Literal["open", "cut", "slow", "silent"]

_SLOW_SECONDS: Final = 0.3
_CONNECT_SECONDS: Final = 2.0
_CHUNK_BYTES: Final = 65_536


class Link:
    """One listening port and the ports behind it, tried in turn: with several it is a small load balancer."""

    def __init__(self, upstreams: Sequence[int]) -> None:
        self._upstreams = list(upstreams)
        self._next = 0
        self._state: State = "open"
        self._heard = asyncio.Event()
        self._heard.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self._abort()
        # Connections end by themselves once their transports are gone.
        await asyncio.sleep(0)

    async def change(self, state: State) -> None:
        """``cut`` resets what is connected and what connects; ``silent`` keeps connections and passes nothing on."""
        self._state = state
        if state == "silent":
            self._heard.clear()
        else:
            self._heard.set()
        if state == "cut":
            self._abort()

    def _abort(self) -> None:
        for writer in [*self._writers]:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._heard.wait()
            if self._state == "cut":
                return
            answers, upstream = await self._connect()
            self._writers.add(upstream)
            pumps = [
                asyncio.ensure_future(self._pump(reader, upstream)),
                asyncio.ensure_future(self._pump(answers, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)
        except OSError:
            return  # nobody behind it: the caller sees its connection end, as it would without the link
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._writers.discard(end)
                    # Not aborted: what was received from the other side is still passed on.
                    end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        fault: OSError = ConnectionRefusedError("no upstream")
        for _ in self._upstreams:
            port = self._upstreams[self._next % len(self._upstreams)]
            self._next += 1
            try:
                return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _CONNECT_SECONDS)
            except (OSError, TimeoutError) as error:
                fault = error
        raise fault

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if self._state == "slow":
                    await asyncio.sleep(_SLOW_SECONDS)
                await self._heard.wait()
                writer.write(chunk)
                await writer.drain()


class Links:
    """All links of a run, on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links: dict[str, Link] = {}

    def add(self, name: str, upstreams: Sequence[int]) -> int:
        """A new link; returns the port at which it listens."""
        link = Link(upstreams)
        self._run(link.open())
        self._links[name] = link
        return link.port

    def change(self, name: str, state: State) -> None:
        """Open a link, or let it fail."""
        self._run(self._links[name].change(state))

    def close(self) -> None:
        """Cut everything and end the loop."""
        for link in self._links.values():
            self._run(link.close())
        self._run(self._drained())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _drained(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
