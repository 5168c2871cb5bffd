"""``python -m tests.faults.soak``: Teams work while a seeded schedule of faults strikes; a table tells the result."""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from tests.faults.cluster import Cluster
from tests.faults.injection import Injector, Outcome
from tests.faults.scenario import scenario_text
from tests.faults.schedule import Fault, kinds_for, schedule
from tests.faults.store import Onlooker
from tests.faults.verdict import Verdict, judge
from tests.faults.workload import STUCK_SECONDS, Person, Told
from tests.support.postgres import PostgresProcess
from tests.support.waiting import wait_until

PEOPLE: Final = 2
WORKERS: Final = 3
LEASE_SECONDS: Final = 3.0
AT_ONCE: Final = 4
"""Faults that overlap at most: one more waits until one of them was recovered from."""
_WARM_SECONDS: Final = 180.0

Say = Callable[[str], None]


@dataclass
class Result:
    """One run on one database."""

    seed: int
    database: str
    planned: tuple[Fault, ...]
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    told: Told = field(default_factory=Told)
    verdict: Verdict = field(default_factory=Verdict)
    exits: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0

    @property
    def injected(self) -> list[Outcome]:
        """What really happened."""
        return [outcome for outcome in self.outcomes if outcome.struck_at is not None]

    @property
    def unrecovered(self) -> list[Outcome]:
        return [outcome for outcome in self.injected if outcome.recovered_at is None]

    @property
    def sound(self) -> bool:
        """Nothing lost, doubled or stuck; each fault recovered from; every process ended in order."""
        ended = all(code == 0 for code in self.exits.values())
        driven = all(outcome.trouble is None for outcome in self.outcomes)
        return self.verdict.sound and not self.unrecovered and ended and driven


def run(
    directory: Path,
    database: str,
    *,
    seed: int,
    seconds: float,
    postgres: PostgresProcess | None,
    gap_seconds: tuple[float, float] = (2.0, 4.0),
    names: Sequence[str] | None = None,
    people: int = PEOPLE,
    workers: int = WORKERS,
    say: Say = lambda _text: None,
) -> Result:
    """One run: start, work under faults for ``seconds``, let everything finish, stop, judge."""
    directory.mkdir(parents=True, exist_ok=True)
    scenario = directory / "scenario.yaml"
    scenario.write_text(scenario_text())
    coordinators = 1 if postgres is None else 2
    began = time.monotonic()
    with ExitStack() as stack:
        cluster = Cluster(directory, postgres, workers=workers, coordinators=coordinators, model=f"script:{scenario}")
        stack.callback(cluster.close)
        kinds = kinds_for(database, disk=cluster.own_disk, names=names)
        planned = schedule(
            seed,
            kinds,
            until_seconds=seconds,
            workers=len(cluster.workers),
            coordinators=coordinators,
            gap_seconds=gap_seconds,
        )
        result = Result(seed, database, planned)
        cluster.start()
        onlooker = Onlooker(cluster.database_url)
        stack.callback(onlooker.close)
        crowd = [
            Person(number, cluster.public_url, onlooker, result.told, str(cluster.checkout))
            for number in range(1, people + 1)
        ]
        for person in crowd:
            person.start()
        wait_until(lambda: len(result.told.jobs) >= people, "the Teams to work", _WARM_SECONDS, every=0.1)
        _strike(Injector(cluster, onlooker), planned, seconds, result, say)
        _finish(crowd, onlooker, result, say)
        result.exits = cluster.stop()
        result.verdict = judge(cluster, onlooker, result.told)
        result.seconds = time.monotonic() - began
    return result


def _strike(injector: Injector, planned: Sequence[Fault], seconds: float, result: Result, say: Say) -> None:
    begin = began = time.monotonic()
    idle = threading.Event()
    at_once = threading.Semaphore(AT_ONCE)
    threads: list[threading.Thread] = []

    def carry_out(fault: Fault) -> None:
        outcome = injector.carry_out(fault)
        at_once.release()
        result.outcomes.append(outcome)
        took = outcome.recovery_seconds
        told = outcome.trouble or ("did not come to it" if outcome.struck_at is None else f"recovered in {took:.2f} s")
        now = time.monotonic() - began
        say(f"{now:7.1f} s  {fault.number:4}  {fault.kind.name} ({fault.victim + 1}): {told}")

    for fault in planned:
        idle.wait(max(0.0, begin + fault.at_seconds - time.monotonic()))
        late = time.monotonic()
        at_once.acquire()
        # What a slow machine has not recovered from yet puts off all that follows; the order stays.
        begin += time.monotonic() - late
        thread = threading.Thread(target=carry_out, args=(fault,), name=fault.kind.name, daemon=True)
        threads.append(thread)
        thread.start()
    idle.wait(max(0.0, begin + seconds - time.monotonic()))
    for thread in threads:
        thread.join()
    result.outcomes.sort(key=lambda outcome: outcome.fault.number)


