"""Tables and lines for people."""

import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from team.cli.follow import Outcome
from team.cli.lines import harmless, plain
from team.cli.views import DoctorView, is_open, name_of
from team.model.views import SessionView, SubagentStateView, TeamMemberView, TeamView, TurnStateView

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class Progress:
    """Prints one line per event: seconds since the start, who, what."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._colours: dict[str, str] = {}

    def show(self, who: str, what: str) -> None:
        """Print a line; safe to call from several threads."""
        colour = self._colours.setdefault(who, _COLOURS[len(self._colours) % len(_COLOURS)])
        line = Text(f"{time.monotonic() - self._begun:6.1f}s ", style="dim")
        line.append(f"{plain(who, 20):<12} ", style=colour)
        line.append(what)
        self._console.print(line, soft_wrap=True)


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A borderless table of plain text: nothing in it is read as markup."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(cell, 400)) for cell in row))
    return grid


def turn_state(turn: TurnStateView | None) -> str:
    """Why a member is or is not at work, for an operator."""
    if turn is None:
        return "-"
    if turn.state == "parked":
        return "waits: " + ", ".join(wait.kind for wait in turn.waits)
    where = f" on {turn.worker}" if turn.worker else ""
    return f"{turn.state}{where} ({turn.reason})" if turn.reason else f"{turn.state}{where}"


def last_end(session: SessionView | TeamMemberView | SubagentStateView) -> str:
    """How the newest ended turn ended."""
    end = session.last_end
    if end is None:
        return "-"
    return end.reason + (f"/{end.code}" if end.code else "") + (f": {end.message}" if end.message else "")


def sessions_table(sessions: Iterable[SessionView]) -> Table:
    return table(
        None,
        ("SESSION", "LABEL", "CREATED", "PROFILE", "STATUS", "TURN", "LAST TURN", "DIRECTORY"),
        (
            (
                f"{'└ ' if session.parent_id else ''}{session.id}",
                session.label or "-",
                session.created_at[:19],
                session.profile,
                session.fault or session.status,
                turn_state(session.turn),
                last_end(session),
                session.cwd,
            )
            for session in sessions
        ),
    )


def print_team(console: Console, team: TeamView) -> None:
    """The roster and the board."""
    if team.failure is not None:
        console.print(Text(f"This Team cannot be read any more: {harmless(team.failure)}", style="bold red"))
    console.print(
        table(
            "members",
            ("NAME", "STATUS", "TURN", "PENDING", "LAST TURN", "WORKERS", "SESSION"),
            (
                (
                    member.target,
                    member.error or member.status,
                    turn_state(member.turn),
                    f"{member.pending}{' held' if member.held and member.pending else ''}",
                    last_end(member),
                    ", ".join(member.workers) or "-",
                    str(member.session_id),
                )
                for member in team.members
            ),
        )
    )
    if team.subagents:
        console.print(
            table(
                "subagents",
                ("LABEL", "MODE", "STATUS", "TURN", "LAST TURN", "WORKERS", "SESSION"),
                (
                    (
                        f"{'└ ' * depth}{name_of(agent)}",
                        agent.mode or "-",
                        agent.error or agent.status or "-",
                        turn_state(agent.turn),
                        last_end(agent),
                        ", ".join(agent.workers) or "-",
                        str(agent.session_id),
                    )
                    for depth, agent in as_tree(team.subagents)
                ),
            )
        )
    if team.workflows:
        console.print(
            table(
                "workflows",
                ("NAME", "PHASE", "AGENTS", "RUNNING", "WAITING", "FAILED", "LAST NOTE", "SESSION"),
                (
                    (
                        workflow.name,
                        workflow.phase or "-",
                        *map(str, (workflow.agents, workflow.running, workflow.waiting, workflow.failed)),
                        workflow.note or "-",
                        str(workflow.session_id),
                    )
                    for workflow in team.workflows
                ),
            )
        )
    if team.tasks:
        console.print(
            table(
                "tasks",
                ("TASK", "REV", "STATUS", "OWNER", "BLOCKED BY", "SUBJECT"),
                (
                    (
                        task.id,
                        str(task.revision),
                        "ready" if task.ready else task.status,
                        task.owner_name or "-",
                        ", ".join(task.open_blockers) or "-",
                        task.subject,
                    )
                    for task in team.tasks
                ),
            )
        )


def as_tree(subagents: Sequence[SubagentStateView]) -> Iterator[tuple[int, SubagentStateView]]:
    """Subagents with their depth below the first one of their line, each behind its parent, else in their order."""
    known = {agent.session_id for agent in subagents}
    pending = [(0, agent) for agent in reversed(subagents) if agent.parent_id not in known]
    while pending:
        depth, agent = pending.pop()
        yield depth, agent
        below = [child for child in subagents if child.parent_id == agent.session_id]
        pending += [(depth + 1, child) for child in reversed(below)]


def print_session(console: Console, session: SessionView) -> None:
    """One Session outside any roster."""
    rows = [
        ("session", session.id),
        *((("label", session.label),) if session.label else ()),
        *((("parent", session.parent_id),) if session.parent_id else ()),
        ("profile", session.profile),
        ("directory", session.cwd),
        ("model", session.model or "-"),
        ("status", session.fault or session.status),
        ("turn", turn_state(session.turn)),
        ("last turn", last_end(session)),
        ("pending", f"{session.pending}{' held' if session.held and session.pending else ''}"),
        ("workers", ", ".join(session.workers) or "-"),
        ("events", str(session.last_seq)),
    ]
    console.print(table(None, ("", ""), rows))


def print_outcome(console: Console, outcome: Outcome, log: str) -> None:
    """The answer, who ran where, where the log is, and what is not finished."""
    console.print()
    if outcome.answer:
        console.print(Text("answer of the Lead", style="bold"))
        console.print(Text(harmless(outcome.answer)), soft_wrap=True)
        console.print()
    console.print(
        table(
            "who ran where",
            ("MEMBER", "WORKERS", "LAST TURN"),
            (
                (member.target, ", ".join(outcome.workers.get(member.target, ())) or "-", last_end(member))
                for member in outcome.team.members
            ),
        )
    )
    finished = sum(not is_open(task) for task in outcome.team.tasks)
    if outcome.team.tasks:
        console.print(f"tasks completed: {finished} of {len(outcome.team.tasks)}", highlight=False)
    console.print(Text(f"log: {log}"), soft_wrap=True)
    if outcome.is_done:
        console.print(Text("done", style="bold green"))
        return
    console.print(Text("incomplete:", style="bold red"))
    for phrase in outcome.unfinished:
        console.print(Text(f"  - {harmless(phrase)}"), soft_wrap=True)


def print_doctor(console: Console, report: DoctorView) -> None:
    """One line for each Session, and the verdict."""
    console.print(
        table(
            None,
            ("SESSION", "EVENTS", "REPLAY"),
            (
                (session.id, str(session.events), "equals projections" if session.ok else session.fault or "differs")
                for session in report.sessions
            ),
        )
    )
    count = len(report.sessions)
    faulty = sum(not session.ok for session in report.sessions)
    verdict = (
        f"all {count} Sessions: replay equals projections" if report.ok else f"{faulty} of {count} Sessions differ"
    )
    console.print(Text(verdict, style="bold green" if report.ok else "bold red"))
