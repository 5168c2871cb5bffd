"""Who may call: bearer tokens, and only hosts and origins that name this coordinator."""

import hmac
import ipaddress
from collections.abc import Callable

from fastapi import Request
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from team.api.bodies import reply_error
from team.model.errors import ConfigurationInvalid, Forbidden, Unauthenticated

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def bearer(expected: SecretStr, what: str) -> Callable[[Request], None]:
    """A dependency that demands this bearer token. Raises Unauthenticated."""

    def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = expected.get_secret_value()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise Unauthenticated(f"Send the {what} token as 'Authorization: Bearer TOKEN'.")

    return check


def require_token(token: SecretStr | None, variable: str) -> SecretStr:
    """A token that is really set. Raises ConfigurationInvalid: nothing is ever served without one."""
    if token is None or not token.get_secret_value().strip():
        raise ConfigurationInvalid(f"{variable} is not set: choose a long random value and set it for every process.")
    return token


class HostCheck:
    """Refuses requests whose Host or Origin names somebody else: a browser page cannot reach a loopback server."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._any = not _is_loopback(host)
        self._hosts = _LOOPBACK_NAMES | {host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._any:
            request = Request(scope)
            host = _without_port(request.headers.get("host", ""))
            origin = request.headers.get("origin")
            foreign_origin = origin is not None and _without_port(origin.partition("://")[2]) not in self._hosts
            if host not in self._hosts or foreign_origin:
                await reply_error(Forbidden("The Host or Origin header names another server."))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
