"""One process that hammers a Team over HTTP as one member: ``python -m tests.support.hammer URL TEAM MEMBER SECONDS``.

It prints one JSON object: what it was told, for the test to hold against the log.
"""

import json
import random
import sys
import time
from collections import Counter
from typing import Any

import httpx2

from tests.support.coordinator import OPERATOR_TOKEN

MEMBERS = ("lead", *(f"member-{number}" for number in range(1, 8)))


class Hammer:
    def __init__(self, url: str, team: str, member: str) -> None:
        self.member, self.team = member, team
        self.random = random.Random(member)
        self.client = httpx2.Client(
            base_url=url, headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"}, timeout=60, trust_env=False
        )
        self.statuses: Counter[int] = Counter()
        self.created: list[str] = []
        self.told: list[tuple[str, int]] = []
        self.sent: dict[str, list[str]] = {}

    def call(self, tool: str, **parameters: Any) -> dict[str, Any] | None:
        """The result of a tool, or None when it was refused."""
        path = f"/v1/teams/{self.team}/members/{self.member}/tools/{tool}"
        response = self.client.post(path, json=parameters)
        self.statuses[response.status_code] += 1
        return response.json()["result"] if response.is_success else None

    def act(self) -> None:
        choice = self.random.random()
        if choice < 0.15:
            self.create()
        elif choice < 0.35:
            self.send()
        else:
            self.change()

    def create(self) -> None:
        known = self.created[-3:]
        task = self.call(
            "team_task_create", subject="hammered", description="", blocked_by=known[: self.random.randint(0, 2)]
        )
        if task is not None:
            self.created.append(task["id"])
            self.told.append((task["id"], task["revision"]))

    def send(self) -> None:
        target = self.random.choice([name for name in MEMBERS if name != self.member])
        message = self.call("send_message", target=target, message=f"{self.member} {len(self.sent.get(target, []))}")
        if message is not None:
            self.sent.setdefault(target, []).append(message["messageId"])

    def change(self) -> None:
        board = self.call("team_task_list", limit=100)
        tasks: list[dict[str, Any]] = board["tasks"] if board else []
        if not tasks:
            return
        task, other = self.random.choice(tasks), self.random.choice(tasks)
        action = self.random.choice(["claim", "claim", "complete", "release", "reopen", "set_dependencies", "delete"])
        more: dict[str, Any] = {"blocked_by": [other["id"]]} if action == "set_dependencies" else {}
        changed = self.call(
            "team_task_update", task_id=task["id"], expected_revision=task["revision"], action=action, **more
        )
        if changed is not None:
            self.told.append((changed["id"], changed["revision"]))

    def report(self) -> dict[str, Any]:
        return {"statuses": self.statuses, "created": self.created, "told": self.told, "sent": self.sent}


def main(url: str, team: str, member: str, seconds: str) -> None:
    hammer = Hammer(url, team, member)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        hammer.act()
    json.dump(hammer.report(), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
