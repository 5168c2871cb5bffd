"""What must hold after a run, read from the store, the checkout and the logs of the processes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from team.log import runs, sessions
from team.log.events import stream_events
from team.model.content import text_of
from team.model.events import (
    AssistantMessage,
    EventData,
    InboxInserted,
    TurnEnded,
    UserMessage,
)
from tests.faults.cluster import CANARY, Cluster
from tests.faults.scenario import FAILED, MEMBERS, journal
from tests.faults.store import Onlooker
from tests.faults.workload import Job, Told
from tests.support.coordinator import OPERATOR_TOKEN, WORKER_TOKEN
from tests.support.invariants import assert_sound_store
from workers.__main__ import MISCONFIGURED

Logs = Mapping[str, Sequence[EventData]]


@dataclass
class Verdict:
    """Counts and, for each violation, a sentence. ``stuck``: accepted and not answered though all had time enough."""

    messages: int = 0
    turns: int = 0
    calls: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    stuck: list[str] = field(default_factory=list[str])
    other: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.stuck or self.other)

    @property
    def sentences(self) -> list[str]:
        """Every violation."""
        named = {"lost": self.lost, "doubled": self.doubled, "stuck": self.stuck, "violation": self.other}
        return [f"{name}: {text}" for name, texts in named.items() for text in texts]


def judge(cluster: Cluster, onlooker: Onlooker, told: Told) -> Verdict:
    """Look at everything; the cluster has stopped, only its database is there."""
    verdict = Verdict()
    try:
        onlooker.patiently(assert_sound_store)
    except AssertionError as error:
        verdict.other.append(f"invariants 1 to 6 of the log: {error}")
    logs = onlooker.patiently(_logs)
    _messages(verdict, logs, told)
    _turns(verdict, logs)
    open_turns = onlooker.patiently(lambda connection: [run for s in logs if (run := runs.session_run(connection, s))])
    verdict.stuck += [f"{run.member} of {run.team_id} is {run.state}: {run.reason}" for run in open_turns]
    _effects(verdict, cluster.checkout, told)
    verdict.other += told.contradictions + told.refused
    verdict.other += [f"a process outlived its turn: {process}" for process in cluster.outlived()]
    verdict.other += [
        f"{process.name} ended with {death.code}: a supervisor does not start that again"
        for process in cluster.workers
        for death in process.deaths
        if death.code == MISCONFIGURED
    ]
    _secrets(verdict, cluster)
    return verdict


def _logs(connection: Connection) -> dict[str, list[EventData]]:
    return {
        session: [event.decoded() for event in stream_events(connection, session)]
        for session in sessions.session_ids(connection)
    }


def _messages(verdict: Verdict, logs: Logs, told: Told) -> None:
    """Whatever was accepted, by whatever way, is in its target's history once."""
    shown: Counter[str] = Counter()
    for events in logs.values():
        inserted = [event.message_id for event in events if isinstance(event, InboxInserted)]
        seen = Counter(event.message_id for event in events if isinstance(event, UserMessage))
        verdict.messages += len(inserted)
        verdict.lost += [f"message {message} was accepted and never shown" for message in inserted if not seen[message]]
        verdict.doubled += [
            f"message {message} was shown {times} times" for message, times in seen.items() if times > 1
        ]
        shown.update(seen)
    for job in told.jobs.values():
        if job.message is not None and not shown[job.message]:
            verdict.lost.append(f"job {job.text}: its message {job.message} is in no history")
        if job.message is not None and job.answers == 0:
            verdict.stuck.append(f"job {job.text} was accepted and never answered")
        if job.answers > 1:
            verdict.doubled.append(f"job {job.text} was answered {job.answers} times")


def _turns(verdict: Verdict, logs: Logs) -> None:
    for session, events in logs.items():
        for event in events:
            match event:
                case TurnEnded(reason=reason, code=code, message=message):
                    verdict.turns += 1
                    if reason != "completed":
                        verdict.other.append(f"a turn of {session} ended {reason}/{code}: {message}")
                case AssistantMessage(content=content):
                    said = text_of(content)
                    if said.startswith(FAILED):
                        verdict.other.append(f"{session} says {said}")
                case _:
                    pass


def _effects(verdict: Verdict, checkout: Path, told: Told) -> None:
    """Each answered job has left one journal line, one paper in its last version, one review."""
    lines = Counter(
        line
        for member in MEMBERS.values()
        if (checkout / journal(member)).exists()
        for line in (checkout / journal(member)).read_text().splitlines()
    )
    verdict.doubled += [f"job {text}: its command ran {times} times" for text, times in lines.items() if times > 1]
    for job in told.jobs.values():
        if job.answers:
            _paper(verdict, checkout, job, lines)


def _paper(verdict: Verdict, checkout: Path, job: Job, lines: Mapping[str, int]) -> None:
    if not lines.get(job.text):
        verdict.lost.append(f"job {job.text}: its command did not run")
    paper, review = checkout / "jobs" / f"{job.text}.txt", checkout / "reviews" / f"{job.text}.txt"
    text = paper.read_text() if paper.exists() else "nothing"
    if text != f"{job.text} done\n":
        verdict.lost.append(f"job {job.text}: its paper holds {text!r}")
    if not review.exists() or not review.read_text().startswith(f"{job.text} by "):
        verdict.lost.append(f"job {job.text}: its review is not there")


def _secrets(verdict: Verdict, cluster: Cluster) -> None:
    """No secret in what processes wrote, or in the database's file."""
    files = [process.log for process in cluster.processes]
    if cluster.postgres is None:
        files += (cluster.directory / "data").glob("team.db*")
    for path in files:
        data = path.read_bytes()
        verdict.other += [
            f"{path.name} holds a secret"
            for secret in (CANARY, OPERATOR_TOKEN, WORKER_TOKEN)
            if secret.encode() in data
        ]
