"""Scenario files of the ``script:`` model, checked whole before anything runs (docs/script-model.md)."""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from team.model.errors import ConfigurationInvalid
from team.model.values import hygiene_fault

RESERVED: Final = frozenset({"member", "message"})
"""Variables that the machine itself sets."""

MEMBER_DEFAULT: Final = "default"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP: Final = re.compile(r"(?:^|\.)([A-Za-z_][A-Za-z0-9_-]*)|\[(?:(\*)|(\d+)|([A-Za-z_][A-Za-z0-9_-]*)=([^\]]*))\]")


@dataclass(frozen=True)
class PathStep:
    """One step into a JSON value: a key, an index, every item, or the items whose ``key`` equals ``value``."""

    kind: Literal["key", "index", "every", "filter"]
    key: str = ""
    index: int = 0
    value: str = ""


@lru_cache(maxsize=4096)
def parse_path(text: str) -> tuple[PathStep, ...]:
    """The steps of a path such as ``tasks[subject=Fix the parser].revision``; raises ValueError when it is none."""
    steps: list[PathStep] = []
    place = 0
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None or text.startswith("."):
            raise ValueError(f"{text!r} is not a path: write keys with dots, [0], [*] or [key=value]")
        key, every, index, filter_key, filter_value = match.groups()
        if key is not None:
            steps.append(PathStep("key", key=key))
        elif every is not None:
            steps.append(PathStep("every"))
        elif index is not None:
            steps.append(PathStep("index", index=int(index)))
        else:
            steps.append(PathStep("filter", key=filter_key, value=filter_value))
        place = match.end()
    if not steps:
        raise ValueError("a path must not be empty")
    return tuple(steps)


def _path(text: str) -> str:
    parse_path(text)
    return text


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression ({error})") from error
    return text


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a name: letters, digits, '-' and '_', not beginning with a digit")
    return text


def _variable(text: str) -> str:
    if text in RESERVED:
        raise ValueError(f"{text!r} is set by the machine itself; choose another variable")
    return _name(text)


Path_ = Annotated[str, AfterValidator(_path)]
Regex = Annotated[str, AfterValidator(_regex)]
Name = Annotated[str, AfterValidator(_name)]
Variable = Annotated[str, AfterValidator(_variable)]


class Part(BaseModel):
    """A part of a scenario: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", populate_by_name=False)


class MessageTest(Part):
    """Which received message is meant; nothing given means any."""

    sender: str | None = Field(default=None, alias="from")
    kind: Literal["human", "delegation", "team-message", "settlement"] | None = None
    contains: str | None = None
    regex: Regex | None = None


class Condition(Part):
    """One test: of a call's result, of a received message, of a variable, or a combination of tests."""

    call: Name | None = None
    outcome: Literal["ok", "error", "unknown"] | None = None
    contains: str | None = None
    regex: Regex | None = None
    field: Path_ | None = None
    equals: Any = None
    message: MessageTest | None = None
    var: Path_ | None = None
    all_of: "tuple[Condition, ...] | None" = Field(default=None, alias="all", min_length=1, strict=False)
    any_of: "tuple[Condition, ...] | None" = Field(default=None, alias="any", min_length=1, strict=False)
    negated: "Condition | None" = Field(default=None, alias="not")

    @property
    def compares(self) -> bool:
        """Whether ``equals`` was given; null is a value that may be compared with."""
        return "equals" in self.model_fields_set

    @model_validator(mode="after")
    def _is_one_test(self) -> Self:
        kinds = ("call", "message", "var", "all_of", "any_of", "negated")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError("a condition tests exactly one of call, message, var, all, any, not")
        result_tests = {"outcome", "contains", "regex", "field"} & self.model_fields_set
        if given != ["call"] and result_tests:
            raise ValueError(f"{', '.join(sorted(result_tests))} belongs to a condition with 'call'")
        if given == ["call"] and not result_tests:
            raise ValueError("a condition with 'call' needs outcome, contains, regex or field")
        if self.compares and self.field is None and self.var is None:
            raise ValueError("equals belongs to 'field' or 'var'")
        return self

    def calls(self) -> Iterable[str]:
        """Every call label that it tests."""
        if self.call is not None:
            yield self.call
        for inner in (*(self.all_of or ()), *(self.any_of or ()), *([self.negated] if self.negated else ())):
            yield from inner.calls()


class Source(Part):
    """Where a saved value comes from: a call's result, whole or a part of it, or a value given here."""

    call: Name | None = None
    field: Path_ | None = None
    regex: Regex | None = None
    value: Any = None
    default: Any = None

    @model_validator(mode="after")
    def _is_one_source(self) -> Self:
        if ("value" in self.model_fields_set) == (self.call is not None):
            raise ValueError("a saved value comes from exactly one of call and value")
        if self.call is None and {"field", "regex", "default"} & self.model_fields_set:
            raise ValueError("field, regex and default belong to a saved value with 'call'")
        if self.field is not None and self.regex is not None:
            raise ValueError("a saved value is found by field or by regex, not both")
        return self

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set


class Rule(Part):
    """Go to ``goto`` when the condition holds; without a condition it always holds."""

    when: Condition | None = None
    save: dict[Variable, Source] = Field(default_factory=dict[str, Source])
    goto: str


def _rules(value: object) -> object:
    """One state's name stands for the one rule that always goes there."""
    return [{"goto": value}] if isinstance(value, str) else value


Rules = Annotated[tuple[Rule, ...], Field(min_length=1, strict=False), BeforeValidator(_rules)]


