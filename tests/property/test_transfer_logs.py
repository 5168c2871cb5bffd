"""Generated logs: whatever the fold accepts survives export and import, byte for byte, on both databases."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from team.log import projections, transfer
from team.model.errors import LogDamaged, SessionExists
from team.model.events import EventData, decode_event
from team.model.fold import apply
from team.model.ids import MAX_SAFE_INTEGER
from team.model.slices import HEAD, HeadSlice, Key, Slice, TurnSlice
from team.model.snapshots import SessionHeader
from team.service.transfers import TransferService
from tests.support.core import Core, create_tables

Data = dict[str, Any]

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.just("__proto__"), inner, max_size=3),
    max_leaves=6,
)
OPAQUE = st.dictionaries(TEXT | st.sampled_from(["__proto__", "__class__", "text"]), JSON, max_size=3).map(
    lambda block: {**block, "type": "plugin/block"}
)
BLOCKS = st.lists(OPAQUE | TEXT.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=2)
TIME = "2030-01-01T00:00:00.000Z"


class Writer:
    """Draws the events of one Session that the fold accepts, each as plain data."""

    def __init__(self, draw: Any, header: SessionHeader, tag: str) -> None:
        self.draw, self.header, self.tag = draw, header, tag
        self.state: dict[Key, Slice] = {HEAD: HeadSlice(cwd=header.cwd)}
        self.lines: list[str] = []
        self.messages = self.tasks = self.turns = self.names = 0

    @property
    def head(self) -> HeadSlice:
        head = self.state[HEAD]
        assert isinstance(head, HeadSlice)
        return head

    @property
    def turn(self) -> TurnSlice | None:
        turn = self.state[("turn", self.head.open_turn)] if self.head.open_turn else None
        assert turn is None or isinstance(turn, TurnSlice)
        return turn

    def put(self, event_type: str, data: Data) -> None:
        seq = self.head.seq + 1
        decoded: EventData = decode_event(seq, event_type, data)
        self.state.update(apply(self.header, self.state.get, seq, decoded))
        owner, kind = json.dumps(self.header.id), json.dumps(event_type)
        body = f'"seq":{seq},"time":"{TIME}","type":{kind},"data":{decoded.to_json()}'
        self.lines.append(f'{{"sessionId":{owner},{body}}}')

    def act(self) -> None:
        """One random thing that may happen to a Session now."""
        turn = self.turn
        choices = ["message", "task", "mail", "member", "model", "file"]
        if turn is not None and turn.phase == "parked":
            choices += ["resume"] * 3
        elif turn is not None:
            choices += ["advance"] * 6
            choices += ["end"] if not turn.open_calls else ["park"]
        getattr(self, self.draw(st.sampled_from(choices)))()

    def message(self) -> None:
        self.messages += 1
        data = {
            "messageId": f"{self.tag}-m{self.messages}",
            "delivery": self.draw(st.sampled_from(["steer", "turn"])),
            "content": self.draw(BLOCKS),
            "source": {"kind": "human"},
        }
        self.put("agent/inbox/inserted", data)
        if self.head.open_turn is None:
            self.begin()

    def begin(self) -> None:
        self.turns += 1
        self.put("turn/start", {"turnId": f"{self.tag}-t{self.turns}"})

    def task(self) -> None:
        number = self.draw(st.integers(self.head.last_task_number + 1, self.head.last_task_number + 2**40))
        blocked = [f"task-{self.head.last_task_number}"] if self.head.last_task_number else []
        task = {
            "id": f"task-{number}",
            "revision": 1,
            "subject": self.draw(TEXT),
            "description": self.draw(TEXT),
            "status": "pending",
            "blockedBy": blocked,
            "writeScopes": [],
        }
        self.put("team/task", {"version": 1, "teamId": self.header.id, "task": task})

    def mail(self) -> None:
        queued = {
            "version": 1,
            "teamId": self.header.id,
            "messageId": self.draw(TEXT),
            "senderId": "s",
            "senderName": self.draw(TEXT),
            "targetId": "t",
            "delivery": "follow-up",
            "content": self.draw(BLOCKS),
        }
        self.put("team/message/queued", queued)

    def member(self) -> None:
        self.names += 1
        member = {
            "id": f"{self.tag}-failed-{self.names}",
            "name": f"name-{self.names}",
            "description": self.draw(TEXT),
            "provider": "fresh",
            "context": "fresh",
            "phase": "provisioning",
        }
        self.put("team/member", {"version": 1, "teamId": self.header.id, "member": member})
        if self.draw(st.booleans()):
            failed = {**member, "phase": "failed", "error": self.draw(TEXT)}
            self.put("team/member", {"version": 1, "teamId": self.header.id, "member": failed})

    def model(self) -> None:
        self.put("session/model", {"model": self.draw(TEXT)})

    def file(self) -> None:
        version = self.draw(st.none() | TEXT)
        self.put("fs/observed", {"path": self.draw(TEXT), **({} if version is None else {"version": version})})

    def advance(self) -> None:
        turn = self.turn
        assert turn is not None
        if not turn.step_open:
            self.put("step/start", {"turnId": turn.turn_id, "step": turn.step + 1})
        elif not turn.answered:
            self.answer(turn)
        elif turn.open_calls:
            self.result(turn)
        else:
            self.put("step/end", {"turnId": turn.turn_id, "step": turn.step})

    def answer(self, turn: TurnSlice) -> None:
        place = {"turnId": turn.turn_id, "step": turn.step}
        calls = self.draw(st.integers(0, 2))
        finish = "tool-calls" if calls else "stop"
        message = {**place, "model": "m", "content": self.draw(BLOCKS), "finishReason": finish}
        self.put("assistant/message", {**message, "usage": {"inputTokens": 1}, "providerDetail": self.draw(TEXT)})
        for index in range(calls):
            call_id = f"{turn.turn_id}-{turn.step}-{index}"
            call = {**place, "index": index, "callId": call_id, "name": "wait_agent", "arguments": self.draw(TEXT)}
            self.put("tool/call", call)

    def open_calls(self, turn: TurnSlice) -> list[Data]:
        return [
            {"turnId": turn.turn_id, "step": turn.step, "index": index, "callId": f"{turn.turn_id}-{turn.step}-{index}"}
            for index in range(turn.calls)
            if getattr(self.state["call", f"{turn.turn_id}-{turn.step}-{index}"], "result_seq", 0) is None
        ]

    def result(self, turn: TurnSlice) -> None:
        call = self.draw(st.sampled_from(self.open_calls(turn)))
        self.put("tool/result", {**call, "outcome": "ok", "content": self.draw(TEXT)})

    def park(self) -> None:
        turn = self.turn
        assert turn is not None
        waits = [
            {"kind": "wait-agent", "callId": call["callId"], "deadline": "2030-01-01T00:00:30.000Z"}
            for call in self.open_calls(turn)
        ]
        self.put("turn/parked", {"turnId": turn.turn_id, "waits": waits})

    def resume(self) -> None:
        turn = self.turn
        assert turn is not None
        while turn.open_calls:
            self.result(turn)
            turn = self.turn
            assert turn is not None
        self.put("turn/resumed", {"turnId": turn.turn_id})

    def end(self) -> None:
        turn = self.turn
        assert turn is not None
        self.put("turn/end", {"turnId": turn.turn_id, "reason": "completed"})
        if self.head.pending:
            self.begin()


@st.composite
def trees(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A root and some children, as the lines of an export."""
    root_id = str(uuid.uuid4())
    headers = [header_of(root_id, root_id, place) for place in range(draw(st.integers(1, 3)))]
    lines: list[str] = []
    for place, header in enumerate(headers):
        writer = Writer(draw, header, f"{root_id}-{place}")
        for _ in range(draw(st.integers(0, 12))):
            writer.act()
        counts = f',"events":{writer.head.seq}' + (f',"sessions":{len(headers)}' if place == 0 else "")
        lines += [f'{{"session":{header.to_json()}{counts}}}', *writer.lines]
    return root_id, [line.translate({0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}) + "\n" for line in lines]


