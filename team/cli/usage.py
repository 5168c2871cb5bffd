"""``team usage``: what each member of a Team has used."""

import json

from rich.console import Console
from rich.text import Text

from config.settings import Settings
from team.cli.faults import DONE
from team.cli.inspection import connected
from team.cli.rendering import table
from team.model.usage import BudgetView, SessionUsageView, UsageView

_COLUMNS = ("WHO", "MODEL", "TURNS", "STEPS", "CALLS", "TOOL TIME", "INPUT", "CACHED", "OUTPUT", "COMPACTED")


def usage(settings: Settings, session_id: str, *, as_json: bool) -> int:
    """Show what the Team of a Session has used, member by member."""
    with connected(settings) as operator:
        found = operator.usage(operator.session(session_id).root_id)
    if as_json:
        print(json.dumps(found.to_wire()))
    else:
        print_usage(Console(highlight=False), found)
    return DONE


def print_usage(console: Console, usage: UsageView) -> None:
    """A row for each Session, their sum, and what counts toward the budgets."""
    rows = [_row(session) for session in usage.sessions]
    console.print(table(None, _COLUMNS, [*rows, _sum(usage.sessions)] if len(rows) > 1 else rows))
    console.print(Text("since the last prompt: " + ", ".join(_budget(usage.budget))))


def _row(session: SessionUsageView) -> tuple[str, ...]:
    if session.fault is not None:
        return (session.session_id, f"cannot be read: {session.fault}")
    who = session.name if session.is_member else f"({session.name})"
    return (who, session.model or "default", *_numbers([session]))


def _sum(sessions: tuple[SessionUsageView, ...]) -> tuple[str, ...]:
    return ("all", "", *_numbers(list(sessions)))


def _numbers(sessions: list[SessionUsageView]) -> tuple[str, ...]:
    def total(field: str) -> int:
        return sum(int(getattr(session, field)) for session in sessions)

    counts = [f"{total(field):,}" for field in ("turns", "steps", "calls")]
    tokens = [f"{total(field):,}" for field in ("input_tokens", "cached_tokens", "output_tokens", "compactions")]
    return (*counts, f"{total('tool_ms') / 1000:,.1f} s", *tokens)


def _budget(budget: BudgetView) -> tuple[str, ...]:
    def of(limit: float | None) -> str:
        return "" if limit is None else f" of {limit:,g}"

    return (
        f"{budget.tokens:,}{of(budget.max_tokens)} tokens",
        f"{budget.turns:,}{of(budget.max_turns)} turns",
        f"{budget.seconds:,.0f}{of(budget.max_seconds)} s",
    )
