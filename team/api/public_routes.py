"""The public API under ``/v1``: Sessions, messages, Teams, tools, events. Authenticated by the operator token."""

import asyncio
import hashlib
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from team.api.bodies import MAX_BODY_BYTES, body_docs, json_body, read_body, reply
from team.dispatch.edges import EdgeSignals
from team.model.claims import ErrorResponse
from team.model.errors import RequestInvalid
from team.model.events import Event
from team.model.values import JsonObject, Value
from team.model.views import InterruptView, SendView, SessionView, TeamView, WaitView
from team.service.callers import Caller, Once
from team.service.sessions import ClosedView, CreatedView, DoctorView, SessionService, WorkerView
from team.service.teams import TeamService
from team.tools.execution import ToolExecutor, parse
from team.tools.parameters import WaitAgent

ACTOR = "operator"
DEFAULT_WAIT_MS = 30_000
RECHECK_SECONDS = 5.0
MAX_KEY_CHARACTERS = 200


class CreateSession(Value):
    """A new root Session. ``cwd`` lies inside the workspace; ``prompt`` opens its first turn."""

    cwd: str
    profile: str = "base"
    model: str | None = None
    prompt: str | None = None


class PostMessage(Value):
    """A human prompt: a turn of its own, or ``steer`` to reach a running turn at its next step."""

    text: str
    delivery: Literal["turn", "steer"] = "turn"


class ForkSession(Value):
    """A fork of a Session; ``model`` replaces the inherited one."""

    model: str | None = None


class SelectModel(Value):
    model: str


class SessionsView(Value):
    sessions: tuple[SessionView, ...]


class EventsView(Value):
    events: tuple[Event, ...]
    last_seq: int


class WorkersView(Value):
    workers: tuple[WorkerView, ...]


class ToolView(Value):
    result: JsonObject | list[JsonObject]


_ERRORS = {"4XX": {"model": ErrorResponse, "description": "The error says what to do next; nothing was changed."}}


def _idempotency(
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_CHARACTERS)] = None,
) -> str | None:
    return idempotency_key or None


_Key = Annotated[str | None, Depends(_idempotency)]


def _once(key: str | None, request: Request, body: bytes | BaseModel) -> Once | None:
    if key is None:
        return None
    text = body if isinstance(body, bytes) else body.model_dump_json().encode()
    digest = hashlib.sha256(request.url.path.encode() + b"\n" + text).hexdigest()
    return Once(ACTOR, key, digest)


