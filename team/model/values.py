"""The base of every durable or wire value, and what JSON may hold (DESIGN section 4)."""

import json
import math
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

from team.model.ids import MAX_SAFE_INTEGER

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_JSON_DEPTH: Final = 64
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
VISIBLE_NUL: Final = "\N{SYMBOL FOR NULL}"


class Value(BaseModel):
    """An immutable value: strict types, no unknown keys, camelCase on the wire."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    def to_json(self) -> str:
        """Compact camelCase JSON; absent optional fields are left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    def to_wire(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Parameters(BaseModel):
    """Model-facing tool parameters: strict, snake_case, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def hygiene_fault(value: object) -> str | None:
    """Why a decoded JSON value may not enter the log, or None when it may.

    Refused are NUL characters, lone surrogates, non-finite numbers, integers beyond 2^53-1 and nesting deeper
    than 64. The walk is iterative, so that hostile nesting cannot exhaust the stack.
    """
    pending: list[tuple[object, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_JSON_DEPTH:
            return f"JSON is nested deeper than {MAX_JSON_DEPTH} levels"
        if isinstance(item, str):
            fault = text_fault(item)
            if fault:
                return fault
        elif isinstance(item, bool) or item is None:
            continue
        elif isinstance(item, int):
            if abs(item) > MAX_SAFE_INTEGER:
                return "an integer is beyond 2^53-1"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return "a number is not finite"
        elif isinstance(item, dict):
            for key, child in cast("dict[str, object]", item).items():
                fault = text_fault(key)
                if fault:
                    return fault
                pending.append((child, depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((child, depth + 1) for child in cast("list[object]", item))
        else:
            return f"{type(item).__name__} is not a JSON value"
    return None


def text_fault(text: str) -> str | None:
    if "\x00" in text:
        return "text holds a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "text holds a lone surrogate"
    return None


def decode_json(text: str | bytes) -> Json:
    """Decode strictly; raises ValueError that names the fault. A key that an object has twice is one."""

    def refuse(constant: str) -> Json:
        raise ValueError(f"{constant} is not JSON")

    try:
        value: Json = json.loads(text, parse_constant=refuse, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"JSON is nested deeper than {MAX_JSON_DEPTH} levels") from error
    fault = hygiene_fault(value)
    if fault:
        raise ValueError(fault)
    return value


def _object(pairs: list[tuple[str, Json]]) -> Json:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Readers disagree about which of the two counts, so neither does.
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key {twice[:80]!a} stands twice in one object")
    return value


def clean_text(text: str) -> str:
    """Tool and model output made storable: NUL becomes a visible symbol, a lone surrogate U+FFFD."""
    fault = text_fault(text)
    if fault is None:
        return text
    # UTF-16 joins the halves of a pair that arrived in two pieces, and counts each lone half once.
    return text.replace("\x00", VISIBLE_NUL).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _sound(value: object) -> object:
    fault = hygiene_fault(value)
    if fault:
        raise ValueError(fault)
    return value


JsonObject = Annotated[dict[str, Any], BeforeValidator(_sound)]