class Call(Part):
    """One tool call. ``arguments`` is sent verbatim in place of ``args``, for what a model gets wrong."""

    tool: str = Field(min_length=1)
    label: Name | None = Field(default=None, alias="as")
    args: dict[str, Any] | None = None
    arguments: str | None = None

    @property
    def name(self) -> str:
        """What conditions call its result."""
        return self.label or self.tool

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.args is not None and self.arguments is not None:
            raise ValueError("a call has args or arguments, not both")
        fault = hygiene_fault(self.args) if self.args is not None else None
        if fault:
            raise ValueError(f"args cannot be sent as JSON: {fault}")
        return self


class State(Part):
    """One model answer and where the member goes from it.

    Without calls the answer ends the turn; ``on_message`` then says where its next turn begins, before the member's.
    ``max_visits`` bounds how often one turn may come here.
    """

    say: str | None = None
    think_ms: int = Field(default=0, ge=0, le=600_000)
    calls: tuple[Call, ...] = Field(default=(), strict=False)
    next: Rules | None = None
    on_message: Rules | None = None
    max_visits: int = Field(default=50, ge=1, le=100_000)
    finish: Literal["stop", "max-tokens", "refusal"] | None = None

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.calls and self.next is None:
            raise ValueError("a state with calls needs 'next'")
        if self.calls and (self.on_message is not None or self.finish is not None):
            raise ValueError("on_message and finish belong to a state without calls, where the turn ends")
        if not self.calls and self.next is not None:
            raise ValueError("'next' belongs to a state with calls; where the turn ends, use on_message")
        labels = [call.name for call in self.calls]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"two calls are named {twice[0]!r}: give each its own with 'as'")
        return self


class Role(Part):
    """What one member does: a state machine. ``summary`` is its answer when its history is to be compacted."""

    start: Rules
    summary: str | None = Field(default=None, min_length=1)
    on_message: Rules | None = None
    states: dict[Name, State] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_closed(self) -> Self:
        self._check(self.start, "start", set())
        self._check(self.on_message, "on_message", set())
        for name, state in self.states.items():
            labels = {call.name for call in state.calls}
            self._check(state.next, f"states.{name}.next", labels)
            self._check(state.on_message, f"states.{name}.on_message", set())
        return self

    def _check(self, rules: tuple[Rule, ...] | None, place: str, labels: set[str]) -> None:
        for number, rule in enumerate(rules or ()):
            at = f"{place}[{number}]"
            if rule.goto not in self.states:
                raise ValueError(f"{at} goes to {rule.goto!r}, which is none of its states {', '.join(self.states)}")
            if rule.when is None and rules is not None and number + 1 < len(rules):
                raise ValueError(f"{at} always holds, so the rules after it are never reached")
            tested = set(rule.when.calls()) if rule.when is not None else set[str]()
            saved = {source.call for source in rule.save.values() if source.call is not None}
            unknown = sorted((tested | saved) - labels)
            if unknown:
                known = f"its calls are {', '.join(sorted(labels))}" if labels else "no call was made there"
                raise ValueError(f"{at} refers to the call {unknown[0]!r}, but {known}")


class Scenario(Part):
    """A whole file. A member that it does not name plays ``default``."""

    version: Literal[1] = 1
    members: dict[str, Role] = Field(default_factory=dict[str, Role])
    default: Role | None = None

    @model_validator(mode="after")
    def _has_a_member(self) -> Self:
        if not self.members and self.default is None:
            raise ValueError("it names no member and has no default")
        return self

    def role(self, member: str) -> Role | None:
        """What ``member`` plays, or None."""
        return self.members.get(member, self.default)


class _Loader(yaml.SafeLoader):
    """YAML without tags and with the plain values of YAML 1.2: ``no`` and a date are texts.

    A key that occurs twice is an error instead of the last one winning.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} occurs twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_OWN_TAGS: Final = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OWN_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "tTfF":
    _Loader.yaml_implicit_resolvers[_first].append((_OWN_TAGS[0], re.compile("(?i:true|false)$")))


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file.

    Raises:
        ConfigurationInvalid: It cannot be read or is not a scenario; the sentence names the file and the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise ConfigurationInvalid(f"The script {path} cannot be read: {reason}; give the path of a file.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationInvalid(f"The script {path} is not UTF-8 text; save it as UTF-8.") from error
    return parse_scenario(text, str(path))


def parse_scenario(text: str, name: str) -> Scenario:
    """Check the text of a scenario; ``name`` stands for the file in errors. Raises ConfigurationInvalid."""
    try:
        decoded: Any = yaml.load(text, Loader=_Loader)  # noqa: S506  # _Loader is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationInvalid(f"The script {name} is not YAML{where}: {problem}.") from error
    except RecursionError as error:
        raise ConfigurationInvalid(f"The script {name} is nested too deeply.") from error
    if not isinstance(decoded, dict):
        raise ConfigurationInvalid(f"The script {name} is not a mapping: begin it with 'members:'.")
    try:
        return Scenario.model_validate(decoded)
    except ValidationError as error:
        raise ConfigurationInvalid(f"The script {name} is not valid: {_first_fault(error)}.") from error


def _first_fault(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(_place(part) for part in cast("tuple[object, ...]", detail["loc"])).replace(".[", "[")
    problem = "this key is not known" if detail["type"] == "extra_forbidden" else detail["msg"]
    problem = problem.removeprefix("Value error, ").rstrip(".")
    return f"{place}: {problem}" if place else problem


def _place(part: object) -> str:
    return f"[{part}]" if isinstance(part, int) else str(part)
