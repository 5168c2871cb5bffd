"""Exports as tests handle them: a Team that has everything, and files with a change."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from team.model.content import TextBlock
from team.model.events import HistoricalMessageDelivered, HistoricalMessageQueued
from team.model.ids import MessageId, SessionId, TeamId
from team.model.slices import FileSlice
from team.service.transfers import TransferService
from tests.support.core import Core

Line = dict[str, Any]
Change = Callable[[list[Line]], None]


def export(core: Core, session_id: str) -> list[str]:
    return list(TransferService(core.store).export(session_id))


def import_(core: Core, lines: Iterable[str]) -> list[SessionId]:
    return list(TransferService(core.store).import_(lines).sessions)


def edited(lines: list[str], change: Change) -> list[str]:
    """The lines with a change that is made on their decoded form."""
    decoded: list[Line] = [json.loads(line) for line in lines]
    change(decoded)
    return [json.dumps(line, ensure_ascii=False) + "\n" for line in decoded]


def busy_team(core: Core) -> SessionId:
    """Everything that a log can hold at rest and in motion, in one Team."""
    lead = core.lead("begin")
    for subject in ("one", "two", "three"):
        core.act(lead, "team_task_create", subject=subject, description="d", write_scopes=["src"])
    core.act(lead, "team_task_update", task_id="task-2", expected_revision=1, action="delete")
    core.agent(lead).finish("planned")
    core.prompt(lead, "go on")
    core.idle(lead, "idle")
    core.spawn(lead, "copy", context="fork")
    waiter = core.spawn(lead, "waiter")
    assert core.agent(waiter).wait(3_600_000) == "parked"
    worker = core.agent(core.spawn(lead, "worker"))
    worker.call("send_message", target="waiter", message="done \u2028 with \x85 it")
    worker.ask(("read", {"path": "a.py"}), ("bash", {"command": "ls"}))
    worker.local_result(0, observed=(FileSlice(path="a.py", version="v1"),))
    poisoned = core.spawn(lead, "poisoned")
    core.agent(poisoned).begin()
    core.sessions.interrupt(poisoned, actor="tester")
    core.prompt(lead, "and then this")
    core.append(
        lead,
        HistoricalMessageQueued(
            team_id=TeamId(lead),
            message_id=MessageId("old-1"),
            sender_id=SessionId("s-old"),
            sender_name="older",
            target_id=SessionId("t-old"),
            delivery="steer",
            content=(TextBlock(text="from long ago"),),
        ),
        HistoricalMessageDelivered(team_id=TeamId(lead), message_id=MessageId("old-1"), target_id=SessionId("t-old")),
    )
    return lead
