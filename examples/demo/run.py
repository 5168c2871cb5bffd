"""The demo: a Team of three repairs a small program, on real processes, played by the keyless script model.

Ends with 0 only if the sample's tests fail before and pass after, the run was complete, as many workers took part as
were started (up to the number that the scenario can keep busy), and the replay of every log equals its projections.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMPT = "Do what TASK.md says."
BUSY_AT_ONCE = 2


class Demo:
    """One run in a directory of its own; the checkout and the log stay there."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.directory = directory
        self.checkout = directory / "checkout"
        self.workers = workers
        self.environment = {
            **os.environ,
            "TEAM_DATA_DIR": str(directory / "data"),
            "TEAM_WORKSPACE_ROOT": str(self.checkout),
            # The sample's tests need a python3; the one that runs this demo is one.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
        }

    def prepare(self) -> None:
        """Copy the sample; make it a repository where Git is there."""
        shutil.copytree(HERE / "sample", self.checkout)
        if shutil.which("git") is None:
            return
        identity = ("-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false")
        for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "The sample as it is")):
            subprocess.run(["git", *arguments], cwd=self.checkout, check=True)

    def tests(self) -> subprocess.CompletedProcess[str]:
        """Run the sample's own tests."""
        return subprocess.run(
            ["python3", "-B", "-m", "unittest"],
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def team(self, *arguments: str) -> int:
        """Run one ``team`` command; its output is ours. When we are asked to stop, it stops in order first."""
        with subprocess.Popen(
            self._command(arguments),
            cwd=self.checkout,
            env=self.environment,
            # Ctrl-C reaches us alone, so that the command gets one signal: a second one would mean haste.
            start_new_session=True,
        ) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                raise

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "team.cli.main", *arguments]


def verdict(result: subprocess.CompletedProcess[str]) -> str:
    """The closing line of unittest."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"status {result.returncode}"


def play(demo: Demo) -> list[str]:
    """Run the demo; returns what went wrong, one sentence each."""
    demo.prepare()
    print(f"sample repository: {demo.checkout}")
    before = demo.tests()
    print(f"its tests before:  {verdict(before)}\n", flush=True)
    if before.returncode == 0:
        return ["The sample's tests pass before anything was done."]

    report = demo.directory / "report.json"
    code = demo.team(
        *("run", "--profile", "team", "--model", f"script:{HERE / 'scenario.yaml'}"),
        *("--workers", str(demo.workers), "--slots", "1", "--limit-minutes", "5"),
        *("--report", str(report), PROMPT),
    )
    faults = [] if code == 0 else [f"team run ended with exit code {code}."]
    if not report.exists():
        return faults

    after = demo.tests()
    print(f"\nits tests after:   {verdict(after)}")
    if after.returncode != 0:
        faults.append("The sample's tests still fail.")
    workers: dict[str, list[str]] = json.loads(report.read_text())["workers"]
    used = sorted({worker for names in workers.values() for worker in names})
    print(f"workers that ran:  {', '.join(used) or 'none'}")
    expected = min(demo.workers, BUSY_AT_ONCE)
    if len(used) < expected:
        faults.append(f"Only {len(used)} of {demo.workers} workers took part.")
    print("\n$ team doctor", flush=True)
    if demo.team("doctor") != 0:
        faults.append("team doctor found a difference.")
    return faults


def main() -> int:
    """Parse the options, run, and tell the truth about it."""
    parser = argparse.ArgumentParser(description="A keyless Team on a sample repository.")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, one slot each (default: 2)")
    parser.add_argument("--directory", type=Path, help="where to work; must not exist (default: a temporary one)")
    options = parser.parse_args()
    if options.directory is not None and options.directory.exists():
        parser.error(f"{options.directory} exists already")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="team-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    try:
        faults = play(Demo(directory.resolve(), options.workers))
    except KeyboardInterrupt:
        faults = ["interrupted."]
    print(f"\ncheckout and log stay in {directory} ({time.monotonic() - begun:.0f} s)")
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
