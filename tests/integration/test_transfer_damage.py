"""Damaged files: each is refused with the place and the reason, before a database is touched."""

import json
from typing import Any

import pytest

from team.log import transfer
from team.model.errors import LogDamaged, SessionExists
from team.model.events import MemberChanged, TurnParked, decode_event
from tests.support.core import Core, create_tables
from tests.support.transfers import Change, Line, busy_team, edited, export


def drop(index: int) -> Change:
    def change(lines: list[Line]) -> None:
        del lines[index]

    return change


def put(index: int, *path: str | int, value: Any) -> Change:
    def change(lines: list[Line]) -> None:
        place: Any = lines[index]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def cut_after(count: int) -> Change:
    def change(lines: list[Line]) -> None:
        del lines[count:]

    return change


def lose_last_session(lines: list[Line]) -> None:
    last = max(place for place, line in enumerate(lines) if "session" in line)
    del lines[last:]


def lose_member_unannounced(lines: list[Line]) -> None:
    lose_last_session(lines)
    del lines[0]["sessions"]


def repeat_session(lines: list[Line]) -> None:
    lines.append(lines[0])


DAMAGES: list[tuple[str, Change, str]] = [
    ("gap", drop(2), r"line 3: Session .*, event 3: the event before it is number 1"),
    (
        "unknown type",
        put(2, "type", value="agent/telepathy"),
        r"line 3: event 2 has the unknown type 'agent/telepathy'",
    ),
    ("unknown version", put(3, "data", "version", value=2), r"line 4: event 3 \(team/task\) is not valid: version"),
    ("unknown key", put(2, "data", "colour", value=1), r"line 3: event 2 .* colour: Extra inputs"),
    ("boolean as integer", put(3, "data", "task", "revision", value=True), r"line 4: event 3 .* task.revision"),
    ("too big integer", put(3, "data", "task", "revision", value=2**53), r"line 4: an integer is beyond 2\^53-1"),
    ("seq as text", put(2, "seq", value="2"), r"line 3: seq: Input should be a valid integer"),
    ("NUL", put(1, "time", value="\0"), r"line 2: text holds a NUL character"),
    ("skipped revision", put(3, "data", "task", "revision", value=7), r"line 4: .* event 3: task-1 skips a revision"),
    ("another session", put(2, "sessionId", value="other"), r"line 3: its Session other does not stand above it"),
    ("no header", drop(0), r"line 1: its Session .* does not stand above it"),
    ("header key", put(0, "session", "colour", value=1), r"line 1: session.colour: Extra inputs"),
    ("header version", put(0, "session", "version", value=2), r"line 1: session.version"),
    ("header depth", put(0, "session", "depth", value=1), r"line 1: .* contradicts itself about its root"),
    ("cut in a session", cut_after(4), r"line 4: .* ends behind event 3 of \d+: the file was cut"),
    ("lost session", lose_last_session, r"line \d+: line 1 announces 6 Sessions and fewer follow"),
    ("lost member", lose_member_unannounced, r"the member \w+ is not in the file: export the whole Team"),
    ("session twice", repeat_session, r"the Session .* is in the file twice"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The export of a busy Team, made once."""
    place = tmp_path_factory.mktemp("exported")
    url = f"sqlite:///{place / 'team.db'}"
    create_tables(url)
    core = Core(url, place / "checkout")
    lines = export(core, busy_team(core))
    core.close()
    return lines


@pytest.mark.parametrize(("change", "fault"), [damage[1:] for damage in DAMAGES], ids=[damage[0] for damage in DAMAGES])
def test_a_damaged_file_names_the_place(exported: list[str], change: Change, fault: str) -> None:
    damaged = edited(exported, change)
    with (
        pytest.raises((LogDamaged, SessionExists), match=fault + r".*; nothing was imported\.$"),
        transfer.reading(damaged),
    ):
        raise AssertionError("a damaged file was read")
    with transfer.reading(exported) as whole:
        assert len(whole.sessions) == 6


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 0: the file holds no Session"),
        ("{", "line 1: Expecting property name"),
        ("[]", "line 1: it is not a JSON object"),
        ('{"session": NaN}', "line 1: NaN is not JSON"),
        ('{"session": 1e999}', "line 1: a number is not finite"),
        ('"\\ud800"', "line 1: text holds a lone surrogate"),
        ('{"session": {}, "session": {}}', "line 1: the key 'session' stands twice in one object"),
        ("[" * 100_000, "line 1: JSON is nested deeper than 64 levels"),
        ('{"a":' * 80 + "1" + "}" * 80, "line 1: JSON is nested deeper than 64 levels"),
    ],
)
def test_what_is_no_export_is_refused(text: str, fault: str) -> None:
    with (
        pytest.raises(LogDamaged, match=f"{fault}.*; nothing was imported"),
        transfer.reading([text] if text else []),
    ):
        raise AssertionError("it was read")


def test_the_damages_hit_what_they_mean_to_hit(exported: list[str]) -> None:
    lines = [json.loads(line) for line in exported]
    assert lines[3]["type"] == "team/task"
    decoded = [decode_event(line["seq"], line["type"], line["data"]) for line in lines if "seq" in line]
    assert any(isinstance(data, TurnParked) for data in decoded)
    members = [data.member for data in decoded if isinstance(data, MemberChanged)]
    assert {member.phase for member in members} == {"provisioning", "active"}
