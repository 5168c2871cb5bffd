"""Paths into JSON values, and ``${...}`` in the texts of a scenario. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from config.scenario import PathStep, parse_path

_EXPRESSION: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")


class Missing(LookupError):  # noqa: N818  # it is an answer as often as an error
    """A path leads nowhere; the text says where it stopped."""


def find(value: Any, path: str, variables: Mapping[str, Any]) -> Any:
    """The value at ``path``; behind a ``[*]`` a list of what each item has. Raises Missing."""
    return _follow(value, parse_path(path), path, variables)


def expand(value: Any, variables: Mapping[str, Any]) -> Any:
    """``value`` with every ``${path}`` in its texts replaced; a text that is one expression keeps the value's type.

    ``$${`` stands for a literal ``${``. Raises Missing when a variable has no such value.
    """
    if isinstance(value, str):
        return _expand_text(value, variables)
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return {key: expand(item, variables) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [expand(item, variables) for item in cast("list[Any]", value)]
    return value


def same(left: Any, right: Any) -> bool:
    """JSON equality: true is not 1."""
    return _canonical(left) == _canonical(right)


def written(value: Any) -> str:
    """A value inside a text: texts as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _expand_text(text: str, variables: Mapping[str, Any]) -> Any:
    whole = _EXPRESSION.fullmatch(text)
    if whole is not None and whole[1] is not None:
        return _variable(whole[1], variables)

    def replace(match: re.Match[str]) -> str:
        return "${" if match[1] is None else written(_variable(match[1], variables))

    return _EXPRESSION.sub(replace, text)


def _variable(path: str, variables: Mapping[str, Any]) -> Any:
    try:
        return find(dict(variables), path.strip(), variables)
    except ValueError as error:
        raise Missing(f"${{{path}}} is not a path") from error
    except Missing as error:
        known = ", ".join(sorted(variables)) or "none"
        raise Missing(f"${{{path}}} has no value ({error}); variables are: {known}") from error


def _follow(value: Any, steps: tuple[PathStep, ...], path: str, variables: Mapping[str, Any]) -> Any:
    for place, step in enumerate(steps):
        match step.kind:
            case "key":
                if not isinstance(value, dict) or step.key not in value:
                    raise Missing(f"{path!r} finds no {step.key!r}")
                value = cast("dict[str, Any]", value)[step.key]
            case "index":
                if not isinstance(value, list) or step.index >= len(cast("list[Any]", value)):
                    raise Missing(f"{path!r} finds no item {step.index}")
                value = cast("list[Any]", value)[step.index]
            case "every":
                if not isinstance(value, list):
                    raise Missing(f"{path!r} finds no list")
                rest = steps[place + 1 :]
                return [_follow(item, rest, path, variables) for item in cast("list[Any]", value)]
            case "filter":
                value = _matching(value, step, path, variables)
    return value


def _matching(value: Any, step: PathStep, path: str, variables: Mapping[str, Any]) -> Any:
    wanted = written(_expand_text(step.value, variables))
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            if isinstance(item, dict) and step.key in item:
                held = cast("dict[str, Any]", item)[step.key]
                if written(held) == wanted:
                    return cast("dict[str, Any]", item)
    raise Missing(f"{path!r} finds no item whose {step.key} is {wanted!r}")


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
