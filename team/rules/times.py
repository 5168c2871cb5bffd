"""Times as text."""

from datetime import UTC, datetime


def iso_time(seconds: float) -> str:
    """Seconds since 1970 as ISO-8601 UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(time: str) -> float | None:
    """The seconds since 1970 of an ISO-8601 time with its offset; None when it is none."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()
