"""How a browser is authenticated: the token is exchanged once for a cookie that scripts cannot read.

The cookie is signed with the token and holds nothing else, so every coordinator of a deployment knows it, a restart
keeps it, and a new token ends it. It never stands in a URL.
"""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from fastapi import Request, Response
from pydantic import SecretStr

from team.model.errors import Forbidden, Unauthenticated

Role = Literal["operator", "viewer"]

LIFE_SECONDS: Final = 12 * 3600
HEADER: Final = "team-panel"
"""A header that a page of another origin cannot send without being asked first, which it never is."""
READING: Final = frozenset({"GET", "HEAD"})
_PURPOSE: Final = b"celery-agent-teams browser session"


@dataclass(frozen=True)
class BrowserSessions:
    """Issues and checks the cookies of the panel."""

    operator: SecretStr
    viewer: SecretStr | None

    @property
    def cookie_name(self) -> str:
        """Differs between deployments: cookies of one host are shared by all its ports."""
        return "team-" + _sign(self.operator, "name")[:12]

    def open(self, token: str, response: Response, *, is_encrypted: bool) -> Role:
        """Set the cookie that a token gives a right to. Raises Unauthenticated for another token."""
        for role, expected in self._roles():
            if hmac.compare_digest(token.encode(), expected.get_secret_value().encode()):
                until = int(time.time()) + LIFE_SECONDS
                content = f"{role}.{until}.{secrets.token_hex(8)}"
                value = f"{content}.{_sign(expected, content)}"
                response.set_cookie(
                    self.cookie_name, value, LIFE_SECONDS, secure=is_encrypted, httponly=True, samesite="strict"
                )
                return role
        raise Unauthenticated("That is no token of this coordinator; `team up` says which file holds it.")

    def close(self, response: Response) -> None:
        """Have the browser forget its cookie."""
        response.delete_cookie(self.cookie_name, httponly=True, samesite="strict")

    def role(self, request: Request) -> Role | None:
        """What the request's cookie allows; None without a valid one.

        Raises:
            Forbidden: It would change something and does not come from the panel's own page.
        """
        found = self._role(request.cookies.get(self.cookie_name, ""))
        if found is not None and request.method not in READING and not _is_own_page(request):
            raise Forbidden("A browser's request must come from the panel itself.")
        return found

    def _role(self, cookie: str) -> Role | None:
        content, _, signature = cookie.rpartition(".")
        for role, expected in self._roles():
            if hmac.compare_digest(signature.encode(), _sign(expected, content).encode()):
                name, until, _nonce = content.split(".")
                return role if name == role and int(until) > time.time() else None
        return None

    def _roles(self) -> list[tuple[Role, SecretStr]]:
        roles: list[tuple[Role, SecretStr]] = [("operator", self.operator)]
        if self.viewer is not None:
            roles.append(("viewer", self.viewer))
        return roles


def _sign(token: SecretStr, content: str) -> str:
    key = hmac.digest(token.get_secret_value().encode(), _PURPOSE, hashlib.sha256)
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def _is_own_page(request: Request) -> bool:
    origin = request.headers.get("origin")
    same = origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    return same and request.headers.get(HEADER) == "1"
