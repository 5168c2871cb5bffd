"""External members: an operator invites and revokes; an outside agent acts by its invitation, and by nothing else."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from team.api.bodies import ERRORS, MAX_BODY_BYTES, body_docs, json_body, read_body, reply
from team.api.idempotency import ACTOR, IdempotencyKey, once_of
from team.api.tool_routes import tool_result, wait_for_edge
from team.dispatch.edges import EdgeSignals
from team.model.errors import Unauthenticated
from team.model.ids import TeamId
from team.model.tools import ToolSpec
from team.model.values import Value
from team.model.views import InviteView, RevokedView
from team.service.callers import Caller
from team.service.externals import ExternalService, Guest
from team.service.teams import TeamService
from team.tools.execution import ToolExecutor, parse
from team.tools.external import execute, tools_of
from team.tools.parameters import WaitAgent

EXTERNAL_ACTOR: Final = "external"
LONGEST_WAIT_SECONDS: Final = 45.0
"""Clients of outside agents give a call a minute; one that waits is answered before."""


class InviteMember(Value):
    """An external member by its name; with the name of one that is there it gets a new token."""

    name: str
    description: str


class GuestView(Value):
    """Who a token lets in, and what it may call."""

    team_id: TeamId
    target: str
    description: str
    longest_wait_seconds: float = LONGEST_WAIT_SECONDS
    tools: tuple[ToolSpec, ...]


def invite_router(externals: ExternalService) -> APIRouter:
    """What an operator does about external members."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.post(
        "/teams/{team_id}/invites",
        responses={201: {"model": InviteView}},
        openapi_extra=body_docs(InviteMember),
        status_code=201,
    )
    def invite(team_id: str, wanted: Annotated[InviteMember, Depends(json_body(InviteMember))]) -> Response:
        """Invite an outside agent as a member. The token is shown once; asking again replaces it."""
        view = externals.invite(team_id, name=wanted.name, description=wanted.description, actor=ACTOR)
        return reply(view, 201)

    @router.delete("/teams/{team_id}/invites/{target}", responses={200: {"model": RevokedView}})
    def revoke(team_id: str, target: str) -> Response:
        """End the invitation of an external member; it stays in the roster and cannot act."""
        return reply(externals.revoke(team_id, target))

    return router


def member_router(
    externals: ExternalService, teams: TeamService, tools: ToolExecutor, signals: EdgeSignals
) -> APIRouter:
    """What an invitation allows. The token alone says who acts: no path or parameter names a member."""
    router = APIRouter(prefix="/member", include_in_schema=False)

    def guest(request: Request) -> Guest:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("Send the invitation's token as 'Authorization: Bearer TOKEN'.")
        return externals.guest(token.strip())

    @router.get("")
    def describe(invited: Annotated[Guest, Depends(guest)]) -> Response:
        specs = tuple(tools_of(invited.profile))
        view = GuestView(team_id=invited.team_id, target=invited.target, description=invited.description, tools=specs)
        return reply(view)

    @router.post("/tools/{tool}")
    async def run_tool(
        request: Request, tool: str, key: IdempotencyKey, invited: Annotated[Guest, Depends(guest)]
    ) -> Response:
        body = await read_body(request, MAX_BODY_BYTES) or b"{}"
        once = once_of(key, request, body, actor=f"{EXTERNAL_ACTOR}:{invited.session_id}")
        caller = Caller(invited.session_id, actor=EXTERNAL_ACTOR, once=once, invite=invited.invite)
        if tool == "wait_agent":
            wanted = parse(tool, body)
            assert isinstance(wanted, WaitAgent)
            waited = await wait_for_edge(
                teams, signals, caller, wanted.timeout_ms, longest_seconds=LONGEST_WAIT_SECONDS
            )
            return tool_result(waited)
        return tool_result(await asyncio.to_thread(execute, tools, externals, caller, tool, body))

    return router
