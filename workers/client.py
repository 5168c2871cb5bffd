"""The worker's HTTP client of the coordinator. Every call is idempotent, so every call is retried."""

import asyncio
import random
import ssl
import time
from typing import Final, TypeVar

import httpx2
from pydantic import ValidationError

from team.model.claims import (
    Acknowledged,
    AnswerRequest,
    AnswerResult,
    BackoffRequest,
    BoundaryRequest,
    BoundaryResult,
    Claim,
    ClaimRequest,
    CompactRequest,
    CompactResult,
    ErrorResponse,
    FailRequest,
    IntentRequest,
    ReleaseRequest,
    ResultRequest,
    ToolRequest,
    ToolResult,
    WorkerHello,
)
from team.model.content import ContentBlock
from team.model.errors import ConfigurationInvalid, CoordinatorUnreachable, TeamError, Unauthenticated, error_from
from team.model.events import FinishReason, Outcome, Usage, first_fault
from team.model.slices import FileSlice
from team.model.values import Value

V = TypeVar("V", bound=Value)

_OK: Final = 200
_NO_CONTENT: Final = 204
_TRANSIENT: Final = frozenset({502, 503, 504})
_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 1.0
_READ_SECONDS: Final = 10.0
# Creating a teammate is two commits and a provisioning lease.
_TOOL_READ_SECONDS: Final = 30.0
# Well below the 75 seconds after which a coordinator closes an idle connection, and the minute of common proxies.
_KEEPALIVE_SECONDS: Final = 30.0


class ReplyInvalid(TeamError, code="REPLY_INVALID", status=502):  # noqa: N818  # as in team.model
    """The coordinator's answer is not one that this version understands."""


def tls(url: str) -> ssl.SSLContext | bool:
    """The system's certificate store for https, which SSL_CERT_FILE may change; nothing to load for http."""
    return ssl.create_default_context() if url.startswith("https:") else False


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


def error_of(response: httpx2.Response) -> TeamError:
    """The error that a response other than 2xx carries."""
    place = f"{response.request.method} {response.request.url.path}"
    try:
        body = ErrorResponse.model_validate_json(response.content).error
    except ValidationError:
        if response.status_code == Unauthenticated.status:
            return Unauthenticated("the coordinator refused the worker token: set the same TEAM_WORKER_TOKEN on both")
        return ReplyInvalid(
            f"{place} was answered with status {response.status_code} and no error body: "
            "check that TEAM_COORDINATOR_URL is a coordinator of this version"
        )
    return error_from(body.code, body.message)


def decode(response: httpx2.Response, kind: type[V]) -> V:
    """The body of a 200 response; raises the error that another status carries, or ReplyInvalid."""
    if response.status_code != _OK:
        raise error_of(response)
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        place = f"{response.request.method} {response.request.url.path}"
        # Without its cause: a validation error quotes what it was given.
        raise ReplyInvalid(f"{place}: {first_fault(error)}; run the same version of coordinator and worker") from None


class Coordinator:
    """One keep-alive client per worker process, for its event loop."""

    def __init__(self, url: str, token: str, *, connections: int) -> None:
        self.url = url
        try:
            self._http = httpx2.AsyncClient(
                base_url=url,
                headers=bearer(token),
                verify=tls(url),
                # A proxy variable of the surroundings is not meant for the control plane.
                trust_env=False,
                timeout=httpx2.Timeout(_READ_SECONDS, connect=3.0, pool=None),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=connections, keepalive_expiry=_KEEPALIVE_SECONDS
                ),
            )
        except httpx2.InvalidURL as error:
            raise ConfigurationInvalid(f"TEAM_COORDINATOR_URL {url!r} is not a URL: {error}") from error

    async def close(self) -> None:
        await self._http.aclose()

    async def hello(self, *, patience: float) -> WorkerHello:
        """What this worker must check at start."""
        return decode(await self.send("GET", "/worker/hello", None, patience=patience), WorkerHello)

    async def claim(self, request: ClaimRequest, *, patience: float) -> Claim | None:
        """Claim a turn; None when nothing is queued. A retry carries the same request id, so it gets the same claim."""
        response = await self.send("POST", "/worker/claim", request, patience=patience)
        return None if response.status_code == _NO_CONTENT else decode(response, Claim)

    async def send(
        self,
        method: str,
        path: str,
        body: Value | None,
        *,
        patience: float,
        claim_token: str | None = None,
        read_seconds: float = _READ_SECONDS,
    ) -> httpx2.Response:
        """Send until there is an answer, for at most ``patience`` seconds plus one attempt.

        Connection faults, time-outs and 502, 503, 504 are tried again, which outlives a restart of the coordinator.

        Raises:
            CoordinatorUnreachable: The patience ended; the request may have been processed.
            ConfigurationInvalid: The URL cannot be asked at all.
        """
        end = time.monotonic() + patience
        delay = _FIRST_DELAY_SECONDS
        content = None if body is None else body.to_json()
        headers = {} if claim_token is None else {"Team-Claim": claim_token}
        timeout = httpx2.Timeout(read_seconds, connect=3.0, pool=None)
        while True:
            try:
                response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout)
            except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
                raise ConfigurationInvalid(
                    f"TEAM_COORDINATOR_URL {self.url!r} is not usable: give http://HOST:PORT or https://..."
                ) from error
            except httpx2.TransportError as error:
                trouble = type(error).__name__
            else:
                if response.status_code not in _TRANSIENT:
                    return response
                trouble = f"status {response.status_code}"
            if time.monotonic() + delay > end:
                raise CoordinatorUnreachable(
                    f"the coordinator at {self.url} did not answer {method} {path} within {patience:g} s ({trouble}): "
                    "start it, or set TEAM_COORDINATOR_URL"
                )
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  # spreads retries, guards nothing
            delay = min(delay * 2, _LONGEST_DELAY_SECONDS)


