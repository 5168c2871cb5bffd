"""What the panel reads once: turns over time, and a log from its end backwards."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from team.api.bodies import ERRORS, reply
from team.model.events import Event
from team.model.ids import MAX_SAFE_INTEGER
from team.model.values import Value
from team.model.wire import TimelineView
from team.service.panel import PanelService


class TailView(Value):
    """Events in order; ``first_seq`` is where the page begins, ``fault`` why it ends early."""

    events: tuple[Event, ...]
    first_seq: int
    last_seq: int
    fault: str | None = None


def team_router(panel: PanelService) -> APIRouter:
    """Reads for viewers."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.get("/teams/{team_id}/timeline", responses={200: {"model": TimelineView}})
    def show_timeline(team_id: str) -> Response:
        """The newest turns of each Session: queued, executing on which worker, waiting."""
        return reply(panel.timeline(team_id))

    @router.get("/sessions/{session_id}/tail", responses={200: {"model": TailView}})
    def show_tail(
        session_id: str,
        before: Annotated[int | None, Query(ge=1, le=MAX_SAFE_INTEGER)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        """The events before a seq, without one the newest; in order."""
        last_seq = panel.last_seq(session_id)
        end = min(last_seq, MAX_SAFE_INTEGER if before is None else before - 1)
        first = max(1, end - limit + 1)
        events, damage = panel.events(session_id, first - 1, end - first + 1) if end >= first else ([], None)
        fault = None if damage is None else damage.message
        return reply(TailView(events=tuple(events), first_seq=first, last_seq=last_seq, fault=fault))

    return router
