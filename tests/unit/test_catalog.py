"""What requests show a model, and what arguments a tool takes."""

import json
from typing import Any

import pytest

from config.profiles import load_profile
from team.model.errors import ConfigurationInvalid, InvalidArgument, InvalidTimeout, ToolUnknown
from team.model.tools import LOCAL_PARAMETERS
from team.tools import subagents
from team.tools.catalog import request_header, tool_spec
from team.tools.execution import parse
from team.tools.parameters import DESCRIPTIONS, PARAMETERS

TEAM_TOOLS = (
    "spawn_teammate",
    "send_message",
    "list_agents",
    "wait_agent",
    "interrupt_agent",
    "team_task_create",
    "team_task_list",
    "team_task_get",
    "team_task_update",
)
GOOD: dict[str, dict[str, Any]] = {
    "spawn_teammate": {"name": "bob", "description": "d", "prompt": "p"},
    "send_message": {"target": "lead", "message": "m"},
    "list_agents": {},
    "wait_agent": {},
    "interrupt_agent": {"target": "bob"},
    "team_task_create": {"subject": "s", "description": "d"},
    "team_task_list": {},
    "team_task_get": {"task_id": "task-1"},
    "team_task_update": {"task_id": "task-1", "expected_revision": 1, "action": "claim"},
}
SUBAGENT_GOOD: dict[str, dict[str, Any]] = {
    "subagent": {"label": "l", "prompt": "p"},
    "subagent_fork": {"label": "l", "prompt": "p"},
    "send_message": {"agent_id": "a", "message": "m"},
    "list_agents": {},
    "interrupt_agent": {"agent_id": "a"},
}
OPTIONAL: list[tuple[str, str]] = [
    ("spawn_teammate", "context"),
    ("wait_agent", "timeout_ms"),
    ("team_task_create", "blocked_by"),
    ("team_task_create", "write_scopes"),
    *(("team_task_list", name) for name in ("status", "owner", "ready", "cursor", "limit")),
    *(("team_task_update", name) for name in ("subject", "description", "blocked_by", "write_scopes", "owner")),
]


def shown(profile: str) -> dict[str, Any]:
    """The schemas of an assembled request by tool name."""
    return {
        tool["name"]: {"properties": {}, **tool["parameters"]}
        for tool in request_header(load_profile(profile), "m").tools
    }


class TestSchemas:
    def test_the_nine_team_tools_are_there_and_described(self) -> None:
        assert set(PARAMETERS) == set(DESCRIPTIONS) == set(TEAM_TOOLS)

    @pytest.mark.parametrize("name", [*TEAM_TOOLS, *LOCAL_PARAMETERS])
    def test_a_schema_is_closed_and_describes_each_parameter(self, name: str) -> None:
        spec = tool_spec(name)
        schema = spec.parameters
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert spec.description
        assert spec.side == ("worker" if name in LOCAL_PARAMETERS else "coordinator")
        for parameter, described in schema.get("properties", {}).items():
            assert described["description"], f"{name}.{parameter}"
            assert parameter == parameter.lower()
            assert "title" not in described

    @pytest.mark.parametrize("name", TEAM_TOOLS)
    def test_exactly_the_parameters_without_a_default_are_required(self, name: str) -> None:
        assert set(tool_spec(name).parameters.get("required", [])) == set(GOOD[name])
        optional = {parameter for tool, parameter in OPTIONAL if tool == name}
        assert set(tool_spec(name).parameters.get("properties", {})) == set(GOOD[name]) | optional

    def test_an_unknown_tool_in_a_profile_is_a_clear_error(self) -> None:
        with pytest.raises(ConfigurationInvalid, match="unknown tool 'nothing'"):
            tool_spec("nothing")

    def test_a_header_is_the_same_bytes_for_the_same_profile_and_model(self) -> None:
        profile = load_profile("team")
        one, two = request_header(profile, "m"), request_header(profile.model_copy(), "m")
        assert one.to_json() == two.to_json()
        assert request_header(profile, "other").digest != one.digest
        assert request_header(load_profile("base"), "m").digest != one.digest

    def test_the_team_profile_offers_the_team_tools_and_no_subagent_tool(self) -> None:
        offered = shown("team")
        assert set(TEAM_TOOLS) < set(offered)
        assert not {"subagent", "subagent_fork"} & set(offered)
        assert not [name for name, schema in offered.items() if "agent_id" in schema["properties"]]

    def test_the_base_profile_offers_subagents_by_agent_id_and_no_team_tool(self) -> None:
        offered = shown("base")
        assert set(SUBAGENT_GOOD) < set(offered)
        assert not (set(TEAM_TOOLS) - set(SUBAGENT_GOOD)) & set(offered)
        assert not [name for name, schema in offered.items() if "target" in schema["properties"]]
        assert [name for name, schema in offered.items() if "agent_id" in schema["properties"]] == [
            "send_message",
            "interrupt_agent",
        ]

    @pytest.mark.parametrize("name", ["subagent", "subagent_fork"])
    def test_a_team_profile_that_names_a_subagent_tool_is_refused(self, name: str) -> None:
        mixed = load_profile("team").model_copy(update={"tools": (*load_profile("team").tools, name)})
        with pytest.raises(ConfigurationInvalid, match=f"Team profile names the unknown tool '{name}'"):
            request_header(mixed, "m")

    @pytest.mark.parametrize("name", SUBAGENT_GOOD)
    def test_the_schema_of_a_subagent_tool_is_closed_and_describes_each_parameter(self, name: str) -> None:
        schema = tool_spec(name, is_team=False).parameters
        assert schema["additionalProperties"] is False
        assert set(schema.get("required", [])) == set(SUBAGENT_GOOD[name])
        assert all(described["description"] for described in schema.get("properties", {}).values())
        assert set(subagents.PARAMETERS) == set(subagents.DESCRIPTIONS) == set(SUBAGENT_GOOD)


