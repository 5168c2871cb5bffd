"""Metrics over HTTP: the exposition, and the measure of every other request."""

import time
from typing import Final

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from team.dispatch.metrics import Metrics

UNKNOWN: Final = "unknown"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def metrics_router(metrics: Metrics) -> APIRouter:
    """One route, for operators and viewers."""
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


class RequestTimes:
    """Measures each request until its response begins, by the template of its route.

    A path without a route, and a method that HTTP does not know, count as one: whoever sends them must not make series.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 0

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start" and status == 0:
                status = message["status"]
                method = scope["method"] if scope["method"] in _METHODS else UNKNOWN
                self._metrics.answered(method, _template(scope), status, time.monotonic() - started)
            await send(message)

        await self._app(scope, receive, observe)


def _template(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", UNKNOWN))