def public_router(sessions: SessionService, teams: TeamService, tools: ToolExecutor, signals: EdgeSignals) -> APIRouter:
    """All public routes; each is a thin call of a service."""
    router = APIRouter(prefix="/v1", responses=_ERRORS)  # pyright: ignore[reportArgumentType] -- FastAPI accepts ranges

    @router.post(
        "/sessions", responses={201: {"model": CreatedView}}, openapi_extra=body_docs(CreateSession), status_code=201
    )
    def create_session(
        request: Request, key: _Key, wanted: Annotated[CreateSession, Depends(json_body(CreateSession))]
    ) -> Response:
        """Create a root Session: the Lead of the Team that bears its id."""
        created = sessions.create(
            cwd=wanted.cwd,
            profile=wanted.profile,
            model=wanted.model,
            prompt=wanted.prompt,
            actor=ACTOR,
            once=_once(key, request, wanted),
        )
        return reply(created, 201)

    @router.get("/sessions", responses={200: {"model": SessionsView}})
    def list_sessions() -> Response:
        """All Sessions in order of creation."""
        return reply(SessionsView(sessions=tuple(sessions.all())))

    @router.get("/sessions/{session_id}", responses={200: {"model": SessionView}})
    def show_session(session_id: str) -> Response:
        """One Session: status, open turn, pending input, the workers that ran it."""
        return reply(sessions.view(session_id))

    @router.get("/sessions/{session_id}/events", responses={200: {"model": EventsView}})
    def list_events(
        session_id: str,
        after: Annotated[int, Query(ge=0, le=2**53 - 1)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        """A page of the log after a seq, in order."""
        events, last_seq = sessions.events(session_id, after, limit)
        return reply(EventsView(events=tuple(events), last_seq=last_seq))

    @router.get(
        "/sessions/{session_id}/log",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-ndjson": {}}}},
    )
    def export_log(session_id: str) -> StreamingResponse:
        """The log of a Session and its descendants as lines of JSON: each header, then its events."""
        lines = (f"{line}\n" for line in sessions.export(session_id))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @router.post(
        "/sessions/{session_id}/messages",
        responses={200: {"model": SendView}},
        openapi_extra=body_docs(PostMessage),
    )
    def post_message(
        request: Request, session_id: str, key: _Key, wanted: Annotated[PostMessage, Depends(json_body(PostMessage))]
    ) -> Response:
        """Prompt a Session; accepted input always gets a turn."""
        once = _once(key, request, wanted)
        return reply(sessions.prompt(session_id, text=wanted.text, delivery=wanted.delivery, actor=ACTOR, once=once))

    @router.post("/sessions/{session_id}/interrupt", responses={200: {"model": InterruptView}})
    def interrupt_session(session_id: str) -> Response:
        """End the open turn as aborted; inbox, ownership and tasks stay."""
        return reply(sessions.interrupt(session_id, actor=ACTOR))

    @router.post(
        "/sessions/{session_id}/fork",
        responses={201: {"model": CreatedView}},
        openapi_extra=body_docs(ForkSession),
        status_code=201,
    )
    def fork_session(
        request: Request, session_id: str, key: _Key, wanted: Annotated[ForkSession, Depends(json_body(ForkSession))]
    ) -> Response:
        """A new root that inherits the conversation of the completed turns."""
        return reply(sessions.fork(session_id, model=wanted.model, once=_once(key, request, wanted)), 201)

    @router.post(
        "/sessions/{session_id}/model",
        responses={200: {"model": SessionView}},
        openapi_extra=body_docs(SelectModel),
    )
    def select_model(session_id: str, wanted: Annotated[SelectModel, Depends(json_body(SelectModel))]) -> Response:
        """Choose the model of the next requests."""
        return reply(sessions.select_model(session_id, wanted.model))

    @router.get("/teams/{team_id}", responses={200: {"model": TeamView}})
    def show_team(team_id: str) -> Response:
        """The wire view: roster, live status, non-deleted tasks."""
        return reply(sessions.team(team_id))

    @router.post("/teams/{team_id}/close", responses={200: {"model": ClosedView}})
    def close_team(team_id: str) -> Response:
        """Close admission and stop every live turn of the Team."""
        return reply(sessions.close(team_id))

    @router.post("/teams/{team_id}/members/{target}/tools/{tool}", responses={200: {"model": ToolView}})
    async def run_tool(request: Request, team_id: str, target: str, tool: str, key: _Key) -> Response:
        """Run one Team tool as a member. `wait_agent` answers at the next edge or at its timeout."""
        body = await read_body(request, MAX_BODY_BYTES) or b"{}"
        session_id = await asyncio.to_thread(sessions.member_session, team_id, target)
        caller = Caller(session_id, actor=ACTOR, once=_once(key, request, body))
        if tool == "wait_agent":
            wanted = parse(tool, body)
            assert isinstance(wanted, WaitAgent)
            return _result(await _wait(teams, signals, caller, wanted.timeout_ms))
        outcome = await asyncio.to_thread(tools.execute, caller, tool, body)
        if not isinstance(outcome, BaseModel):
            raise RequestInvalid(f"{tool} has no result for an outside caller.")
        return _result(outcome)

    @router.get("/workers", responses={200: {"model": WorkersView}})
    def list_workers() -> Response:
        """Workers by their last heartbeat, and what they execute."""
        return reply(WorkersView(workers=tuple(sessions.workers())))

    @router.get("/doctor", responses={200: {"model": DoctorView}})
    def check_logs() -> Response:
        """Replay every log and compare it with its projections."""
        return reply(sessions.doctor())

    return router


def _result(view: BaseModel) -> Response:
    content = f'{{"result":{view.model_dump_json(by_alias=True, exclude_none=True)}}}'
    return Response(content, media_type="application/json")


async def _wait(teams: TeamService, signals: EdgeSignals, caller: Caller, timeout_ms: int | None) -> WaitView:
    """Block until the Team's edge counter moves; the signal only makes it fast, the counter decides."""
    team_id, counter, view = await asyncio.to_thread(teams.wait_state, caller, timeout_ms)
    if view is not None:
        return view
    deadline = time.monotonic() + (timeout_ms or DEFAULT_WAIT_MS) / 1000
    while (remaining := deadline - time.monotonic()) > 0:
        await signals.wait(team_id, min(remaining, RECHECK_SECONDS))
        if await asyncio.to_thread(teams.edge_counter, team_id) != counter:
            return WaitView(timed_out=False)
    return WaitView(timed_out=True)
