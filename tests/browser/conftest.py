"""A real Chromium on a real coordinator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.coordinator import CoordinatorProcess
from tests.support.panel import Panel
from tests.support.valkey import ValkeyProcess

CHROMIUM = Path("/usr/bin/chromium")

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser a module, as its event loop occupies the thread; tests skip without Debian's package."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing; install Debian's package chromium to run the browser tests")
    with sync_playwright() as playwright:
        # The pages under test are our own; a container has no user namespace to build a sandbox with.
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def coordinator(valkey_server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """One coordinator for the tests that leave it running."""
    variables = {"TEAM_BROKER_URL": valkey_server.url, "TEAM_VIEWER_TOKEN": "viewer-token", "TEAM_MAX_MEMBERS": "64"}
    process = CoordinatorProcess(tmp_path_factory.mktemp("panel"), "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


@pytest.fixture
def start(tmp_path: Path, valkey: ValkeyProcess) -> Iterator[Callable[..., CoordinatorProcess]]:
    """Starts coordinators of a test's own, on one broker."""
    started: list[CoordinatorProcess] = []

    def start(name: str, **variables: str) -> CoordinatorProcess:
        started.append(CoordinatorProcess(tmp_path, name, {"TEAM_BROKER_URL": valkey.url, **variables}))
        return started[-1].ready()

    yield start
    for process in started:
        assert process.stop() == 0, process.log


@pytest.fixture
def panel(chromium: Browser, coordinator: CoordinatorProcess) -> Iterator[Panel]:
    """A signed-in browser of its own; a script error or a broken policy fails the test."""
    with Panel(chromium, coordinator.port) as opened:
        yield opened
        opened.assert_clean()
