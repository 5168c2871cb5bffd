"""The public API under ``/v1``: Sessions, messages, Teams, events. Authenticated by the operator token."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from team.api.bodies import ERRORS, body_docs, json_body, reply
from team.api.idempotency import ACTOR, IdempotencyKey, once_of
from team.model.events import Event
from team.model.values import Value
from team.model.views import EventFaultView, InterruptView, SendView, SessionView, TeamView
from team.service.sessions import ClosedView, CreatedView, DoctorView, SessionService, WorkerView


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
    """A page of Sessions; ``next_cursor`` is absent on the last one."""

    sessions: tuple[SessionView, ...]
    next_cursor: str | None = None


class EventsView(Value):
    """A page of a log. ``faults`` tells of each record that cannot be read; it does not hide the others."""

    events: tuple[Event, ...]
    faults: tuple[EventFaultView, ...] = ()
    last_seq: int


class WorkersView(Value):
    workers: tuple[WorkerView, ...]


def public_router(sessions: SessionService) -> APIRouter:
    """Sessions, Teams and the fleet; each route is a thin call of a service."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.post(
        "/sessions", responses={201: {"model": CreatedView}}, openapi_extra=body_docs(CreateSession), status_code=201
    )
    def create_session(
        request: Request, key: IdempotencyKey, wanted: Annotated[CreateSession, Depends(json_body(CreateSession))]
    ) -> Response:
        """Create a root Session: the Lead of the Team that bears its id."""
        created = sessions.create(
            cwd=wanted.cwd,
            profile=wanted.profile,
            model=wanted.model,
            prompt=wanted.prompt,
            actor=ACTOR,
            once=once_of(key, request, wanted),
        )
        return reply(created, 201)

    @router.get("/sessions", responses={200: {"model": SessionsView}})
    def list_sessions(
        cursor: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        """A page of Sessions in order of creation."""
        page, next_cursor = sessions.page(cursor, limit)
        return reply(SessionsView(sessions=tuple(page), next_cursor=next_cursor))

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
        events, faults, last_seq = sessions.events(session_id, after, limit)
        return reply(EventsView(events=tuple(events), faults=tuple(faults), last_seq=last_seq))

    @router.post(
        "/sessions/{session_id}/messages",
        responses={200: {"model": SendView}},
        openapi_extra=body_docs(PostMessage),
    )
    def post_message(
        request: Request,
        session_id: str,
        key: IdempotencyKey,
        wanted: Annotated[PostMessage, Depends(json_body(PostMessage))],
    ) -> Response:
        """Prompt a Session; accepted input always gets a turn."""
        once = once_of(key, request, wanted)
        return reply(sessions.prompt(session_id, text=wanted.text, delivery=wanted.delivery, actor=ACTOR, once=once))

    @router.post("/sessions/{session_id}/interrupt", responses={200: {"model": InterruptView}})
    def interrupt_session(request: Request, session_id: str, key: IdempotencyKey) -> Response:
        """End the open turn as aborted; inbox, ownership and tasks stay."""
        return reply(sessions.interrupt(session_id, actor=ACTOR, once=once_of(key, request, b"")))

    @router.post(
        "/sessions/{session_id}/fork",
        responses={201: {"model": CreatedView}},
        openapi_extra=body_docs(ForkSession),
        status_code=201,
    )
    def fork_session(
        request: Request,
        session_id: str,
        key: IdempotencyKey,
        wanted: Annotated[ForkSession, Depends(json_body(ForkSession))],
    ) -> Response:
        """A new root that inherits the conversation of the completed turns."""
        return reply(sessions.fork(session_id, model=wanted.model, once=once_of(key, request, wanted)), 201)

    @router.post(
        "/sessions/{session_id}/model",
        responses={200: {"model": SessionView}},
        openapi_extra=body_docs(SelectModel),
    )
    def select_model(
        request: Request,
        session_id: str,
        key: IdempotencyKey,
        wanted: Annotated[SelectModel, Depends(json_body(SelectModel))],
    ) -> Response:
        """Choose the model of the next requests."""
        return reply(sessions.select_model(session_id, wanted.model, once=once_of(key, request, wanted)))

    @router.get("/teams/{team_id}", responses={200: {"model": TeamView}})
    def show_team(team_id: str) -> Response:
        """The wire view: roster, live status, non-deleted tasks."""
        return reply(sessions.team(team_id))

    @router.post("/teams/{team_id}/close", responses={200: {"model": ClosedView}})
    def close_team(request: Request, team_id: str, key: IdempotencyKey) -> Response:
        """Close admission and stop every live turn of the Team."""
        return reply(sessions.close(team_id, once=once_of(key, request, b"")))

    @router.get("/workers", responses={200: {"model": WorkersView}})
    def list_workers() -> Response:
        """Workers by their last heartbeat, and what they execute."""
        return reply(WorkersView(workers=tuple(sessions.workers())))

    @router.get("/doctor", responses={200: {"model": DoctorView}})
    def check_logs() -> Response:
        """Replay every log and compare it with its projections."""
        return reply(sessions.doctor())

    return router
