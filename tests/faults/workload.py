"""People outside who give Teams jobs over HTTP, each under its own key, until each job is answered."""

import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from tests.faults.scenario import ANSWERED, BROKEN, LETTERS, READY
from tests.faults.store import Onlooker
from tests.support.coordinator import OPERATOR_TOKEN

STUCK_SECONDS: Final = 240.0
_OUTSTANDING: Final = 3
_JOBS_PER_TEAM: Final = 16
_PAUSE_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 4.0
_REPEATED: Final = 0.15


@dataclass
class Job:
    """One job, from its first request to its answer; times are monotonic."""

    text: str
    session: str
    asked_at: float
    message: str | None = None
    accepted_at: float | None = None
    answers: int = 0
    answered_at: float | None = None


@dataclass
class Told:
    """All that the coordinators told people outside, and what people saw."""

    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    roots: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    contradictions: list[str] = field(default_factory=list[str])
    requests: int = 0
    retries: int = 0


class Person(threading.Thread):
    """Keeps one Team at a time busy, and makes a new Team when one has done its share."""

    def __init__(self, number: int, url: str, onlooker: Onlooker, told: Told, directory: str) -> None:
        super().__init__(name=f"person-{number}", daemon=True)
        self._number, self._told, self._onlooker, self._directory = number, told, onlooker, directory
        self._draw = random.Random(f"person/{number}")
        self._http = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            timeout=_PATIENCE_SECONDS,
            trust_env=False,
        )
        self.finishing = threading.Event()
        self.leaving = threading.Event()
        self.open: list[Job] = []
        self._team = 0
        self._ready = self._broken = False
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.finishing.is_set() and not self.leaving.is_set():
                self._serve_team()
        except BaseException as error:  # noqa: BLE001  # told to whoever joins
            self.fault = error
        finally:
            self._http.close()

    def _serve_team(self) -> None:
        self._team += 1
        name = f"{self._number}-{self._team}"
        created = self._post(
            "/v1/sessions", f"team-{name}", {"cwd": self._directory, "profile": "team", "prompt": "begin"}
        )
        if created is None:
            return
        root = str(created["id"])
        self._told.roots.append(root)
        self._ready, self._broken = False, False
        given, seen = 0, 0
        while not self.leaving.is_set():
            wanted = given < _JOBS_PER_TEAM and not self.finishing.is_set() and not self._broken
            if wanted and self._ready and len(self.open) < _OUTSTANDING:
                given += 1
                self._give(root, f"{self._draw.choice(LETTERS)}-{name}-{given}")
                continue
            seen = self._collect(root, seen)
            if not wanted and not self.open:
                return
            self.leaving.wait(_PAUSE_SECONDS)

    def _give(self, root: str, text: str) -> None:
        job = Job(text, root, time.monotonic())
        self.open.append(job)
        self._told.jobs[text] = job
        delivery = "steer" if self._draw.random() < 0.5 else "turn"
        body = {"text": text, "delivery": delivery}
        accepted = self._post(f"/v1/sessions/{root}/messages", f"job-{text}", body)
        if accepted is None:
            return
        job.message, job.accepted_at = str(accepted["messageId"]), time.monotonic()
        if self._draw.random() < _REPEATED:
            again = self._post(f"/v1/sessions/{root}/messages", f"job-{text}", body)
            if again is not None and again["messageId"] != job.message:
                self._told.contradictions.append(f"{text} was accepted as {job.message} and as {again['messageId']}")

    def _collect(self, root: str, seen: int) -> int:
        found = self._onlooker.texts_after(root, seen)
        for seq, data in found or ():
            seen = seq
            for block in json.loads(data)["content"]:
                if block["type"] == "text":
                    self._read(root, block["text"])
        return seen

    def _read(self, root: str, said: str) -> None:
        if said == READY:
            self._ready = True
        elif said == BROKEN:
            self._broken = True
            self._told.broken.append(root)
        elif said.startswith(ANSWERED):
            job = self._told.jobs[said.removeprefix(ANSWERED)]
            job.answers += 1
            job.answered_at = job.answered_at or time.monotonic()
            self.open = [other for other in self.open if other is not job]

    def _post(self, path: str, key: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Send under one key until there is an answer; None when the run ends first or the request was refused."""
        while not self.leaving.is_set():
            self._told.requests += 1
            try:
                response = self._http.post(path, json=body, headers={"Idempotency-Key": key})
            except httpx2.TransportError:
                response = None
            if response is not None and response.is_success:
                return response.json()
            if response is not None and response.status_code < 500:
                self._told.refused.append(f"{path} {key}: {response.status_code} {response.text[:200]}")
                return None
            self._told.retries += 1
            self.leaving.wait(_PAUSE_SECONDS)
        return None
