"""A whole run against a provider that speaks real HTTP, with faults in the middle of its answers."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from config.scenario import load_scenario
from tests.support.prefixes import assert_extends, messages_end
from tests.support.provider_replies import Reply
from tests.support.provider_server import ProviderServer
from tests.support.stack import ROOT, Command, command_environment

pytestmark = pytest.mark.timeout(240)

_DEMO: Final = ROOT / "examples" / "demo"
_KEY: Final = "sk-canary-of-the-provider-run"
_FAULTS: Final = (
    Reply(status=429, headers={"Retry-After": "1"}),
    Reply(text=["This answer is ", "cut off"], cut="mid-text"),
    Reply(text=["This one ends without a finish reason."], cut="no-finish"),
)


@pytest.mark.parametrize("prefix", ["openai-chat", "anthropic"])
def test_a_team_runs_on_a_provider_through_its_faults_and_its_requests_only_grow(tmp_path: Path, prefix: str) -> None:
    checkout, data = tmp_path / "checkout", tmp_path / "data"
    shutil.copytree(_DEMO / "sample", checkout)
    with ProviderServer(script=load_scenario(_DEMO / "scenario.yaml")) as server:
        server.replies.extend(_FAULTS)
        variables = {
            "openai-chat": {"TEAM_MODEL_BASE_URL": server.url, "TEAM_MODEL_API_KEY": _KEY},
            "anthropic": {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": _KEY},
        }[prefix]
        command = Command(
            [
                "-m",
                "team.cli.main",
                "run",
                "--profile",
                "team",
                "--model",
                f"{prefix}:demo",
                "--workers",
                "2",
                "Do it.",
            ],
            command_environment(data, checkout, variables),
            checkout,
            tmp_path / "run.log",
        )
        try:
            code = command.wait(150, "the run")
        finally:
            command.stop()
        assert code == 0, command.text()
        bodies = [request.body for request in server.requests]
    tests = subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=checkout, capture_output=True, check=False)
    assert tests.returncode == 0, tests.stderr.decode()
    assert "done" in command.text()
    assert_requests(bodies)
    stored = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert _KEY.encode() not in stored


def assert_requests(bodies: list[bytes]) -> None:
    """Each member's requests extend each other; system prompt and tool schemas are the same bytes for all."""
    by_member: dict[str, list[bytes]] = {}
    for body in bodies:
        by_member.setdefault(member_of(json.loads(body)), []).append(body)
    assert set(by_member) == {"lead", "researcher", "implementer"}
    for own in by_member.values():
        for before, after in itertools.pairwise(own):
            if before != after:
                assert_extends(before, after)
    # A request that failed is sent again as it was.
    assert by_member["lead"][: len(_FAULTS)] == by_member["lead"][:1] * len(_FAULTS)
    firsts = [own[0] for own in by_member.values()]
    assert len({first[messages_end(first) :] for first in firsts}) == 1
    assert len({first[: first.index(b"[Runtime context")] for first in firsts}) == 1


def member_of(request: dict[str, Any]) -> str:
    """Whose request it is, by the identity that was injected into its history."""
    match = re.search(r"You are the teammate ([a-z0-9-]+):", json.dumps(request["messages"]))
    return match[1] if match else "lead"