class ClaimWriter:
    """The writes of one claim, each with its own number from 1; a retry repeats number and body.

    Writes of calls that run side by side may arrive in another order than their numbers.
    """

    def __init__(self, coordinator: Coordinator, claim: Claim) -> None:
        self._coordinator = coordinator
        self._claim = claim
        self._number = 0
        # Twice the lease outlives a restart; a claim that lapses earlier cancels the waiting write.
        self._patience = 2 * claim.limits.lease_seconds

    async def boundary(self, history_after: int) -> BoundaryResult:
        """End the open step, if there is one, and learn what happens next."""
        request = BoundaryRequest(epoch=self._claim.epoch, number=self._next(), history_after=history_after)
        return await self._send("boundary", request, BoundaryResult)

    async def answer(
        self,
        step: int,
        *,
        model: str,
        content: tuple[ContentBlock, ...],
        usage: Usage,
        finish_reason: FinishReason,
        provider_detail: str | None,
    ) -> AnswerResult:
        """Commit the model's answer of ``step``."""
        request = AnswerRequest(
            epoch=self._claim.epoch,
            number=self._next(),
            step=step,
            model=model,
            content=content,
            usage=usage,
            finish_reason=finish_reason,
            provider_detail=provider_detail,
        )
        return await self._send("answer", request, AnswerResult)

    async def compact(self, step: int, *, summary: str, model: str, usage: Usage, history_after: int) -> CompactResult:
        """Commit the summary that stands for the history before the answer of ``step``."""
        request = CompactRequest(
            epoch=self._claim.epoch,
            number=self._next(),
            step=step,
            summary=summary,
            model=model,
            usage=usage,
            history_after=history_after,
        )
        return await self._send("compact", request, CompactResult)

    async def intent(self, step: int, index: int, path: str, before: str | None, after: str) -> None:
        """Commit that a call is about to replace ``path``."""
        request = IntentRequest(
            epoch=self._claim.epoch,
            number=self._next(),
            step=step,
            index=index,
            path=path,
            before=before,
            after=after,
        )
        await self._send("intent", request, Acknowledged)

    async def result(
        self,
        step: int,
        index: int,
        *,
        outcome: Outcome,
        content: str,
        observed: tuple[FileSlice, ...] = (),
        cwd: str | None = None,
        duration_ms: int | None = None,
    ) -> ToolResult:
        """Commit the result of a local call, and how long it ran."""
        request = ResultRequest(
            epoch=self._claim.epoch,
            number=self._next(),
            step=step,
            index=index,
            outcome=outcome,
            content=content,
            observed=observed,
            cwd=cwd,
            duration_ms=duration_ms,
        )
        return await self._send("result", request, ToolResult)

    async def tool(self, step: int, index: int) -> ToolResult:
        """Run a coordinator-side call, exactly once however often it is asked for."""
        request = ToolRequest(epoch=self._claim.epoch, number=self._next(), step=step, index=index)
        return await self._send("tool", request, ToolResult, read_seconds=_TOOL_READ_SECONDS)

    async def backoff(self, step: int, delay_ms: int, reason: str) -> None:
        """Park the turn; the claim is over."""
        request = BackoffRequest(
            epoch=self._claim.epoch, number=self._next(), step=step, delay_ms=delay_ms, reason=reason
        )
        await self._send("backoff", request, Acknowledged)

    async def fail(self, code: str, message: str) -> None:
        """End the turn as an error; the claim is over."""
        request = FailRequest(epoch=self._claim.epoch, number=self._next(), code=code, message=message)
        await self._send("fail", request, Acknowledged)

    async def release(self, reason: str) -> None:
        """Queue the turn again; the claim is over."""
        request = ReleaseRequest(epoch=self._claim.epoch, number=self._next(), reason=reason)
        await self._send("release", request, Acknowledged)

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _send(self, verb: str, request: Value, kind: type[V], *, read_seconds: float = _READ_SECONDS) -> V:
        response = await self._coordinator.send(
            "POST",
            f"/worker/turns/{self._claim.turn_id}/{verb}",
            request,
            patience=self._patience,
            claim_token=self._claim.token,
            read_seconds=read_seconds,
        )
        return decode(response, kind)
