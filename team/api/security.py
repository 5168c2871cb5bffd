"""Who may call: bearer tokens, and only hosts and origins that name this coordinator."""

import hmac
from collections.abc import Callable, Iterable

from fastapi import Request
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from team.api.bodies import reply_error
from team.api.browser import READING, BrowserSessions
from team.model.errors import Forbidden, Unauthenticated

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def bearer(expected: SecretStr, what: str) -> Callable[[Request], None]:
    """A dependency that demands this bearer token. Raises Unauthenticated."""

    def check(request: Request) -> None:
        if not _bears(request, expected):
            raise Unauthenticated(f"Send the {what} token as 'Authorization: Bearer TOKEN'.")

    return check


def operator_or_viewer(
    operator: SecretStr, viewer: SecretStr | None, browsers: BrowserSessions
) -> Callable[[Request], None]:
    """A dependency of the public API: an operator may do everything, a viewer may read; a browser by its cookie.

    Raises Unauthenticated for another token, Forbidden when a viewer's request would change something.
    """

    def check(request: Request) -> None:
        if _bears(request, operator):
            return
        if viewer is None or not _bears(request, viewer):
            role = None if "authorization" in request.headers else browsers.role(request)
            if role is None:
                raise Unauthenticated("Send the operator token as 'Authorization: Bearer TOKEN'.")
            if role == "operator":
                return
        if request.method not in READING:
            raise Forbidden("This token may look and change nothing; use the operator token.")

    return check


def _bears(request: Request, expected: SecretStr) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = expected.get_secret_value()
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


class HostCheck:
    """Refuses requests whose Host or Origin names somebody else: a browser page cannot reach a loopback server."""

    def __init__(self, app: ASGIApp, host: str, names: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = _LOOPBACK_NAMES | {host} | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            host = _without_port(request.headers.get("host", "")).lower()
            origin = request.headers.get("origin")
            foreign_origin = origin is not None and _without_port(origin.partition("://")[2]).lower() not in self._hosts
            if host not in self._hosts or foreign_origin:
                refusal = "The Host or Origin header names another server; TEAM_ALLOWED_HOSTS lists further names."
                await reply_error(Forbidden(refusal))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
