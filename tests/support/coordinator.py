"""Real coordinator processes (``python -m team.api``) on a database and a broker of the test's choice."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.support.ports import free_port
from tests.support.waiting import wait_until

REPOSITORY: Final = Path(__file__).resolve().parents[2]
OPERATOR_TOKEN: Final = "operator-token-of-a-test"
WORKER_TOKEN: Final = "worker-token-of-a-test"


class CoordinatorProcess:
    """One coordinator and a client of its public API."""

    def __init__(self, directory: Path, name: str, variables: Mapping[str, str]) -> None:
        self.workspace = directory / "checkout"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.log_path = directory / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TEAM_")}
        if "TEAM_TEST_RUN" in os.environ:
            inherited["TEAM_TEST_RUN"] = os.environ["TEAM_TEST_RUN"]
        self._directory = directory
        self._environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), inherited.get("PYTHONPATH")))),
            "TEAM_DATA_DIR": str(directory / "data"),
            "TEAM_WORKSPACE_ROOT": str(self.workspace),
            "TEAM_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "TEAM_WORKER_TOKEN": WORKER_TOKEN,
            "TEAM_MODEL": "script:unused",
            "TEAM_PORT": str(self.port),
            **variables,
        }
        self.process = self._start()
        self.client = self.new_client()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "team.api"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def replace(self) -> None:
        """Kill it, and start another one at the same address; returns at once."""
        self.process.kill()
        self.process.wait(20)
        self.process = self._start()

    def new_client(self) -> httpx2.Client:
        """One more client of the public API, with connections of its own."""
        return httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            timeout=60,
            trust_env=False,
        )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ready(self) -> "CoordinatorProcess":
        """Wait until it serves."""
        wait_until(lambda: "coordinator ready" in self.log or self.process.poll() is not None, "the coordinator", 30)
        assert self.process.poll() is None, self.log
        wait_until(self._healthy, "the coordinator's health", 10)
        return self

    def _healthy(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx2.TransportError:
            return False

    def lead(self, prompt: str | None = None, profile: str = "team") -> str:
        """A new root Session."""
        body: dict[str, Any] = {"cwd": str(self.workspace), "profile": profile}
        response = self.client.post("/v1/sessions", json=body if prompt is None else {**body, "prompt": prompt})
        assert response.status_code == httpx2.codes.CREATED, response.text
        return response.json()["id"]

    def tool(self, team: str, member: str, tool: str, **parameters: Any) -> httpx2.Response:
        return self.client.post(f"/v1/teams/{team}/members/{member}/tools/{tool}", json=parameters)

    def member(self, team: str, target: str) -> dict[str, Any]:
        """One member of the wire view."""
        members = self.client.get(f"/v1/teams/{team}").json()["members"]
        return next(member for member in members if member["target"] == target)

    def worker(self, path: str, body: dict[str, Any] | None = None, claim: str = "") -> httpx2.Response:
        """One call of the worker API."""
        headers = {"Authorization": f"Bearer {WORKER_TOKEN}", "Team-Claim": claim}
        if body is None:
            return self.client.get(f"/worker/{path}", headers=headers)
        return self.client.post(f"/worker/{path}", json=body, headers=headers)

    def stop(self) -> int:
        """SIGTERM, and wait for its orderly end."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


class ManualWorker:
    """A worker over HTTP that a test moves by hand: one claim, of a chosen Session or of any, its writes numbered."""

    def __init__(self, coordinator: CoordinatorProcess, session: str | None = None) -> None:
        self._coordinator = coordinator
        request = {"requestId": f"manual-{os.urandom(8).hex()}", "worker": "manual", "queues": ["turns"]}
        if session is not None:
            request["turnId"] = coordinator.client.get(f"/v1/sessions/{session}").json()["turn"]["id"]
        response = coordinator.worker("claim", request)
        assert response.status_code == httpx2.codes.OK, f"nothing to claim: {response.status_code} {response.text}"
        self.claim: dict[str, Any] = response.json()
        self.number = 0
        self.seq = 0
        self.step = self.claim.get("step", 0)

    def write(self, kind: str, **body: Any) -> httpx2.Response:
        self.number += 1
        return self.repeat(kind, **body)

    def repeat(self, kind: str, **body: Any) -> httpx2.Response:
        """The last write again, with the same number."""
        full = {"epoch": self.claim["epoch"], "number": self.number, **body}
        return self._coordinator.worker(f"turns/{self.claim['turnId']}/{kind}", full, self.claim["token"])

    def boundary(self) -> str:
        """Ask for the next step; the action."""
        response = self.write("boundary", historyAfter=self.seq)
        assert response.status_code == httpx2.codes.OK, response.text
        result = response.json()
        self.step = result["step"]
        self.seq = max([entry["seq"] for entry in result["history"]], default=self.seq)
        return result["action"]

    def say(self, text: str) -> None:
        """A final answer."""
        self._answer([{"type": "text", "text": text}], "stop")

    def call(self, tool: str, arguments: str = "{}") -> dict[str, Any]:
        """An answer with one coordinator-side call, and its outcome."""
        block = {"type": "tool-call", "callId": f"call-{self.number}", "name": tool, "arguments": arguments}
        self._answer([block], "tool-calls")
        response = self.write("tool", step=self.step, index=0)
        assert response.status_code == httpx2.codes.OK, response.text
        return response.json()

    def _answer(self, content: list[dict[str, Any]], finish: str) -> None:
        response = self.write("answer", step=self.step, model="manual", content=content, finishReason=finish)
        assert response.status_code == httpx2.codes.OK, response.text
