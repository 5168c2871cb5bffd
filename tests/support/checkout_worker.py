"""A process that runs one command as a worker does, to be killed or looked at from outside.

Usage: python -m tests.support.checkout_worker ROOT LEASE_SECONDS COMMAND. Prints the result's content.
"""

import asyncio
import sys
from pathlib import Path

from tests.support.checkout import Desk
from workers.checkout import Guard, LocalTools, make_non_dumpable


async def main(root: Path, lease_seconds: float, command: str) -> None:
    guard = Guard()
    await guard.start()
    guard.renewed("turn-1", lease_seconds)
    desk = Desk(LocalTools(root, output_bytes=100_000, guard=guard), str(root))
    try:
        print((await desk.run("bash", command=command)).content, flush=True)
    finally:
        await guard.close()


if __name__ == "__main__":
    make_non_dumpable()
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
