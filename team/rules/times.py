"""Times as text."""

from datetime import UTC, datetime


def iso_time(seconds: float) -> str:
    """Seconds since 1970 as ISO-8601 UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