def header_of(root_id: str, parent_id: str, place: int) -> SessionHeader:
    header: Data = {"version": 1, "createdAt": TIME, "profile": "team", "cwd": "/", "rootId": root_id}
    if place:
        # Ids that sort against the order of creation.
        return SessionHeader.model_validate(
            {**header, "id": f"{root_id}-{9 - place}", "depth": 1, "parentId": parent_id}
        )
    return SessionHeader.model_validate({**header, "id": root_id, "depth": 0})


@pytest.fixture
def stores(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[tuple[Core, Core]]:
    """A store of each kind, and a second one in SQLite."""
    other_url = f"sqlite:///{tmp_path / 'second.db'}"
    create_tables(database_url)
    create_tables(other_url)
    # The root directory holds whatever directory a generated log names.
    cores = Core(database_url, Path("/")), Core(other_url, Path("/"))
    yield cores
    for core in cores:
        core.close()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(tree=trees())
def test_export_of_an_import_of_an_export_is_the_same_bytes(
    stores: tuple[Core, Core], tree: tuple[str, list[str]]
) -> None:
    root_id, lines = tree
    for core in stores:
        service = TransferService(core.store)
        imported = service.import_(lines)
        again = list(service.export(root_id))
        assert again == lines
        lines = again
        for session_id in imported.sessions:
            assert core.reading(lambda c, session_id=session_id: projections.fault_of(c, session_id)) is None
            run, head = core.run(session_id), core.head(session_id)
            assert (run.turn_id if run else None) == head.open_turn


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=trees(), data=st.data())
def test_a_file_that_lost_or_doubled_a_line_is_refused(tree: tuple[str, list[str]], data: st.DataObject) -> None:
    lines = tree[1]
    place = data.draw(st.integers(0, len(lines) - 1))
    for damaged in (lines[:place] + lines[place + 1 :], [*lines[:place], lines[place], *lines[place:]]):
        with pytest.raises((LogDamaged, SessionExists), match="nothing was imported"), transfer.reading(damaged):
            raise AssertionError("a damaged file was read")
