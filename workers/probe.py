"""``python -m workers.probe``: whether this machine's worker has lately heard its own ping through the broker."""

import sys
import time

from config.settings import settings

FACTOR = 3
"""Pings come every half of ``liveness_seconds``; after this many whole ones without an answer the worker is deaf."""


def main() -> int:
    """Exit 0 when the health file is young enough; tells on stderr why not."""
    chosen = settings()
    if chosen.health_file is None:
        sys.stderr.write("not healthy: set TEAM_HEALTH_FILE for the worker and for this check\n")
        return 1
    try:
        age = time.time() - chosen.health_file.stat().st_mtime
    except OSError:
        sys.stderr.write("not healthy: the worker has not heard itself yet\n")
        return 1
    if age > FACTOR * chosen.liveness_seconds:
        sys.stderr.write(f"not healthy: the worker last heard itself {age:.0f} s ago\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
