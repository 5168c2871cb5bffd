"""A runtime row of an open turn, for tests of what tells about turns."""

from typing import Final

from team.log.runs import Run
from team.model.ids import SessionId, TeamId, TurnId

RUN: Final = Run(
    turn_id=TurnId("turn-1"),
    session_id=SessionId("session-1"),
    team_id=TeamId("team-1"),
    member="bob",
    queue="big",
    state="running",
    state_since=0.0,
    reason="",
    epoch=1,
    losses=0,
    attempts=0,
    worker="one",
    token=None,
    request_id=None,
    lease_until=None,
    next_dispatch_at=None,
    dispatches=1,
)