class TestArguments:
    @pytest.mark.parametrize("name", SUBAGENT_GOOD)
    def test_without_a_team_the_shared_names_take_an_agent_id(self, name: str) -> None:
        text = json.dumps(SUBAGENT_GOOD[name])
        assert parse(name, text, is_team=False) == parse(name, text.encode(), is_team=False)
        if name in ("send_message", "interrupt_agent"):
            with pytest.raises(InvalidArgument, match="agent_id"):
                parse(name, json.dumps(GOOD[name]), is_team=False)
            with pytest.raises(InvalidArgument, match="target"):
                parse(name, text)

    @pytest.mark.parametrize("name", ["subagent", "subagent_fork"])
    @pytest.mark.parametrize("optional", ["background", "tools"])
    def test_null_is_the_same_as_absent_for_subagents_too(self, name: str, optional: str) -> None:
        given = {**SUBAGENT_GOOD[name], optional: None}
        assert parse(name, json.dumps(given), is_team=False) == parse(
            name, json.dumps(SUBAGENT_GOOD[name]), is_team=False
        )

    @pytest.mark.parametrize(
        "wrong", [{"background": "yes"}, {"background": 1}, {"tools": "read"}, {"tools": [1]}, {"label": ""}, {"x": 1}]
    )
    def test_a_subagent_argument_of_another_kind_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidArgument):
            parse("subagent", json.dumps({**SUBAGENT_GOOD["subagent"], **wrong}), is_team=False)

    @pytest.mark.parametrize("name", TEAM_TOOLS)
    def test_well_formed_arguments_are_taken_as_text_and_as_bytes(self, name: str) -> None:
        text = json.dumps(GOOD[name])
        assert parse(name, text) == parse(name, text.encode())

    @pytest.mark.parametrize("name", ["list_agents", "wait_agent", "team_task_list"])
    def test_no_arguments_at_all_are_an_empty_object(self, name: str) -> None:
        assert parse(name, "") == parse(name, "{}")

    @pytest.mark.parametrize("name", TEAM_TOOLS)
    @pytest.mark.parametrize("extra", ["sender", "caller", "teamId", "__proto__", "constructor"])
    def test_m14_a_key_that_the_tool_does_not_have_is_refused(self, name: str, extra: str) -> None:
        with pytest.raises(InvalidArgument, match=extra):
            parse(name, json.dumps({**GOOD[name], extra: "lead"}))

    @pytest.mark.parametrize(("name", "missing"), [(name, key) for name in TEAM_TOOLS for key in GOOD[name]])
    def test_a_required_parameter_may_be_neither_absent_nor_null(self, name: str, missing: str) -> None:
        with pytest.raises(InvalidArgument, match=missing):
            parse(name, json.dumps({key: value for key, value in GOOD[name].items() if key != missing}))
        with pytest.raises(InvalidArgument, match=missing):
            parse(name, json.dumps({**GOOD[name], missing: None}))

    @pytest.mark.parametrize(("name", "optional"), OPTIONAL)
    def test_t14_null_is_the_same_as_absent(self, name: str, optional: str) -> None:
        assert parse(name, json.dumps({**GOOD[name], optional: None})) == parse(name, json.dumps(GOOD[name]))

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("send_message", {"target": 1}),
            ("send_message", {"message": ["a"]}),
            ("send_message", {"message": "a\x00b"}),
            ("team_task_update", {"expected_revision": True}),
            ("team_task_update", {"expected_revision": "1"}),
            ("team_task_update", {"expected_revision": 1.0}),
            ("team_task_update", {"expected_revision": 0}),
            ("team_task_update", {"expected_revision": 2**53}),
            ("team_task_update", {"action": "steal"}),
            ("team_task_update", {"action": ""}),
            ("team_task_update", {"blocked_by": "task-1"}),
            ("team_task_list", {"limit": 0}),
            ("team_task_list", {"limit": -1}),
            ("team_task_list", {"limit": 101}),
            ("team_task_list", {"cursor": 3}),
            ("team_task_list", {"ready": "true"}),
            ("team_task_list", {"ready": 1}),
            ("team_task_list", {"status": ""}),
            ("spawn_teammate", {"context": "clone"}),
            ("spawn_teammate", {"context": ""}),
            ("spawn_teammate", {"description": "x" * 201}),
        ],
    )
    def test_a_value_of_another_kind_is_refused(self, name: str, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidArgument):
            parse(name, json.dumps({**GOOD[name], **wrong}))

    @pytest.mark.parametrize("value", ["10000", 1.5, True, [], {}])
    def test_a_timeout_that_is_no_integer_is_an_invalid_timeout(self, value: object) -> None:
        with pytest.raises(InvalidTimeout):
            parse("wait_agent", json.dumps({"timeout_ms": value}))

    @pytest.mark.parametrize(
        "text", ["[]", "null", "3", '"x"', "{", "{'a':1}", "\ufeff{}", '{"message": "\\ud800"}', "[" * 100_000, "NaN"]
    )
    def test_text_that_is_no_json_object_is_refused_without_repeating_it(self, text: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            parse("list_agents", text)
        assert len(caught.value.message) < 300

    def test_an_unknown_tool_is_named_cut_and_escaped(self) -> None:
        with pytest.raises(ToolUnknown) as caught:
            parse("no\n" * 1_000, "{}")
        assert "\\n" in caught.value.message
        assert len(caught.value.message) < 500
