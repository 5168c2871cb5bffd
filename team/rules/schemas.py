"""JSON schemas of results that children report: what may be asked for, and whether a value fits."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, relevance

from team.model.values import hygiene_fault

MAX_SCHEMA_BYTES: Final = 16_384
_UNBOUNDED: Final = {
    "pattern": "describe the form of the text instead",
    "patternProperties": "use additionalProperties",
    "$ref": "write the part out, or put it into a variable of the script",
    "$dynamicRef": "write the part out, or put it into a variable of the script",
}
"""Keywords that are refused: nobody can bound the time of a regular expression or of what refers to itself, and a
reference could lead to another machine.
"""
_NAMES: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_LITERALS: Final = frozenset({"const", "enum", "default", "examples"})


def schema_fault(schema: object) -> str | None:
    """Why a value is no schema that a child can be held to; None when it is one.

    A schema is an object schema of JSON Schema 2020-12, at most 16 KiB, without regular expressions and references.
    """
    if not isinstance(schema, dict):
        return "it is not an object"
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    known = cast("dict[str, Any]", json.loads(text))
    fault = hygiene_fault(known)
    if fault is not None:
        return fault
    size = len(text.encode())
    if size > MAX_SCHEMA_BYTES:
        return f"it has {size} bytes; the limit is {MAX_SCHEMA_BYTES}"
    if known.get("type") != "object":
        return 'its "type" must be "object": put a list or a text into a property'
    try:
        Draft202012Validator.check_schema(known)
    except SchemaError as error:
        return f"{error.json_path}: {error.message[:300]}"
    refused = next((keyword for keyword in _keywords(known) if keyword in _UNBOUNDED), None)
    return None if refused is None else f"the keyword {refused} is not supported: {_UNBOUNDED[refused]}"


def value_fault(schema: Mapping[str, Any], value: Any) -> str | None:
    """How a value breaks a schema: the place and the reason; None when it fits.

    Nothing fits a schema with a fault, which only an imported log can hold.
    """
    fault = schema_fault(schema)
    if fault is not None:
        return f"the schema cannot be used: {fault}"
    errors: list[ValidationError] = list(Draft202012Validator(schema).iter_errors(value))  # pyright: ignore[reportUnknownMemberType] -- jsonschema leaves it open
    if not errors:
        return None
    worst = max(errors, key=relevance)
    return f"{worst.json_path}: {worst.message[:500]}"


def _keywords(node: object, *, are_names: bool = False) -> Iterator[str]:
    """Every keyword of a schema; names of properties and what stands in literal values are none."""
    if isinstance(node, dict):
        for key, value in cast("dict[str, object]", node).items():
            if are_names:
                yield from _keywords(value)
                continue
            yield key
            if key not in _LITERALS:
                yield from _keywords(value, are_names=key in _NAMES)
    elif isinstance(node, list):
        for item in cast("list[object]", node):
            yield from _keywords(item)
