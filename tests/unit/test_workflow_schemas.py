"""Schemas of results that children report."""

import json
from typing import Any

import pytest

from team.rules.schemas import schema_fault, value_fault

COUNT = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0}, "names": {"type": "array", "items": {"type": "string"}}},
    "required": ["count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        COUNT,
        {"type": "object", "properties": {"pattern": {"type": "string"}, "$ref": {"type": "integer"}}},
        {"type": "object", "properties": {"kind": {"enum": [{"pattern": "["}, None]}, "n": {"const": {"$ref": 1}}}},
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_an_object_schema_is_taken(schema: dict[str, Any]) -> None:
    assert schema_fault(schema) is None


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (None, "it is not an object"),
        ([], "it is not an object"),
        ({}, 'its "type" must be "object"'),
        ({"type": "array"}, 'its "type" must be "object"'),
        ({"type": ["object", "null"]}, 'its "type" must be "object"'),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "$.properties.a.type"),
        ({"type": "object", "required": "a"}, "$.required"),
        ({"type": "object", "properties": {"a": {"$ref": "https://elsewhere/schema"}}}, "$ref is not supported"),
        ({"type": "object", "allOf": [{"$ref": "#"}]}, "$ref is not supported"),
        ({"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}, "pattern is not supported"),
        ({"type": "object", "patternProperties": {"(a+)+$": {}}}, "patternProperties is not supported"),
        ({"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}, "$dynamicRef is not supported"),
        ({"type": "object", "description": "x" * 20_000}, "the limit is 16384"),
        ({"type": "object", "default": "\x00"}, "NUL"),
        ({"type": "object", "enum": {1, 2}}, "it is not JSON"),
        ({"type": "object", "default": float("inf")}, "it is not JSON"),
    ],
)
def test_what_nobody_could_hold_a_child_to_is_refused_with_the_place(schema: object, fault: str) -> None:
    told = schema_fault(schema)
    assert told is not None
    assert fault in told


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"count": 3, "names": ["a"]}, None),
        ({"count": "3"}, "$.count: '3' is not of type 'integer'"),
        ({"count": True}, "$.count"),
        ({"count": -1}, "minimum"),
        ({"count": 1, "names": [1]}, "$.names[0]"),
        ({}, "'count' is a required property"),
        ({"count": 1, "more": 2}, "'more' was unexpected"),
        ([], "is not of type 'object'"),
        (None, "is not of type 'object'"),
    ],
)
def test_a_value_is_judged_with_the_place(value: object, fault: str | None) -> None:
    told = value_fault(COUNT, json.loads(json.dumps(value)))
    assert told is None if fault is None else told is not None and fault in told


def test_nothing_fits_a_schema_with_a_fault_and_nothing_is_fetched_for_it() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}
    told = value_fault(schema, {"a": 1})
    assert told is not None
    assert "cannot be used" in told
