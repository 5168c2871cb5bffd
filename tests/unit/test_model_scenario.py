"""Scenario files are checked whole before anything runs."""

from pathlib import Path

import pytest

from config.scenario import Scenario, load_scenario, parse_path, parse_scenario
from team.model.errors import ConfigurationInvalid

MINIMAL = "members: {lead: {start: a, states: {a: {say: done}}}}"


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        parse_scenario(text, "plan.yaml")
    message = caught.value.message
    assert "plan.yaml" in message
    assert "\n" not in message
    return message


def in_state(state: str) -> str:
    return f"members: {{lead: {{start: a, states: {{a: {state}, b: {{say: b}}}}}}}}"


def test_a_minimal_scenario_is_valid() -> None:
    role = parse_scenario(MINIMAL, "plan.yaml").role("lead")
    assert role is not None
    assert role.states["a"].say == "done"


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "", "not a mapping"),
        ("[1]", "", "not a mapping"),
        ("members: {", "line 1", "not YAML"),
        ("members: {lead: !!python/object:os.system {}}", "line 1", "not YAML"),
        ("{}", "", "names no member"),
        ("members: {}\nversion: 2", "version", "1"),
        ("members: {}\nextra: 1", "extra", "not known"),
        ("members: {lead: {states: {a: {say: x}}}}", "members.lead.start", "required"),
        ("members: {lead: {start: a, states: {}}}", "members.lead.states", "at least 1"),
        ("members: {lead: {start: a, states: {a: {speak: x}}}}", "members.lead.states.a.speak", "not known"),
        ("members: {lead: {start: z, states: {a: {say: x}}}}", "members.lead: start[0]", "'z'"),
        ("members: {lead: {start: a, on_message: z, states: {a: {say: x}}}}", "on_message[0]", "'z'"),
        ("members: {lead: {start: a, start: a, states: {a: {say: x}}}}", "line 1", "twice"),
        ("members: {lead: {start: a, states: {1a: {say: x}}}}", "states.1a", "not a name"),
        ("members: {lead: {start: [], states: {a: {say: x}}}}", "members.lead.start", "at least 1"),
        (in_state("{calls: [{tool: read}]}"), "states.a", "needs 'next'"),
        (in_state("{next: b}"), "states.a", "on_message"),
        (in_state("{calls: [{tool: read}], next: b, finish: stop}"), "states.a", "without calls"),
        (in_state("{calls: [{tool: read}, {tool: read}], next: b}"), "states.a", "'as'"),
        (in_state("{calls: [{tool: read}], next: c}"), "states.a.next[0]", "'c'"),
        (in_state("{calls: [{tool: read}], next: [{goto: b}, {goto: a}]}"), "states.a.next[0]", "never reached"),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: x, outcome: ok}, goto: b}]}"),
            "states.a.next[0]",
            "'x'",
        ),
        (in_state("{calls: [{tool: read}], next: [{save: {v: {call: x}}, goto: b}]}"), "states.a.next[0]", "'x'"),
        (in_state("{on_message: [{when: {call: x, outcome: ok}, goto: b}]}"), "states.a.on_message[0]", "no call"),
        (in_state("{calls: [{tool: read}], next: [{when: {}, goto: b}]}"), "when", "exactly one"),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: read}, goto: b}]}"),
            "when",
            "outcome, contains, regex or field",
        ),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: read, outcome: fine}, goto: b}]}"),
            "states.a.next[0].when.outcome",
            "'ok', 'error' or 'unknown'",
        ),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: read, regex: '('}, goto: b}]}"),
            "when.regex",
            "regular expression",
        ),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: read, field: 'a['}, goto: b}]}"),
            "when.field",
            "not a path",
        ),
        (
            in_state("{calls: [{tool: read}], next: [{when: {message: {contains: x}, outcome: ok}, goto: b}]}"),
            "when",
            "'call'",
        ),
        (
            in_state("{calls: [{tool: read}], next: [{when: {call: read, contains: x, equals: 1}, goto: b}]}"),
            "when",
            "equals",
        ),
        (in_state("{calls: [{tool: read}], next: [{save: {member: {value: 1}}, goto: b}]}"), "member", "itself"),
        (in_state("{calls: [{tool: read}], next: [{save: {v: {}}, goto: b}]}"), "save.v", "exactly one"),
        (
            in_state("{calls: [{tool: read}], next: [{save: {v: {value: 1, default: 2}}, goto: b}]}"),
            "save.v",
            "'call'",
        ),
        (in_state("{calls: [{tool: read, args: {}, arguments: '{}'}], next: b}"), "calls[0]", "not both"),
        (in_state("{calls: [{tool: read, args: {x: .nan}}], next: b}"), "calls[0]", "finite"),
        (in_state("{calls: [{tool: read, args: {1: x}}], next: b}"), "calls[0].args", "string"),
        (in_state("{say: x, think_ms: -1}"), "states.a.think_ms", "0"),
        (in_state("{say: x, think_ms: soon}"), "states.a.think_ms", "integer"),
        (in_state("{say: x, max_visits: 0}"), "states.a.max_visits", "1"),
    ],
)
def test_a_malformed_scenario_is_one_sentence_with_its_place(text: str, place: str, reason: str) -> None:
    message = refusal(text)
    assert place in message
    assert reason in message


def test_hostile_nesting_is_refused_and_exhausts_nothing() -> None:
    assert "nested too deeply" in refusal("[" * 100_000)


def test_a_member_that_is_not_named_plays_default() -> None:
    scenario = parse_scenario(f"{MINIMAL}\ndefault: {{start: d, states: {{d: {{say: d}}}}}}", "plan.yaml")
    assert scenario.role("anyone") is scenario.default
    assert parse_scenario(MINIMAL, "plan.yaml").role("anyone") is None


def test_words_that_older_yaml_takes_for_other_values_are_texts() -> None:
    """A state may be called no, and a date or a clock time is what a person typed."""
    text = "members: {lead: {start: no, states: {no: {calls: [{tool: x, args: %s}], next: no}}}}"
    args = "{a: yes, b: off, c: 2020-01-01, d: true, e: FALSE, f: null, g: 1, h: 1.5, i: truest}"
    role = parse_scenario(text % args, "plan.yaml").role("lead")
    assert role is not None
    expected = {"a": "yes", "b": "off", "c": "2020-01-01", "d": True, "e": False, "f": None, "g": 1, "h": 1.5}
    assert role.states["no"].calls[0].args == {**expected, "i": "truest"}


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    for path, reason in ((missing, "No such file"), (binary, "UTF-8"), (tmp_path, "directory")):
        with pytest.raises(ConfigurationInvalid, match=reason) as caught:
            load_scenario(path)
        assert str(path) in caught.value.message


def test_the_documented_example_is_valid() -> None:
    """The document's own scenario is what the program accepts."""
    document = (Path(__file__).parents[2] / "docs" / "script-model.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in document.split("```yaml\n")[1:]]
    scenarios = [block for block in blocks if block.startswith("members:")]
    assert scenarios
    for block in scenarios:
        assert isinstance(parse_scenario(block, "docs/script-model.md"), Scenario)


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "a[", "a[]", "a[x]", "a b", "[1", "a[-1]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_path(text)


def test_a_path_has_keys_indexes_items_and_lookups() -> None:
    kinds = [step.kind for step in parse_path("tasks[subject=Fix: a.b, now].blockedBy[0].x-y[*]")]
    assert kinds == ["key", "filter", "key", "index", "key", "every"]
    assert [step.kind for step in parse_path("[target=lead].status")] == ["filter", "key"]
