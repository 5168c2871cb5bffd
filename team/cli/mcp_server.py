"""The MCP server of one external member: over stdio, or over streamable HTTP on loopback. Needs the extra ``mcp``."""

import hmac
import importlib.metadata
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import anyio
import mcp_types as types
import uvicorn
from fastapi import Request
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.types import ASGIApp, Receive, Scope, Send

from team.api.bodies import reply_error
from team.api.security import HostCheck
from team.cli.guests import Invitation, Membership
from team.model.errors import InvalidArgument, TeamError, Unauthenticated, error_json

LOOPBACK: Final = "127.0.0.1"
KEY: Final = "celery-agent-teams/idempotency-key"
"""In the ``_meta`` of a call: a call that is repeated with the same key and arguments gets the first one's result."""

MAX_KEY_CHARACTERS: Final = 200


def instructions(membership: Membership) -> str:
    """What an outside agent must know of its place in the Team."""
    return (
        f"You are the teammate {membership.target} of a Team of agents: {membership.description}\n"
        "Your Lead is lead. Only the Lead creates and interrupts teammates.\n"
        "Messages to you wait until you call read_messages; nothing else shows them, and each is returned once. "
        "Only the first block of a message names its sender. "
        f"wait_agent answers after at most {membership.longest_wait_seconds:g} seconds; timedOut true is a normal "
        "result: call it again to wait on. Report what you did to your Lead with send_message."
    )


def build(invitation: Invitation, membership: Membership) -> Server[Any]:
    """An MCP server whose tools act as one member."""

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        current = await invitation.membership()
        return types.ListToolsResult(
            tools=[
                types.Tool(name=spec.name, description=spec.description, input_schema=spec.parameters)
                for spec in current.tools
            ]
        )

    async def call_tool(
        _context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            text = await invitation.call(quote(params.name, safe=""), params.arguments or {}, _key(params))
        except TeamError as error:
            fault = error_json(error.code, error.message)
            return types.CallToolResult(content=[types.TextContent(type="text", text=fault)], is_error=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server(
        "celery-agent-teams",
        version=importlib.metadata.version("celery-agent-teams"),
        instructions=instructions(membership),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _key(params: types.CallToolRequestParams) -> str | None:
    """The caller's own name for this call. The id of a JSON-RPC request is none: other clients count from 0 as well."""
    key: object = (params.meta or {}).get(KEY)
    if key is None:
        return None
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidArgument(f"{KEY} must be printable ASCII of 1 to {MAX_KEY_CHARACTERS} characters.")
    return key


class TokenCheck:
    """Refuses requests without the token of the invitation that this server holds."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scheme, _, given = Request(scope).headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                refusal = Unauthenticated("Send the invitation's token as 'Authorization: Bearer TOKEN'.")
                await reply_error(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


@asynccontextmanager
async def _opened(url: str, token: str) -> AsyncGenerator[Server[Any]]:
    invitation = Invitation(url, token)
    try:
        yield build(invitation, await invitation.membership())
    finally:
        await invitation.close()


async def _stdio(url: str, token: str) -> None:
    async with _opened(url, token) as server, stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def _http(url: str, token: str, port: int) -> None:
    async with _opened(url, token) as server:
        # Without sessions: a restart of this server is none for its clients.
        app = server.streamable_http_app(host=LOOPBACK, stateless_http=True, json_response=True)
        guarded = HostCheck(TokenCheck(app, token), LOOPBACK)
        await uvicorn.Server(uvicorn.Config(guarded, host=LOOPBACK, port=port, log_level="warning")).serve()


def serve_stdio(url: str, token: str) -> None:
    """Serve on standard input and output until the client closes them.

    Raises Unauthenticated, CoordinatorUnreachable.
    """
    anyio.run(_stdio, url, token)


def serve_http(url: str, token: str, port: int) -> None:
    """Serve ``/mcp`` on loopback until SIGTERM. Clients send the invitation's token as a bearer token."""
    anyio.run(_http, url, token, port)
