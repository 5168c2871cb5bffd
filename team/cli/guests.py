"""The coordinator as an outside agent's MCP server uses it: one member's tools, by one invitation."""

import asyncio
import json
import ssl
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import httpx2
from pydantic import ValidationError

from team.model.claims import ErrorResponse
from team.model.errors import CoordinatorUnreachable, TeamError, error_from
from team.model.tools import ToolSpec
from team.model.values import Value

PATIENCE_SECONDS: Final = 20.0
_RETRIED: Final = frozenset({502, 503, 504})
_CALL_SECONDS: Final = 75.0
"""Longer than the coordinator holds a call that waits."""


class Membership(Value):
    """Who the invitation lets in, and what it may call."""

    team_id: str
    target: str
    description: str
    longest_wait_seconds: float
    tools: tuple[ToolSpec, ...]


class Invitation:
    """A client with an invitation's token. Calls outlast a restart of the coordinator: each is retried for a while.

    Every call carries an ``Idempotency-Key``, so a retry repeats nothing. Errors of the coordinator are raised as the
    TeamError that their code names.
    """

    def __init__(self, url: str, token: str, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._url, self._patience = url, patience_seconds
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(_CALL_SECONDS, connect=3.0),
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            # A proxy of the environment has no business between two processes of one deployment.
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def membership(self) -> Membership:
        """Raises Unauthenticated, CoordinatorUnreachable."""
        answer = await self._send("GET", "/member", None, {})
        return Membership.model_validate_json(answer, strict=False, extra="ignore")

    async def call(self, tool: str, arguments: Mapping[str, Any], key: str | None) -> str:
        """Run one tool; its result as compact JSON text. ``key`` names the call when the caller may repeat it."""
        body = json.dumps(arguments, ensure_ascii=False).encode()
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Content-Type": "application/json"}
        answer = json.loads(await self._send("POST", f"/member/tools/{tool}", body, headers))
        return json.dumps(answer["result"], ensure_ascii=False, separators=(",", ":"))

    async def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        end = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._http.request(method, path, content=body, headers=dict(headers))
            except httpx2.TransportError as error:
                if time.monotonic() > end:
                    raise CoordinatorUnreachable(
                        f"No coordinator answers at {self._url}. Whether this call was made is not known; try again "
                        "later, and look at the state before you repeat it."
                    ) from error
            else:
                if answer.is_success:
                    return answer.content
                if answer.status_code not in _RETRIED or time.monotonic() > end:
                    raise self._fault(answer)
            await asyncio.sleep(0.2)

    def _fault(self, answer: httpx2.Response) -> TeamError:
        try:
            fault = ErrorResponse.model_validate_json(answer.content).error
        except ValidationError:
            return TeamError(f"{self._url} answered with status {answer.status_code}; is it a coordinator?")
        return error_from(fault.code, fault.message)
