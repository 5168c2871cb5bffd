"""Jobs: commands that ``bash`` started in the background. They end with the claim that started them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final

from team.model.errors import TeamError, TurnFenced
from workers.checkout.blocking import until_done
from workers.checkout.errors import CommandLostError, JobLimitError, JobMissingError
from workers.guardian.protocol import CommandReport

JOBS_OF_TURN: Final = 8
JOBS_OF_WORKER: Final = 32
_KEPT_ENDINGS: Final = 16
_SHOWN_COMMAND: Final = 60
_START_SECONDS: Final = 0.3


@dataclass
class Job:
    """One job. ``output`` is the file that its output goes to."""

    name: str
    command: str
    output: str
    task: "asyncio.Task[CommandReport]"

    @property
    def title(self) -> str:
        line = " ".join(self.command.split())
        return f"{self.name} ({line[:_SHOWN_COMMAND]}{'…' if len(line) > _SHOWN_COMMAND else ''})"


@dataclass
class _Turn:
    started: int = 0
    running: dict[str, Job] = field(default_factory=dict[str, Job])
    endings: list[str] = field(default_factory=list[str])
    over: bool = False


class Jobs:
    """The jobs of one worker, by the claim whose lease allows them (``execution``).

    A place is free again only when no process of its job is left: the task of a job ends after all of them.
    """

    def __init__(self, *, of_turn: int = JOBS_OF_TURN, of_worker: int = JOBS_OF_WORKER) -> None:
        self._of_turn = of_turn
        self._of_worker = of_worker
        self._turns: dict[str, _Turn] = {}

    @property
    def running(self) -> int:
        """Jobs of this worker that have not ended."""
        return sum(len(turn.running) for turn in self._turns.values())

    async def start(
        self, execution: str, command: str, output: str, work: Callable[[], Coroutine[None, None, CommandReport]]
    ) -> Job:
        """Hold a place for ``work`` until it ends. Returns soon; with its end, when that comes at once.

        Raises:
            JobLimitError: As many jobs run as may; ``work`` was not begun.
        """
        turn = self._turns.setdefault(execution, _Turn())
        self._admit(turn)
        turn.started += 1
        task = asyncio.get_running_loop().create_task(work())
        job = Job(f"job-{turn.started}", command, output, task)
        turn.running[job.name] = job
        task.add_done_callback(lambda _: self._ended(execution, turn, job))
        await asyncio.wait({task}, timeout=_START_SECONDS)
        return job

    def _admit(self, turn: _Turn) -> None:
        if len(turn.running) >= self._of_turn:
            titles = ", ".join(job.title for job in turn.running.values())
            raise JobLimitError(
                f"{len(turn.running)} jobs of this turn are running, which is the limit: {titles}. Nothing was "
                "started. End one with stop_job, or run the command without background."
            )
        if self.running >= self._of_worker:
            raise JobLimitError(
                f"{self.running} jobs are running on this machine, which is the limit; others of your Team hold them. "
                "Nothing was started. Run the command without background, or try again later."
            )

    async def stop(self, execution: str, name: str) -> None:
        """End a job; returns when no process of it is left.

        Raises:
            JobMissingError: No such job runs; the text tells which do.
        """
        turn = self._turns.get(execution, _Turn())
        job = turn.running.get(name)
        if job is None:
            running = ", ".join(turn.running) or "none"
            raise JobMissingError(f"no job {name!r} of this turn is running; running: {running}. Nothing was run.")
        job.task.cancel()
        await until_done(job.task)

    def report(self, execution: str) -> list[str]:
        """What to tell of the jobs of ``execution``: each end once, and which still run."""
        turn = self._turns.get(execution)
        if turn is None:
            return []
        endings, turn.endings = turn.endings, []
        running = [f"running: {', '.join(job.title for job in turn.running.values())}"] if turn.running else []
        return endings + running

    def end_turn(self, execution: str) -> None:
        """Cancel the jobs of a claim and forget it; the guard sees to their processes. Idempotent."""
        turn = self._turns.get(execution)
        if turn is None:
            return
        turn.over = True
        for job in turn.running.values():
            job.task.cancel()
        if not turn.running:
            del self._turns[execution]

    def _ended(self, execution: str, turn: _Turn, job: Job) -> None:
        del turn.running[job.name]
        turn.endings = [*turn.endings, f"{job.title} {_ending(job)}; output: {job.output}"][-_KEPT_ENDINGS:]
        if turn.over and not turn.running:
            self._turns.pop(execution, None)


def _ending(job: Job) -> str:
    if job.task.cancelled():
        return "was stopped"
    error = job.task.exception()
    if isinstance(error, TurnFenced):
        return "was ended with its lease"
    if isinstance(error, CommandLostError):
        return "was killed with what ran it"
    if isinstance(error, TeamError):
        return f"failed: {error.message}"
    if error is not None:
        return f"failed: {type(error).__name__}"
    report = job.task.result()
    match report.state:
        case "exited" if report.code is not None and report.code < 0:
            return f"was ended by signal {-report.code}"
        case "exited":
            lost = "" if report.spill or not report.total else f", its output could not be kept: {report.detail}"
            return f"ended with exit code {report.code}{lost}"
        case "timed-out":
            return "timed out and was ended"
        case "too-many":
            return "was ended: it started too many processes"
        case "failed":
            return f"could not be started: {report.detail}"
        case _:
            return "was stopped"
