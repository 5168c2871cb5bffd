"""What Teams have used."""

from fastapi import APIRouter, Response

from team.api.bodies import ERRORS, reply
from team.model.usage import UsageView
from team.service.usage import UsageService


def usage_router(usage: UsageService) -> APIRouter:
    """Reads for operators and viewers."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.get("/teams/{team_id}/usage", responses={200: {"model": UsageView}})
    def show_usage(team_id: str) -> Response:
        """Tokens, turns, steps and tool time of each Session of the Team, and what counts toward its budgets."""
        return reply(usage.usage(team_id))

    return router
