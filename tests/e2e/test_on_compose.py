"""The scenarios of a deployment on the compose file, where a Docker engine answers."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import ComposeDeployment, docker_fault
from tests.support.scenarios import DeploymentScenarios, Work

FAULT = docker_fault()
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(FAULT is not None, reason=f"compose cannot be run: {FAULT}"),
]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[ComposeDeployment]:
    """Three workers; the image is built from the sources."""
    directory: Path = tmp_path_factory.mktemp("compose")
    running = ComposeDeployment(directory, workers=3)
    yield running
    running.close()


class TestOnCompose(DeploymentScenarios):
    """In containers."""

    def test_a_worker_is_cut_off_from_the_network(self, deployment: ComposeDeployment) -> None:
        work = Work(deployment)
        busy = work.place_of(work.executing("researcher", after=20))
        with deployment.disconnected(busy):
            self._goes_on_elsewhere(work, busy)
        work.finish()

    def test_d01_only_loopback_of_this_machine_reaches_the_coordinator_and_flower(
        self, deployment: ComposeDeployment
    ) -> None:
        published: dict[str, set[str]] = {}
        for name, container in deployment.inspect().items():
            settings: Any = container["NetworkSettings"]
            for bindings in settings["Ports"].values():
                for binding in bindings or ():
                    published.setdefault(name.rpartition("-")[0], set()).add(binding["HostIp"])
        assert published == {"coordinator": {"127.0.0.1"}, "flower": {"127.0.0.1"}}