def _finish(people: Sequence[Person], onlooker: Onlooker, result: Result, say: Say) -> None:
    """No more faults, no more jobs: what was accepted is answered, and every turn ends."""
    for person in people:
        person.finishing.set()
    try:
        wait_until(
            lambda: not any(person.is_alive() for person in people),
            "every job to be answered",
            STUCK_SECONDS,
            every=0.2,
        )
        wait_until(lambda: onlooker.open_turns() == [], "every turn to end", STUCK_SECONDS, every=0.2)
    except AssertionError as error:
        say(str(error))
    for person in people:
        person.leaving.set()
        person.join(30)
        if person.fault is not None:
            result.told.contradictions.append(f"{person.name} failed: {person.fault!r}")


def table(result: Result) -> str:
    """The result for people."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in result.injected:
        by_kind[outcome.fault.kind.name].append(outcome)
    planned = {fault.kind.name for fault in result.planned}
    lost, doubled = len(result.verdict.lost), len(result.verdict.doubled)
    lines = [
        f"{'fault':34}{'injected':>9}{'recovered':>10}{'median s':>10}{'longest s':>10}",
        "-" * 73,
    ]
    for name in sorted(planned | set(by_kind)):
        outcomes = by_kind[name]
        times = sorted(t for outcome in outcomes if (t := outcome.recovery_seconds) is not None)
        median, longest = (f"{statistics.median(times):.2f}", f"{times[-1]:.2f}") if times else ("-", "-")
        lines.append(f"{name:34}{len(outcomes):9}{len(times):10}{median:>10}{longest:>10}")
    kills = sorted(
        t
        for outcome in result.injected
        if outcome.fault.kind.name.startswith("worker-kill") and outcome.affected
        if (t := outcome.recovery_seconds) is not None
    )
    stuck = len(result.verdict.stuck) + len(result.unrecovered)
    told = result.told
    lines.append("-" * 73)
    lines.append(
        f"{len(result.injected)} faults of {len(by_kind)} kinds; lost {lost} / doubled {doubled} / stuck {stuck}"
    )
    lines.append(
        f"{len(told.jobs)} jobs of {len(told.roots)} Teams ({len(told.broken)} could not be made), "
        f"{result.verdict.messages} messages, {result.verdict.turns} turns; "
        f"{told.retries} of {told.requests} requests were sent again"
    )
    answered = sorted(job.answered_at - job.asked_at for job in told.jobs.values() if job.answered_at is not None)
    if answered:
        lines.append(
            f"a job was answered after {statistics.median(answered):.1f} s (median), {answered[-1]:.1f} s (longest)"
        )
    if kills:
        lines.append(
            f"turns of killed workers ran again after {statistics.median(kills):.2f} s (median), {kills[-1]:.2f} s "
            f"(longest, with other faults at work); the lease is {LEASE_SECONDS:g} s"
        )
    lines += [f"exit code {code} of {name}" for name, code in result.exits.items() if code != 0]
    lines += [f"{o.fault.kind.name} at {o.fault.at_seconds} s: {o.trouble}" for o in result.outcomes if o.trouble]
    lines += result.verdict.sentences[:40]
    lines.append(f"seed {result.seed}, {result.database}, {result.seconds:.0f} s: {'ok' if result.sound else 'FAILED'}")
    return "\n".join(lines)


def main() -> int:
    """Run and print; 1 when something was lost, done twice or stuck."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--gap", type=float, nargs=2, default=(2.0, 4.0), help="seconds between two faults")
    parser.add_argument("--fault", action="append", default=None, help="only this kind; may be repeated")
    parser.add_argument("--directory", type=Path, default=None, help="keeps data and logs of the run there")
    chosen = parser.parse_args()
    # Told to stop, it ends what it has started before it goes.
    signal.signal(signal.SIGTERM, _leave)
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    databases = ("sqlite", "postgres") if chosen.database == "both" else (chosen.database,)
    sound = True
    for database in databases:
        with ExitStack() as stack:
            scratch = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="team-soak-", ignore_cleanup_errors=True))
            )
            scratch.chmod(0o755)
            postgres: PostgresProcess | None = None
            if database == "postgres":
                postgres = PostgresProcess(scratch / "postgres")
                stack.callback(postgres.stop)
            directory = (chosen.directory or scratch) / database
            result = run(
                directory,
                database,
                seed=seed,
                seconds=chosen.minutes * 60,
                postgres=postgres,
                names=chosen.fault,
                gap_seconds=(chosen.gap[0], chosen.gap[1]),
                say=_print,
            )
            _print(table(result))
            sound = sound and result.sound
    return 0 if sound else 1


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
