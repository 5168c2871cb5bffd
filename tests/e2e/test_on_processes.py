"""The scenarios of a deployment on local processes."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.deployment import ProcessDeployment
from tests.support.scenarios import DeploymentScenarios

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[ProcessDeployment]:
    """Three workers with PostgreSQL."""
    directory: Path = tmp_path_factory.mktemp("deployment")
    running = ProcessDeployment(directory, workers=3)
    yield running
    running.close()


class TestOnProcesses(DeploymentScenarios):
    """Without containers."""
