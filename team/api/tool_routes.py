"""Team tools for callers from outside: an operator acts as a member."""

import asyncio
import contextlib
import time
from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from team.api.bodies import ERRORS, MAX_BODY_BYTES, read_body
from team.api.idempotency import ACTOR, IdempotencyKey, once_of
from team.dispatch.edges import EdgeSignals
from team.model.errors import RequestInvalid
from team.model.values import JsonObject, Value
from team.model.views import WaitView
from team.rules.waiting import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from team.service.callers import Caller
from team.service.sessions import SessionService
from team.service.teams import TeamService
from team.tools.execution import ToolExecutor, parse
from team.tools.parameters import WaitAgent

RECHECK_SECONDS: Final = 5.0


class ToolView(Value):
    result: JsonObject | list[JsonObject]


def tool_router(sessions: SessionService, teams: TeamService, tools: ToolExecutor, signals: EdgeSignals) -> APIRouter:
    """One route for all tools."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.post("/teams/{team_id}/members/{target}/tools/{tool}", responses={200: {"model": ToolView}})
    async def run_tool(request: Request, team_id: str, target: str, tool: str, key: IdempotencyKey) -> Response:
        """Run one Team tool as a member. `wait_agent` answers at the next edge or at its timeout."""
        body = await read_body(request, MAX_BODY_BYTES) or b"{}"
        session_id = await asyncio.to_thread(sessions.member_session, team_id, target)
        caller = Caller(session_id, actor=ACTOR, once=once_of(key, request, body))
        if tool == "wait_agent":
            wanted = parse(tool, body)
            assert isinstance(wanted, WaitAgent)
            return tool_result(await wait_for_edge(teams, signals, caller, wanted.timeout_ms))
        outcome = await asyncio.to_thread(tools.execute, caller, tool, body)
        if not isinstance(outcome, BaseModel):
            raise RequestInvalid(f"{tool} has no result for an outside caller.")
        return tool_result(outcome)

    return router


def tool_result(view: BaseModel) -> Response:
    """The answer to a caller from outside, as compact as a model gets it."""
    content = f'{{"result":{view.model_dump_json(by_alias=True, exclude_none=True)}}}'
    return Response(content, media_type="application/json")


async def wait_for_edge(
    teams: TeamService,
    signals: EdgeSignals,
    caller: Caller,
    timeout_ms: int | None,
    *,
    longest_seconds: float = MAX_TIMEOUT_MS / 1000,
) -> WaitView:
    """Block until the Team's edge counter moves; the signal only makes it fast, the counter decides.

    Whatever the timeout, it ends as timed out after ``longest_seconds``.
    """
    team_id, counter, view = await asyncio.to_thread(teams.wait_state, caller, timeout_ms)
    if view is not None:
        return view
    deadline = time.monotonic() + min((timeout_ms or DEFAULT_TIMEOUT_MS) / 1000, longest_seconds)
    while True:
        async with signals.listening(team_id) as heard:
            # Read only after listening: an edge between the two would be missed.
            if await asyncio.to_thread(teams.edge_counter, team_id) != counter:
                return WaitView(timed_out=False)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return WaitView(timed_out=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, RECHECK_SECONDS)):
                    await heard.wait()
