"""Eight processes hammer one Team's board and mailboxes over HTTP; afterwards the log must tell what they were told."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import REPOSITORY, CoordinatorProcess
from tests.support.hammer import MEMBERS
from tests.support.valkey import ValkeyProcess


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(300)])], ids=["short", "a-minute"]
)
def test_t01_m08_nothing_is_lost_doubled_or_reused_under_eight_processes(
    database_url: str, valkey: ValkeyProcess, tmp_path: Path, seconds: int
) -> None:
    variables = {
        "TEAM_DATABASE_URL": database_url,
        "TEAM_BROKER_URL": valkey.url,
        "TEAM_MAX_INBOX": "1000000",
        "TEAM_MAX_TASKS": "100000",
    }
    coordinator = CoordinatorProcess(tmp_path, "coordinator", variables).ready()
    try:
        team = coordinator.lead()
        for name in MEMBERS[1:]:
            spawned = coordinator.tool(team, "lead", "spawn_teammate", name=name, description="hammers", prompt="wait")
            assert spawned.is_success, spawned.text
        reports = hammered(coordinator, team, seconds)
        assert_told_truly(coordinator, team, reports)
        assert coordinator.client.get("/v1/doctor").json()["ok"] is True
    finally:
        code = coordinator.stop()
    assert code == 0, coordinator.log


def hammered(coordinator: CoordinatorProcess, team: str, seconds: int) -> list[dict[str, Any]]:
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.hammer",
                f"http://127.0.0.1:{coordinator.port}",
                team,
                name,
                str(seconds),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        for name in MEMBERS
    ]
    outputs = [process.communicate(timeout=seconds + 60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output) for output in outputs]


def assert_told_truly(coordinator: CoordinatorProcess, team: str, reports: list[dict[str, Any]]) -> None:
    statuses: Counter[str] = Counter()
    for report in reports:
        statuses.update(report["statuses"])
    assert statuses["200"] > 0
    assert set(statuses) <= {"200", "403", "404", "409", "410"}, statuses
    logs = {member["target"]: events(coordinator, member["sessionId"]) for member in roster(coordinator, team)}

    created = [task for report in reports for task in report["created"]]
    assert len(created) == len(set(created))
    told = Counter((task, revision) for report in reports for task, revision in report["told"])
    assert set(told.values()) <= {1}, "two members were told that they own one revision"
    committed = [
        (event["data"]["task"]["id"], event["data"]["task"]["revision"])
        for event in logs["lead"]
        if event["type"] == "team/task"
    ]
    assert sorted(committed) == sorted(told)
    revisions: dict[str, list[int]] = {}
    for task, revision in committed:
        revisions.setdefault(task, []).append(revision)
    assert all(found == list(range(1, len(found) + 1)) for found in revisions.values())
    numbers = [int(task.removeprefix("task-")) for task, revision in committed if revision == 1]
    assert numbers == list(range(1, len(numbers) + 1))
    assert_acyclic(coordinator, team)

    for target, log in logs.items():
        received = [
            (event["data"]["source"]["senderName"], event["data"]["messageId"])
            for event in log
            if event["type"] == "agent/inbox/inserted" and event["data"]["source"]["kind"] == "team-message"
        ]
        for sender, report in zip(MEMBERS, reports, strict=True):
            assert [message for name, message in received if name == sender] == report["sent"].get(target, [])


def assert_acyclic(coordinator: CoordinatorProcess, team: str) -> None:
    tasks = {task["id"]: task["blockedBy"] for task in coordinator.client.get(f"/v1/teams/{team}").json()["tasks"]}
    assert all(blocker in tasks for blockers in tasks.values() for blocker in blockers)
    free: set[str] = set()
    while len(free) < len(tasks):
        layer = {task for task, blockers in tasks.items() if task not in free and free.issuperset(blockers)}
        assert layer, "the dependencies have a cycle"
        free |= layer


def roster(coordinator: CoordinatorProcess, team: str) -> list[dict[str, Any]]:
    return coordinator.client.get(f"/v1/teams/{team}").json()["members"]


def events(coordinator: CoordinatorProcess, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["seq"] if found else 0
        page = coordinator.client.get(f"/v1/sessions/{session}/events", params={"after": after, "limit": 1000}).json()
        found += page["events"]
        if len(found) == page["lastSeq"]:
            return found
