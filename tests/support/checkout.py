"""A Session at work on a workspace: it remembers what its calls saw, as the log does."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import psutil

from team.model.errors import ConfigurationInvalid
from team.model.slices import FileSlice
from workers.checkout import Guard, LocalResult, LocalTools, Places, find_sandbox, open_workspace
from workers.checkout.sandbox import Mode

OUTPUT_BYTES: Final = 10_000
LEASE: Final = 600.0

_numbers: Iterator[int] = count(1)


@dataclass
class Desk:
    """One Session. ``run`` runs a tool and keeps what it saw; ``intents`` is what was logged."""

    tools: LocalTools
    cwd: str
    execution: str = "turn-1"
    session_id: str = "session-1"
    call_id: str = "call-0"
    files: dict[str, FileSlice] = field(default_factory=dict[str, FileSlice])
    intents: list[tuple[str, str | None, str]] = field(default_factory=list[tuple[str, str | None, str]])
    on_intent: Callable[[], Awaitable[None]] | None = None

    async def intent(self, path: str, before: str | None, after: str) -> None:
        self.intents.append((path, before, after))
        if self.on_intent:
            await self.on_intent()

    async def run(self, tool: str, **arguments: Any) -> LocalResult:
        self.call_id = f"call-{next(_numbers)}"
        result = await self.tools.run(tool, json.dumps(arguments), self)
        for item in result.observed:
            self.files[item.path] = item
        self.cwd = result.cwd or self.cwd
        return result

    async def bash(self, command: str, **arguments: Any) -> str:
        """Run a command that must run; returns the text of its result."""
        result = await self.run("bash", command=command, **arguments)
        assert result.outcome == "ok", result.content
        return result.content

    async def fails(self, tool: str, **arguments: Any) -> tuple[str, str]:
        """Run a call that must fail; returns its code and message."""
        result = await self.run(tool, **arguments)
        assert result.outcome == "error", result
        return error_of(result)


def sandbox_fault(root: Path) -> str | None:
    """Why no sandbox works on this machine, None when one does."""

    async def work() -> None:
        async with guarded(root, sandbox="on"):
            pass

    try:
        asyncio.run(work())
    except ConfigurationInvalid as error:
        return error.message
    return None


def error_of(result: LocalResult) -> tuple[str, str]:
    body = json.loads(result.content)["error"]
    return body["code"], body["message"]


def file_desk(root: Path) -> Desk:
    """A Session for the file tools alone: its lease is valid, but no guard process runs."""
    guard = Guard()
    guard.renewed("turn-1", LEASE)
    return Desk(LocalTools(root, output_bytes=OUTPUT_BYTES, guard=guard), str(root))


@asynccontextmanager
async def guarded(
    root: Path, *, output_bytes: int = OUTPUT_BYTES, sandbox: Mode = "off", places: Places | None = None
) -> AsyncGenerator[tuple[Desk, Guard]]:
    """A Session with a running guard, closed at the end; with ``sandbox="on"`` its commands are confined."""
    guard = Guard()
    await guard.start()
    confined = None
    try:
        confined = await find_sandbox(sandbox, open_workspace(root), guard, places)
        guard.renewed("turn-1", LEASE)
        tools = LocalTools(root, output_bytes=output_bytes, guard=guard, sandbox=confined)
        yield Desk(tools, str(root)), guard
    finally:
        await guard.close()
        if confined:
            confined.close()


def workspace_processes(root: Path) -> list[psutil.Process]:
    """Live processes that work in ``root`` or name it: what a command left."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(root)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def open_descriptors() -> int:
    """How many descriptors this process holds."""
    return psutil.Process().num_fds()


def guard_process(guard: Guard) -> psutil.Process:
    """The process of a running guard, a child of this one."""
    assert guard.pid is not None
    return psutil.Process(guard.pid)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())
