"""One coordinator: services, loops and HTTP application, wired together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from config.broker import redis_url
from config.exposure import require_certificate, require_private, require_token
from config.settings import Settings
from team.api.bodies import reply_error
from team.api.browser import BrowserSessions
from team.api.member_routes import invite_router, member_router
from team.api.metrics_routes import RequestTimes, metrics_router
from team.api.panel_routes import panel_router
from team.api.public_routes import public_router
from team.api.security import HostCheck, bearer, operator_or_viewer
from team.api.streams import stream_router
from team.api.team_routes import team_router
from team.api.tool_routes import tool_router
from team.api.transfer_routes import transfer_router
from team.api.usage_routes import usage_router
from team.api.worker_routes import worker_router
from team.dispatch.edges import EdgeSignals, EdgeSubscriber
from team.dispatch.lines import tell
from team.dispatch.loops import Loops
from team.dispatch.metrics import Metrics
from team.dispatch.outbox import Outbox
from team.dispatch.viewers import Viewers
from team.dispatch.workflows import WorkflowRunner
from team.log.database import Database
from team.log.schema import migrate
from team.log.transaction import Effects
from team.model.errors import RequestInvalid, TeamError
from team.service.externals import ExternalService
from team.service.housekeeping import Housekeeping
from team.service.panel import PanelService
from team.service.recovery import RecoveryService
from team.service.scripts import Scripts
from team.service.sessions import SessionService
from team.service.store import Store
from team.service.subagents import SubagentService
from team.service.teams import TeamService
from team.service.transfers import TransferService
from team.service.turns import TurnService
from team.service.usage import UsageService
from team.service.workflows import WorkflowService
from team.service.workspace import ensure_workspace
from team.tools.catalog import request_header
from team.tools.execution import ToolExecutor

REQUEST_THREADS = 32


class Coordinator:
    """Everything of one coordinator process. ``open`` prepares the store; ``application`` serves it."""

    def __init__(self, settings: Settings) -> None:
        """Check the configuration. Raises ConfigurationInvalid."""
        self.settings = settings
        self._operator = require_token(settings.operator_token, "TEAM_OPERATOR_TOKEN")
        self._worker = require_token(settings.worker_token, "TEAM_WORKER_TOKEN")
        self._viewer = settings.viewer_token
        require_private(settings.published_on or settings.host, (self._operator, self._worker, self._viewer))
        require_certificate(settings.tls_cert, settings.tls_key)
        redis_url(settings.broker_url)
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        self.database = Database(settings.sql_url, pool_size=REQUEST_THREADS)
        self.outbox = Outbox(settings)
        self.store = Store(
            self.database, settings, request_header, self._after_commit, ensure_workspace(settings.workspace_root)
        )
        self.sessions = SessionService(self.store)
        self.transfers = TransferService(self.store)
        self.teams = TeamService(self.store)
        self.turns = TurnService(self.store)
        self.recovery = RecoveryService(self.store)
        self.metrics = Metrics(self.recovery.census, self.sessions.served_queues)
        scripts = Scripts()
        self.workflows = WorkflowService(self.store, scripts)
        self.runner = WorkflowRunner(self.workflows, scripts)
        self.tools = ToolExecutor(self.teams, SubagentService(self.store), self.turns, self.workflows)
        self.externals = ExternalService(self.store)
        self.panel = PanelService(self.store)
        self.viewers = Viewers(settings, self.panel)
        self.signals = EdgeSignals()
        self.subscriber = EdgeSubscriber(settings, self.recovery, self.signals)
        self.loops = Loops(settings, self.outbox, self.turns, self.recovery, Housekeeping(self.store))

    def open(self) -> None:
        """Bring the schema up to date. Raises StoreUnavailable, ConfigurationInvalid."""
        migrate(self.database)

    def _after_commit(self, effects: Effects) -> None:
        self.outbox(effects)
        self.runner(effects)
        self.metrics(effects)
        tell(effects)

    def start(self) -> None:
        self.outbox.start()
        self.runner.start()
        self.subscriber.start()
        self.loops.start()

    def stop(self) -> None:
        self.loops.stop()
        self.runner.stop()
        self.subscriber.stop()
        self.outbox.stop()
        self.database.close()

    def application(self) -> FastAPI:
        """The HTTP application; its lifespan runs the loops."""

        @asynccontextmanager
        async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
            anyio.to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
            self.start()
            self.viewers.start()
            yield
            self.viewers.close()
            self.stop()

        app = FastAPI(title="celery-agent-teams", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
        app.add_middleware(HostCheck, host=self.settings.host, names=self.settings.host_names)
        app.add_middleware(RequestTimes, metrics=self.metrics)
        app.add_exception_handler(TeamError, _team_error)
        app.add_exception_handler(RequestValidationError, _invalid)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(ClientDisconnect, _gone)
        browsers = BrowserSessions(self._operator, self._viewer)
        access = operator_or_viewer(self._operator, self._viewer, browsers)
        for router in (
            public_router(self.sessions),
            team_router(self.panel),
            usage_router(UsageService(self.store)),
            stream_router(self.viewers, self.panel),
            transfer_router(self.transfers),
            tool_router(self.sessions, self.teams, self.tools, self.signals),
            metrics_router(self.metrics),
            invite_router(self.externals),
        ):
            app.include_router(router, dependencies=[Depends(access)])
        app.include_router(
            worker_router(self.turns, self.tools), dependencies=[Depends(bearer(self._worker, "worker"))]
        )

        app.include_router(member_router(self.externals, self.teams, self.tools, self.signals))
        app.include_router(panel_router(browsers))

        @app.get("/healthz", include_in_schema=False)
        def health() -> Response:
            with self.database.reading() as connection:
                self.database.now(connection)
                connection.exec_driver_sql("SELECT 1").close()
            return Response('{"status":"ok"}', media_type="application/json")

        return app


async def _team_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TeamError)
    return reply_error(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"])
    return reply_error(RequestInvalid(f"{place}: {detail['msg']}."))


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrapped = RequestInvalid(f"{error.detail}; see /openapi.json for what there is.")
    response = reply_error(wrapped)
    response.status_code = error.status_code
    return response


async def _gone(_request: Request, _error: Exception) -> Response:
    """The client went away while it sent its request: nothing was done, and nobody reads this."""
    return Response(status_code=400)
