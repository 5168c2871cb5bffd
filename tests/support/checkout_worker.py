"""A process that runs one command as a worker does, to be killed or looked at from outside.

Usage: python -m tests.support.checkout_worker ROOT LEASE_SECONDS COMMAND [SANDBOX]. Prints the result's content.
"""

import asyncio
import sys
from pathlib import Path

from tests.support.checkout import Desk
from workers.checkout import Guard, LocalTools, find_sandbox, make_non_dumpable, open_workspace
from workers.checkout.sandbox import Mode


async def main(root: Path, lease_seconds: float, command: str, mode: Mode) -> None:
    guard = Guard()
    await guard.start()
    sandbox = await find_sandbox(mode, open_workspace(root), guard)
    guard.renewed("turn-1", lease_seconds)
    desk = Desk(LocalTools(root, output_bytes=100_000, guard=guard, sandbox=sandbox), str(root))
    try:
        print((await desk.run("bash", command=command)).content, flush=True)
    finally:
        await guard.close()
        if sandbox:
            sandbox.close()


if __name__ == "__main__":
    make_non_dumpable()
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], "on" if "on" in sys.argv[4:] else "off"))
