"""Following a Team until its work is over, and what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from team.cli.client import Operator
from team.cli.lines import progress_line, text_of
from team.cli.views import is_open, is_settled, name_of
from team.model.events import Event
from team.model.ids import SessionId
from team.model.views import EventFaultView, SubagentStateView, TeamMemberView, TeamView

_PERIOD_SECONDS: Final = 0.3

Print = Callable[[str, str], None]
"""Shows one line of progress: who, and what."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``workers`` names for each member the workers that ran its turns, in order."""

    team: TeamView
    answer: str
    workers: dict[str, tuple[str, ...]]
    reached_limit: bool
    unfinished: tuple[str, ...] = field(default=())

    @property
    def is_done(self) -> bool:
        return not self.unfinished

    def to_json(self) -> dict[str, Any]:
        """What ``team run --json`` prints."""
        return {
            "session": self.team.team_id,
            "status": "done" if self.is_done else "incomplete",
            "unfinished": list(self.unfinished),
            "answer": self.answer,
            "workers": {name: list(workers) for name, workers in self.workers.items()},
        }


class Follower:
    """Polls one Team and shows what happens.

    Args:
        operator: The coordinator.
        team_id: The Team to follow.
        show: Shows one line.
    """

    def __init__(self, operator: Operator, team_id: str, show: Print) -> None:
        self._operator = operator
        self._team_id = team_id
        self._show = show
        self._seen: dict[str, int] = {}
        self._placed: dict[str, tuple[str, str]] = {}
        self._answer = ""

    def skip_past(self) -> None:
        """Show only what happens from now on."""
        view = self._operator.team(self._team_id)
        for agent in (*view.members, *view.subagents):
            self._seen[agent.session_id] = agent.last_seq

    def follow(self, limit_seconds: float | None) -> Outcome:
        """Return when no member and no subagent has an open turn or unheld input, or when the limit is reached."""
        end = time.monotonic() + limit_seconds if limit_seconds is not None else None
        while True:
            view = self._operator.team(self._team_id)
            self._show_news(view)
            if is_settled(view):
                return self._outcome(view, reached_limit=False)
            if end is not None and time.monotonic() > end:
                return self._outcome(view, reached_limit=True)
            time.sleep(_PERIOD_SECONDS)

    def _show_news(self, view: TeamView) -> None:
        names = {str(member.session_id): member.target for member in view.members}
        news: list[tuple[SessionId, str, Event]] = []
        for agent in (*view.members, *view.subagents):
            self._note_worker(agent)
            session_id = agent.session_id
            if agent.last_seq <= self._seen.get(session_id, 0):
                continue
            for event in self._operator.records(session_id, self._seen.get(session_id, 0)):
                self._seen[session_id] = event.seq
                if isinstance(event, EventFaultView):
                    self._show(name_of(agent), f"a record cannot be read: {event.fault}")
                else:
                    news.append((session_id, name_of(agent), event))
        # Within one log the order is seq; between logs there is none, so the clock may arrange them for the eye.
        lead = view.members[0].session_id
        for session_id, name, event in sorted(news, key=lambda item: item[2].time):
            if session_id == lead and event.type == "assistant/message":
                self._answer = text_of(event.data.get("content")) or self._answer
            line = progress_line(event, names)
            if line is not None:
                self._show(name, line)

    def _note_worker(self, agent: TeamMemberView | SubagentStateView) -> None:
        turn = agent.turn
        if turn is None or turn.worker is None or turn.state != "running":
            return
        place = (turn.id, turn.worker)
        if self._placed.get(agent.session_id) != place:
            self._placed[agent.session_id] = place
            self._show(name_of(agent), f"runs on {turn.worker}")

    def _outcome(self, view: TeamView, *, reached_limit: bool) -> Outcome:
        if not self._answer:
            answers = [
                text_of(event.data.get("content"))
                for event in self._operator.records(view.members[0].session_id)
                if isinstance(event, Event) and event.type == "assistant/message"
            ]
            self._answer = next((answer for answer in reversed(answers) if answer), "")
        return Outcome(
            team=view,
            answer=self._answer,
            workers={member.target: member.workers for member in view.members},
            reached_limit=reached_limit,
            unfinished=unfinished_work(view, reached_limit=reached_limit),
        )


def unfinished_work(view: TeamView, *, reached_limit: bool = False) -> tuple[str, ...]:
    """What keeps a run from being done, one phrase each; empty when it is done."""
    found: list[str] = []
    if reached_limit:
        found.append("the time limit was reached")
    if view.failure is not None:
        found.append(f"the Team's state cannot be read: {view.failure}")
    lead = view.members[0]
    lead_end = lead.last_end
    if lead.turn is None:
        if lead_end is None:
            found.append("the Lead has not run a turn")
        elif lead_end.reason != "completed":
            detail = ": ".join(filter(None, (lead_end.code, lead_end.message)))
            found.append(f"the Lead's last turn ended {lead_end.reason}" + (f" ({detail})" if detail else ""))
    for member in view.members:
        if member.turn is not None:
            where = f" on {member.turn.worker}" if member.turn.worker else ""
            found.append(f"{member.target} has a turn that is {member.turn.state}{where}")
        elif member.phase == "provisioning":
            found.append(f"{member.target} is still being created")
        if member.pending:
            kind = "held" if member.held else "waiting"
            found.append(f"{member.target} has {member.pending} message{'s' * (member.pending > 1)} {kind}")
    found.extend(
        f"the subagent {name_of(agent)} has a turn that is {agent.turn.state}"
        for agent in view.subagents
        if agent.turn is not None
    )
    found.extend(
        f"{task.id} is {task.status.replace('_', ' ')}"
        + (f" (owner {task.owner_name})" if task.owner_name else "")
        + f": {task.subject}"
        for task in view.tasks
        if is_open(task)
    )
    return tuple(found)
