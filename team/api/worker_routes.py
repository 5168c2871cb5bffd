"""The worker API: claims, fenced writes, heartbeats.

Authenticated by the worker token and, per turn, by the claim's own token.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response

from team.api.bodies import MAX_WORKER_BODY_BYTES, json_body, reply
from team.model.claims import (
    AnswerRequest,
    BackoffRequest,
    BoundaryRequest,
    ClaimRequest,
    CompactRequest,
    FailRequest,
    HeartbeatRequest,
    IntentRequest,
    ReleaseRequest,
    ResultRequest,
    ToolRequest,
    Write,
)
from team.model.ids import TurnId
from team.service.callers import CallRef, ClaimRef
from team.service.turns import TurnService
from team.tools.execution import ToolExecutor


def worker_router(turns: TurnService, tools: ToolExecutor) -> APIRouter:
    """All routes of workers; each is a thin call of TurnService."""
    router = APIRouter(prefix="/worker", include_in_schema=False)

    @router.get("/hello")
    def hello() -> Response:
        return reply(turns.hello())

    @router.post("/claim")
    def claim(request: Annotated[ClaimRequest, Depends(json_body(ClaimRequest))]) -> Response:
        claimed = turns.claim(request)
        return Response(status_code=204) if claimed is None else reply(claimed)

    @router.post("/heartbeat")
    def heartbeat(request: Annotated[HeartbeatRequest, Depends(json_body(HeartbeatRequest))]) -> Response:
        return reply(turns.heartbeat(request))

    @router.post("/turns/{turn_id}/boundary")
    def boundary(ref: _Ref, request: Annotated[BoundaryRequest, Depends(json_body(BoundaryRequest))]) -> Response:
        return reply(turns.boundary(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/answer")
    def answer(
        ref: _Ref, request: Annotated[AnswerRequest, Depends(json_body(AnswerRequest, MAX_WORKER_BODY_BYTES))]
    ) -> Response:
        return reply(turns.answer(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/compact")
    def compact(
        ref: _Ref, request: Annotated[CompactRequest, Depends(json_body(CompactRequest, MAX_WORKER_BODY_BYTES))]
    ) -> Response:
        return reply(turns.compact(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/intent")
    def intent(ref: _Ref, request: Annotated[IntentRequest, Depends(json_body(IntentRequest))]) -> Response:
        return reply(turns.intent(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/result")
    def result(
        ref: _Ref, request: Annotated[ResultRequest, Depends(json_body(ResultRequest, MAX_WORKER_BODY_BYTES))]
    ) -> Response:
        return reply(turns.result(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/tool")
    def tool(ref: _Ref, request: Annotated[ToolRequest, Depends(json_body(ToolRequest))]) -> Response:
        return reply(tools.run_call(CallRef(_claim(ref, request), request.step, request.index)))

    @router.post("/turns/{turn_id}/backoff")
    def backoff(ref: _Ref, request: Annotated[BackoffRequest, Depends(json_body(BackoffRequest))]) -> Response:
        return reply(turns.backoff(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/fail")
    def fail(ref: _Ref, request: Annotated[FailRequest, Depends(json_body(FailRequest))]) -> Response:
        return reply(turns.fail(_claim(ref, request), request))

    @router.post("/turns/{turn_id}/release")
    def release(ref: _Ref, request: Annotated[ReleaseRequest, Depends(json_body(ReleaseRequest))]) -> Response:
        return reply(turns.release(_claim(ref, request), request))

    return router


def _reference(turn_id: str, team_claim: Annotated[str, Header()] = "") -> tuple[TurnId, str]:
    return TurnId(turn_id), team_claim


_Ref = Annotated[tuple[TurnId, str], Depends(_reference)]


def _claim(ref: tuple[TurnId, str], request: Write) -> ClaimRef:
    return ClaimRef(ref[0], request.epoch, ref[1])
