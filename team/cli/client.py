"""The coordinator's public API, as the command line uses it."""

import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from team.cli.views import DoctorView, EventPage, WorkerView
from team.model.claims import ErrorResponse
from team.model.errors import CoordinatorUnreachable, LogDamaged, TeamError, error_from
from team.model.events import Event, first_fault
from team.model.usage import UsageView
from team.model.values import Value
from team.model.views import EventFaultView, SessionView, TeamView

_PATIENCE_SECONDS: Final = 20.0
_PAGE: Final = 500
_RETRIED: Final = frozenset({502, 503, 504})

ValueT = TypeVar("ValueT", bound=Value)


class RawAnswer(Value):
    """Status and body of one tool call, unjudged."""

    status: int
    body: dict[str, Any]


class Operator:
    """A client with the operator's token. Calls outlast a restart of the coordinator: each is retried for a while.

    Every POST carries an ``Idempotency-Key``, so a retry repeats nothing. Errors of the coordinator are raised as the
    TeamError that their code names.

    Args:
        url: Where the coordinator is.
        token: The operator's.
        patience_seconds: How long a call is repeated while nobody answers.
        check: Raises when the coordinator has failed for good; called before each attempt.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.url = url
        self._check = check
        self._patience = patience_seconds
        self._http = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(30.0, connect=3.0),
            # The system's store for https, which SSL_CERT_FILE may change; for http there is nothing to load.
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            # A proxy of the environment has no business between two processes of one deployment.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def create_session(self, *, cwd: str, profile: str, model: str | None, prompt: str | None) -> str:
        """Create a root Session; with a prompt its first turn opens at once. Returns its id."""
        body = {"cwd": cwd, "profile": profile, "model": model, "prompt": prompt}
        answer = self._post("/v1/sessions", {name: value for name, value in body.items() if value is not None})
        return str(answer["id"])

    def sessions(self) -> list[SessionView]:
        """Every Session of the store, in order of creation."""
        found, cursor = list[SessionView](), dict[str, str]()
        while True:
            page = self._get("/v1/sessions", limit=_PAGE, **cursor)
            found += [self._read(SessionView, row) for row in cast("list[object]", page["sessions"])]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": str(page["nextCursor"])}

    def session(self, session_id: str) -> SessionView:
        return self._read(SessionView, self._get(f"/v1/sessions/{_part(session_id)}"))

    def team(self, team_id: str) -> TeamView:
        return self._read(TeamView, self._get(f"/v1/teams/{_part(team_id)}"))

    def usage(self, team_id: str) -> UsageView:
        """What each Session of a Team has used."""
        return self._read(UsageView, self._get(f"/v1/teams/{_part(team_id)}/usage"))

    def events(self, session_id: str, after: int = 0) -> Iterator[Event]:
        """Events of one Session with a number above ``after``, in order. Raises LogDamaged at damage."""
        for record in self.records(session_id, after):
            if isinstance(record, EventFaultView):
                raise LogDamaged(record.fault)
            yield record

    def records(self, session_id: str, after: int = 0) -> Iterator[Event | EventFaultView]:
        """The records of one Session with a number above ``after``, in order, with those that cannot be read."""
        while True:
            page = self._read(
                EventPage, self._get(f"/v1/sessions/{_part(session_id)}/events", after=after, limit=_PAGE)
            )
            found = sorted([*page.events, *page.faults], key=lambda record: record.seq)
            yield from found
            if not found or found[-1].seq >= page.last_seq:
                return
            after = found[-1].seq

    def send(self, session_id: str, text: str, delivery: str | None = None) -> dict[str, Any]:
        """Put a message into a Session's inbox; returns its receipt."""
        body = {"text": text} if delivery is None else {"text": text, "delivery": delivery}
        return self._post(f"/v1/sessions/{_part(session_id)}/messages", body)

    def interrupt(self, session_id: str) -> dict[str, Any]:
        """End the Session's open turn as aborted; pending input stays, held."""
        return self._post(f"/v1/sessions/{_part(session_id)}/interrupt", {})

    def close_team(self, team_id: str) -> dict[str, Any]:
        """Close admission to a Team and stop its live turns; who was interrupted."""
        return self._post(f"/v1/teams/{_part(team_id)}/close", {})

    def tool(self, team_id: str, target: str, tool: str, parameters: Mapping[str, Any], *, wait: float) -> RawAnswer:
        """Run one tool as a member and return what came back, errors of the coordinator included.

        Args:
            team_id: The Team.
            target: The member that acts.
            tool: The tool's name.
            parameters: Its parameters, as a model would give them.
            wait: Seconds that the answer may take; ``wait_agent`` blocks.
        """
        path = f"/v1/teams/{_part(team_id)}/members/{_part(target)}/tools/{_part(tool)}"
        answer = self._send("POST", path, body=dict(parameters), wait=wait)
        return RawAnswer(status=answer.status_code, body=self._object(answer))

    def invite(self, team_id: str, name: str, description: str) -> dict[str, Any]:
        """Invite an outside agent; the answer holds its token. A retry replaces the token of the try before."""
        return self._post(f"/v1/teams/{_part(team_id)}/invites", {"name": name, "description": description})

    def revoke_invite(self, team_id: str, name: str) -> dict[str, Any]:
        """End the invitation of an external member."""
        return self._judge(self._send("DELETE", f"/v1/teams/{_part(team_id)}/invites/{_part(name)}"))

    def workers(self) -> list[WorkerView]:
        rows = cast("list[object]", self._get("/v1/workers")["workers"])
        return [self._read(WorkerView, row) for row in rows]

    def doctor(self) -> DoctorView:
        """Replay every Session and compare it with the projections."""
        return self._read(DoctorView, self._judge(self._send("GET", "/v1/doctor", wait=600.0)))

    def export(self, session_id: str) -> Iterator[str]:
        """Lines of the NDJSON export of a Session tree."""
        with self._http.stream("GET", f"/v1/sessions/{_part(session_id)}/log", timeout=600.0) as answer:
            if not answer.is_success:
                answer.read()
                self._judge(answer)
            yield from answer.iter_lines()

    def fork(self, session_id: str, model: str | None) -> str:
        """A new root with the conversation of a Session's completed turns; its id."""
        answer = self._post(f"/v1/sessions/{_part(session_id)}/fork", {} if model is None else {"model": model})
        return str(answer["id"])

    def select_model(self, session_id: str, model: str) -> SessionView:
        """Choose the model of a Session's next requests."""
        return self._read(SessionView, self._post(f"/v1/sessions/{_part(session_id)}/model", {"model": model}))

    def import_log(self, content: bytes) -> dict[str, Any]:
        """Import exported Session trees, all or none."""
        return self._judge(self._send("POST", "/v1/import", content=content, wait=600.0))

    def _get(self, path: str, **query: int | str) -> dict[str, Any]:
        return self._judge(self._send("GET", path, query=query))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._judge(self._send("POST", path, body=body))

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        content: bytes | None = None,
        query: Mapping[str, int | str] | None = None,
        wait: float = 30.0,
    ) -> httpx2.Response:
        headers = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}
        end = time.monotonic() + self._patience
        while True:
            self._check()
            try:
                answer = self._http.request(
                    method,
                    path,
                    json=body,
                    content=content,
                    params=dict(query) if query else None,
                    headers=headers,
                    timeout=httpx2.Timeout(wait, connect=3.0),
                )
            except httpx2.TransportError as error:
                if time.monotonic() > end:
                    raise CoordinatorUnreachable(
                        f"No coordinator answers at {self.url} ({_reason(error)}); start one with `team up`, "
                        "or correct TEAM_COORDINATOR_URL."
                    ) from error
            else:
                if answer.status_code not in _RETRIED or time.monotonic() > end:
                    return answer
            time.sleep(0.2)

    def _judge(self, answer: httpx2.Response) -> dict[str, Any]:
        if answer.is_success:
            return self._object(answer)
        try:
            fault = ErrorResponse.model_validate_json(answer.content).error
        except ValidationError:
            raise TeamError(f"{self.url} answered with status {answer.status_code}; is it a coordinator?") from None
        raise error_from(fault.code, fault.message)

    def _object(self, answer: httpx2.Response) -> dict[str, Any]:
        try:
            body: object = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise TeamError(f"{self.url} answered with something else than a JSON object; is it a coordinator?")
        return cast("dict[str, Any]", body)

    def _read(self, view: type[ValueT], body: object) -> ValueT:
        try:
            # Fields of a newer coordinator are ignored.
            return view.model_validate(body, strict=False, extra="ignore")
        except ValidationError as error:
            raise TeamError(
                f"{self.url} answered in a form that this version does not know ({first_fault(error)}); "
                "use the same version of both."
            ) from error


def _part(text: str) -> str:
    return quote(text, safe="")


def _reason(error: httpx2.TransportError) -> str:
    return str(error) or type(error).__name__
