"""The panel's page and modules, and the exchange of a token for a cookie."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from team.api.bodies import reply
from team.api.browser import BrowserSessions, Role
from team.model.errors import Unauthenticated
from team.model.values import Value

WEB: Final = Path(__file__).parent / "web"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DIRECTIVES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "worker-src 'self'",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types panel",
)
POLICY: Final = "; ".join(_DIRECTIVES)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class RoleView(Value):
    role: Role


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def panel_router(browsers: BrowserSessions) -> APIRouter:
    """Public routes: the page holds no data, and the exchange checks the token itself."""
    router = APIRouter(include_in_schema=False)
    assets = _assets()

    @router.get("/")
    def page(request: Request) -> Response:
        return _serve(request, assets["index.html"])

    @router.get("/web/{name:path}")
    def module(request: Request, name: str) -> Response:
        asset = assets.get(name)
        return Response(status_code=404, headers=HEADERS) if asset is None else _serve(request, asset)

    @router.post("/browser-session")
    def open_session(request: Request) -> Response:
        """Exchange a bearer token for the panel's cookie."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("Send the operator token as 'Authorization: Bearer TOKEN'.")
        response = Response(media_type="application/json")
        role = browsers.open(token.strip(), response, is_encrypted=request.url.scheme == "https")
        response.body = RoleView(role=role).to_json().encode()
        response.headers["Content-Length"] = str(len(response.body))
        return response

    @router.get("/browser-session")
    def show_session(request: Request) -> Response:
        """What the cookie allows."""
        role = browsers.role(request)
        if role is None:
            raise Unauthenticated("This browser is not signed in.")
        return reply(RoleView(role=role))

    @router.delete("/browser-session")
    def close_session(request: Request) -> Response:
        """Forget the cookie."""
        browsers.role(request)
        response = Response(status_code=204)
        browsers.close(response)
        return response

    return router


def _assets() -> Mapping[str, Asset]:
    """Every file of the panel by its name, read once."""
    return {
        file.relative_to(WEB).as_posix(): Asset(file.read_bytes(), TYPES[file.suffix])
        for file in sorted(WEB.rglob("*"))
        if file.suffix in TYPES
    }


def _serve(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "ETag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
