"""A worker whose local tools can hang: run as a program by ``test_worker_wedged``.

``glob`` occupies the event loop for good; ``grep`` waits for ever and leaves the loop free.
"""

import asyncio
import sys
import threading
from typing import Any

from workers import deadlines, runtime
from workers.__main__ import main
from workers.checkout import LocalTools

_run = LocalTools.run


async def _hanging(self: LocalTools, name: str, arguments: str, context: Any) -> Any:
    if name == "glob":
        threading.Event().wait()
    if name == "grep":
        await asyncio.Event().wait()
    return await _run(self, name, arguments, context)


if __name__ == "__main__":
    LocalTools.run = _hanging
    deadlines.COMMAND_SECONDS = 1.0
    made = deadlines.Deadlines

    def short(**bounds: float) -> deadlines.Deadlines:
        return made(answer_seconds=bounds["answer_seconds"], pause_seconds=bounds["pause_seconds"], margin_seconds=0.5)

    runtime.Deadlines = short
    sys.exit(main())
