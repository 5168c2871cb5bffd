"""Scenario roles that measurements play."""

from typing import Any

Role = dict[str, Any]


def answering(think_ms: int = 0) -> Role:
    """Answers every message at once, or after the time that a model would need."""
    return {
        "start": "answer",
        "states": {"answer": {"say": "ok", "think_ms": think_ms, "on_message": "answer", "max_visits": 100_000}},
    }


def thinking(think_ms: int = 600_000) -> Role:
    """Holds a slot for as long as a turn may."""
    return answering(think_ms)


def waiting() -> Role:
    """Parks in wait_agent, and again after each edge."""
    call = {"tool": "wait_agent", "args": {"timeout_ms": 3_600_000}}
    return {
        "start": "wait",
        "states": {
            "wait": {"calls": [call], "next": "wait", "max_visits": 100_000},
        },
    }
