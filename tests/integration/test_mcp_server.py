"""`team mcp` as a real process, spoken to by the official client, before a real coordinator that is killed once."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.coordinator import REPOSITORY, CoordinatorProcess
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.waiting import wait_until

NINE_AND_ONE = {
    "spawn_teammate",
    "send_message",
    "list_agents",
    "wait_agent",
    "interrupt_agent",
    "team_task_create",
    "team_task_list",
    "team_task_get",
    "team_task_update",
    "read_messages",
}


@pytest.fixture
def coordinator(valkey: ValkeyProcess, tmp_path: Path, database_url: str) -> Iterator[CoordinatorProcess]:
    variables = {"TEAM_BROKER_URL": valkey.url, "TEAM_KEY_PREFIX": "mcp:", "TEAM_DATABASE_URL": database_url}
    process = CoordinatorProcess(tmp_path, "coordinator", variables)
    yield process.ready()
    assert process.stop() == 0, process.log


def invite(coordinator: CoordinatorProcess, team: str) -> str:
    body = {"name": "guest", "description": "from outside"}
    return coordinator.client.post(f"/v1/teams/{team}/invites", json=body).json()["token"]


def variables(coordinator: CoordinatorProcess, token: str) -> dict[str, str]:
    return {
        "TEAM_COORDINATOR_URL": f"http://127.0.0.1:{coordinator.port}",
        "TEAM_INVITE_TOKEN": token,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
        **({"TEAM_TEST_RUN": os.environ["TEAM_TEST_RUN"]} if "TEAM_TEST_RUN" in os.environ else {}),
    }


def stdio(coordinator: CoordinatorProcess, token: str) -> Client:
    arguments = ["-m", "team.cli.main", "mcp"]
    return Client(StdioServerParameters(command=sys.executable, args=arguments, env=variables(coordinator, token)))


async def call(client: Client, tool: str, key: str | None = None, **arguments: Any) -> Any:
    meta: Any = None if key is None else {"celery-agent-teams/idempotency-key": key}
    result = await client.call_tool(tool, arguments, meta=meta)
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    decoded = json.loads(block.text)
    assert ("error" in decoded) == bool(result.is_error)
    return decoded


def test_an_agent_over_stdio_reads_answers_and_repeats_no_call_while_the_coordinator_is_replaced(
    coordinator: CoordinatorProcess,
) -> None:
    team = coordinator.lead()
    token = invite(coordinator, team)

    async def converse() -> None:
        async with stdio(coordinator, token) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == NINE_AND_ONE
            assert coordinator.tool(team, "lead", "send_message", target="guest", message="look").is_success
            assert await call(client, "wait_agent") == {"timedOut": False}
            read = await call(client, "read_messages", key="first")
            assert read["messages"][0]["content"][1]["text"] == "look"
            assert await call(client, "read_messages", key="first") == read
            assert (await call(client, "read_messages"))["messages"] == []
            await call(client, "send_message", target="lead", message="seen")
            coordinator.replace()
            refused = await call(client, "team_task_get", task_id="task-9")
            assert refused["error"]["code"] == "TEAM_TASK_NOT_FOUND"
            assert coordinator.client.post(f"/v1/teams/{team}/close").is_success
            assert (await call(client, "read_messages"))["error"]["code"] == "TEAM_DISPOSED"

    anyio.run(converse)
    assert coordinator.client.get("/v1/doctor").json()["ok"]


def test_a_wrong_token_ends_the_command_with_one_sentence(coordinator: CoordinatorProcess) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "team.cli.main", "mcp"],
        env={**os.environ, **variables(coordinator, "wrong")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert ended.stderr.startswith("team: This invitation is not valid"), ended.stderr


@contextmanager
def http_server(coordinator: CoordinatorProcess, token: str) -> Generator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "team.cli.main", "mcp", "--http", "--port", str(port)],
        env={**os.environ, **variables(coordinator, token)},
        stdin=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/mcp"

    def answers() -> bool:
        try:
            return httpx2.post(url, trust_env=False).status_code == 401
        except httpx2.TransportError:
            return False

    try:
        wait_until(answers, "the MCP server", 30)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def test_an_agent_over_http_needs_its_token_and_a_local_host(coordinator: CoordinatorProcess) -> None:
    team = coordinator.lead()
    token = invite(coordinator, team)
    authorization = {"Authorization": f"Bearer {token}"}

    async def converse(url: str) -> None:
        async with (
            httpx2.AsyncClient(headers=authorization, timeout=60, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            members = await call(client, "list_agents")
            assert [member.get("provider") for member in members] == [None, "external"]
            created = await call(client, "team_task_create", subject="s", description="d")
            assert created["id"] == "task-1"

    with http_server(coordinator, token) as url:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({**authorization, "Host": "evil.example"}, 403),
            ({**authorization, "Origin": "https://evil.example"}, 403),
        ):
            assert httpx2.post(url, headers=headers, trust_env=False).status_code == status, headers
        anyio.run(converse, url)
