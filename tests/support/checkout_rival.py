"""A worker process of its own that edits files which others edit too.

Usage: python -m tests.support.checkout_rival ROOT EDITS FILES. Each successful edit raises the number in a file by
one. Prints as JSON how many edits succeeded per file, how often it was told FS_STALE_VERSION, how long it took, and
in which mount and network namespaces it ran.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

from tests.support.checkout import Desk, error_of, file_desk


async def raise_number(desk: Desk, root: Path, name: str) -> int:
    """Raise the number in ``name`` by one; returns how often a rival was faster."""
    stale = 0
    while True:
        number = (await desk.run("read", path=name)).content.split("\t")[1].strip()
        result = await desk.run("edit", path=name, old_text=f"{number}\n", new_text=f"{int(number) + 1}\n")
        if result.outcome == "ok":
            return stale
        code, message = error_of(result)
        assert code == "FS_STALE_VERSION", message
        stale += 1


async def main(root: Path, edits: int, files: int) -> None:
    counts = dict.fromkeys((f"f{number}" for number in range(files)), 0)
    stale = 0
    began = time.monotonic()

    async def member() -> None:
        nonlocal stale
        desk = file_desk(root)
        for _ in range(edits):
            name = random.choice(list(counts))
            stale += await raise_number(desk, root, name)
            counts[name] += 1

    await asyncio.gather(*(member() for _ in range(4)))
    namespaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("mnt", "net")]
    seconds = time.monotonic() - began
    print(json.dumps({"counts": counts, "stale": stale, "seconds": seconds, "namespaces": namespaces}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
