"""The same scenarios for every kind of deployment: a Team works, something breaks, the work is done all the same."""

from collections.abc import Callable

from team.model.views import TeamMemberView
from tests.support.deployment import LEASE_SECONDS, Deployment
from tests.support.histories import assert_sound
from tests.support.stack import Command
from tests.support.waiting import wait_until

_RUN_SECONDS = 150.0


class Work:
    """One demo run on a deployment, seen from outside."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        known = deployment.roots()
        self.command: Command = deployment.run_demo()
        self.root = deployment.newest_root(known)

    def executing(self, name: str, *, after: int = 0) -> str:
        """The worker on which a member executes, once it does and its log has grown beyond ``after`` events."""

        def found() -> str | None:
            for member in self.members():
                turn = member.turn
                if member.target == name and turn is not None and turn.state == "running" and member.last_seq > after:
                    return turn.worker
            return None

        worker = wait_until(found, f"{name} to execute", 60)
        assert worker is not None
        return worker

    def members(self) -> tuple[TeamMemberView, ...]:
        return self.deployment.operator.team(self.root).members

    def place_of(self, serving: str) -> str:
        """The deployment's name of the worker that the coordinator calls so."""
        return next(worker for worker in self.deployment.workers() if self.deployment.serving(worker) == serving)

    def finish(self) -> str:
        """The run ends well, its logs are sound, and replay equals projections. Returns what it printed."""
        code = self.command.wait(_RUN_SECONDS, "the run")
        assert code == 0, self.command.text()
        self.check()
        return self.command.text()

    def check(self) -> None:
        assert_sound(self.deployment.logs(self.root))
        report = self.deployment.operator.doctor()
        assert report.ok, report


class DeploymentScenarios:
    """Subclasses provide the fixture ``deployment``."""

    def test_a_run_from_another_machine_ends_well_and_spreads_over_the_workers(self, deployment: Deployment) -> None:
        work = Work(deployment)
        work.finish()
        assert len({worker for member in work.members() for worker in member.workers}) >= 2

    def test_a_worker_is_killed(self, deployment: Deployment) -> None:
        self._broken(deployment, lambda work, busy: work.deployment.kill_worker(busy))

    def test_a_worker_is_paused_for_longer_than_its_lease(self, deployment: Deployment) -> None:
        def pause(work: Work, busy: str) -> None:
            with work.deployment.paused(busy):
                self._goes_on_elsewhere(work, busy)

        self._broken(deployment, pause)

    def test_the_broker_is_restarted_empty(self, deployment: Deployment) -> None:
        self._broken(deployment, lambda work, _busy: work.deployment.restart_broker())

    def test_the_database_is_restarted(self, deployment: Deployment) -> None:
        self._broken(deployment, lambda work, _busy: work.deployment.restart_database())

    def test_the_coordinator_is_replaced(self, deployment: Deployment) -> None:
        self._broken(deployment, lambda work, _busy: work.deployment.replace_coordinator())

    def test_all_workers_are_replaced_with_turns_in_flight(self, deployment: Deployment) -> None:
        self._broken(deployment, lambda work, _busy: work.deployment.roll_workers())

    def test_workers_come_and_go(self, deployment: Deployment) -> None:
        before = len(deployment.workers())

        def scale(work: Work, _busy: str) -> None:
            deployment.scale(before + 2)
            wait_until(lambda: len(deployment.workers()) == before + 2, "more workers", 60)
            deployment.scale(before)

        self._broken(deployment, scale)

    def test_everything_stops_and_starts_again(self, deployment: Deployment) -> None:
        """The unfinished run goes on by itself; ``team resume`` only follows it."""
        work = Work(deployment)
        work.executing("researcher", after=20)
        work.command.kill()
        deployment.restart_everything()
        work.command = deployment.command("resume", work.root)
        work.finish()

    def _broken(self, deployment: Deployment, fault: Callable[[Work, str], None]) -> None:
        work = Work(deployment)
        busy = work.place_of(work.executing("researcher", after=20))
        fault(work, busy)
        work.finish()

    def _goes_on_elsewhere(self, work: Work, lost: str) -> None:
        """Until the researcher's turn has left the lost worker, or was done before."""
        serving = work.deployment.serving(lost)

        def left() -> bool:
            holder = next((member for member in work.members() if member.target == "researcher"), None)
            return holder is None or holder.turn is None or holder.turn.worker != serving

        wait_until(left, "the turn to go on elsewhere", LEASE_SECONDS + 20)
