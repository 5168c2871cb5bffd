"""The state machine of a scenario: what a member answers next. Pure; a worker and a test server share it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import Field, ValidationError

from config.scenario import Condition, MessageTest, Role, Rule, Source, State
from team.model.events import Outcome
from team.model.values import JsonObject, Value, clean_text, hygiene_fault
from workers.models.lookup import Missing, expand, find, same, written

_MESSAGE: Final = "message"


class ScenarioFault(Exception):  # noqa: N818  # the scenario's fault, told to its author
    """The scenario has no way on; the text names the state."""


class Received(Value):
    """A message that the member was shown. ``sender`` is a target name, or ``human``."""

    kind: str
    sender: str
    text: str


class Memory(Value):
    """All that a member's machine remembers; it travels in ``provider_detail``.

    ``inbox`` holds received messages that no rule has taken yet, oldest first; ``visits`` counts the states of this
    turn.
    """

    script: int = 1
    member: str
    state: str
    variables: JsonObject = Field(default_factory=dict[str, Any])
    inbox: tuple[Received, ...] = ()
    visits: dict[str, int] = Field(default_factory=dict[str, int])


@dataclass(frozen=True)
class CallResult:
    """The result of one call of the newest answer, by its index."""

    index: int
    outcome: Outcome
    content: str


@dataclass(frozen=True)
class PlannedCall:
    name: str
    arguments: str


@dataclass(frozen=True)
class Plan:
    """The next answer, and the memory to store with it."""

    memory: Memory
    say: str
    calls: tuple[PlannedCall, ...]
    think_ms: int
    state: State


def memory_of(text: str | None) -> Memory | None:
    """The memory in a ``provider_detail``, or None when another model wrote it."""
    if text is None or not text.startswith('{"script":'):
        return None
    try:
        return Memory.model_validate_json(text)
    except ValidationError:
        return None


def plan(
    role: Role,
    member: str,
    memory: Memory | None,
    results: Sequence[CallResult],
    received: Sequence[Received],
) -> Plan:
    """What the member answers after its newest answer (``memory``) and what came since.

    Raises:
        ScenarioFault: No rule holds, a value is missing, a state is visited too often or does not exist.
    """
    if memory is None or memory.member != member:
        inbox = tuple(received)
        return _enter(role, _Place("start", role.start), _Step(member, {}, inbox, {}, None, _first(received)))
    state = role.states.get(memory.state)
    if state is None:
        raise ScenarioFault(f"state {memory.state!r} is not in the file any more")
    inbox = (*memory.inbox, *received)
    if not state.calls:
        rules = state.on_message or role.on_message
        if rules is None:
            raise ScenarioFault(f"state {memory.state!r} ended a turn and has no on_message for the next one")
        step = _Step(member, memory.variables, inbox, {}, None, _first(received))
        return _enter(role, _Place(f"on_message after {memory.state!r}", rules), step)
    assert state.next is not None, "checked with the file"
    by_index = {result.index: result for result in results}
    named: dict[str, CallResult] = {}
    for index, call in enumerate(state.calls):
        if index not in by_index:
            raise ScenarioFault(f"state {memory.state!r} has no result for its call {call.name!r}")
        named[call.name] = by_index[index]
    step = _Step(member, memory.variables, inbox, dict(memory.visits), named, None)
    return _enter(role, _Place(f"state {memory.state!r}", state.next), step)


def _first(received: Sequence[Received]) -> Received | None:
    return received[0] if received else None


@dataclass(frozen=True)
class _Place:
    name: str
    rules: tuple[Rule, ...]


@dataclass
class _Step:
    """One transition. Where a turn begins, ``results`` is None and ``opening`` the message that opened it."""

    member: str
    variables: Mapping[str, Any]
    inbox: tuple[Received, ...]
    visits: dict[str, int]
    results: Mapping[str, CallResult] | None
    opening: Received | None

    def scope(self) -> dict[str, Any]:
        return {**self.variables, "member": self.member}

    def holds(self, condition: Condition) -> bool:
        """Whether a condition holds."""
        if condition.call is not None:
            return self._result_holds(condition)
        if condition.message is not None:
            return self._message(condition.message) is not None
        if condition.var is not None:
            return self._value_holds(condition, lambda path: find(self.scope(), path, self.scope()), condition.var)
        if condition.all_of is not None:
            return all(self.holds(inner) for inner in condition.all_of)
        if condition.any_of is not None:
            return any(self.holds(inner) for inner in condition.any_of)
        assert condition.negated is not None, "checked with the file"
        return not self.holds(condition.negated)

    def taken(self, condition: Condition | None) -> Received | None:
        """The message that a rule takes out of the inbox: the one it asked for, or the one that opened the turn."""
        wanted = _message_test(condition, self.holds) if condition is not None else None
        if wanted is not None:
            return self._message(wanted)
        return self.opening

    def source(self, source: Source) -> Any:
        if source.call is None:
            return expand(source.value, self.scope())
        try:
            return self._from_result(source)
        except Missing:
            if source.has_default:
                return expand(source.default, self.scope())
            raise

    def _from_result(self, source: Source) -> Any:
        content = self._result(source.call).content
        if source.regex is not None:
            match = re.search(source.regex, content)
            if match is None:
                raise Missing(f"the result of {source.call!r} does not match {source.regex!r}: {_shown(content)}")
            return match[1] if match.re.groups else match[0]
        if source.field is None:
            try:
                return _json(content)
            except Missing:
                return content
        try:
            return find(_json(content), source.field, self.scope())
        except Missing as error:
            raise Missing(f"the result of {source.call!r}: {error}, in {_shown(content)}") from error

    def _result_holds(self, condition: Condition) -> bool:
        result = self._result(condition.call)
        if condition.outcome is not None and result.outcome != condition.outcome:
            return False
        if condition.contains is not None and written(expand(condition.contains, self.scope())) not in result.content:
            return False
        if condition.regex is not None and re.search(condition.regex, result.content) is None:
            return False
        if condition.field is None:
            return True
        return self._value_holds(
            condition, lambda path: find(_json(result.content), path, self.scope()), condition.field
        )

    def _result(self, label: str | None) -> CallResult:
        assert label is not None
        assert self.results is not None, "checked with the file"
        return self.results[label]

    def _value_holds(self, condition: Condition, look: Callable[[str], Any], path: str) -> bool:
        try:
            value = look(path)
        except Missing:
            return False
        if not condition.compares:
            return value is not None and value != []
        wanted = expand(condition.equals, self.scope())
        if "[*]" in path and isinstance(value, list):
            items = cast("list[Any]", value)
            return bool(items) and all(same(item, wanted) for item in items)
        return same(value, wanted)

    def _message(self, test: MessageTest) -> Received | None:
        for message in self.inbox:
            if test.sender is not None and written(expand(test.sender, self.scope())) != message.sender:
                continue
            if test.kind is not None and test.kind != message.kind:
                continue
            if test.contains is not None and written(expand(test.contains, self.scope())) not in message.text:
                continue
            if test.regex is not None and re.search(test.regex, message.text) is None:
                continue
            return message
        return None


def _enter(role: Role, place: _Place, step: _Step) -> Plan:
    try:
        rule = next((rule for rule in place.rules if rule.when is None or step.holds(rule.when)), None)
        if rule is None:
            raise ScenarioFault(f"{place.name}: no rule holds for {_situation(step)}")
        taken = step.taken(rule.when)
        inbox = list(step.inbox)
        variables = dict(step.variables)
        if taken is not None:
            inbox.remove(taken)
            variables[_MESSAGE] = {"from": taken.sender, "kind": taken.kind, "text": taken.text}
            step.variables = variables
        for name, source in rule.save.items():
            variables[name] = step.source(source)
        state = role.states[rule.goto]
        visits = {**step.visits, rule.goto: step.visits.get(rule.goto, 0) + 1}
        if visits[rule.goto] > state.max_visits:
            raise ScenarioFault(
                f"state {rule.goto!r} was visited {state.max_visits} times in this turn, its max_visits; "
                f"the last time from {place.name} with {_situation(step)}"
            )
        memory = Memory(member=step.member, state=rule.goto, variables=variables, inbox=tuple(inbox), visits=visits)
        return _answer(memory, state)
    except Missing as error:
        raise ScenarioFault(f"{place.name}: {error}") from error


def _answer(memory: Memory, state: State) -> Plan:
    scope = {**memory.variables, "member": memory.member}
    try:
        calls = tuple(
            PlannedCall(
                call.tool, call.arguments if call.arguments is not None else _arguments(expand(call.args or {}, scope))
            )
            for call in state.calls
        )
        say = clean_text(written(expand(state.say, scope))) if state.say else ""
    except Missing as error:
        raise ScenarioFault(f"state {memory.state!r}: {error}") from error
    return Plan(memory, say, calls, state.think_ms, state)


def _arguments(value: Any) -> str:
    fault = hygiene_fault(value)
    if fault:
        raise Missing(f"the arguments cannot be sent as JSON: {fault}")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _message_test(condition: Condition, holds: Callable[[Condition], bool]) -> MessageTest | None:
    """The message test that made a condition hold, if there is one in it."""
    if condition.message is not None:
        return condition.message
    for inner in (*(condition.all_of or ()), *(condition.any_of or ())):
        if holds(inner):
            found = _message_test(inner, holds)
            if found is not None:
                return found
    return None


def _json(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Missing(f"it is not JSON ({_shown(content)})") from error


def _situation(step: _Step) -> str:
    parts = [f"{name} → {result.outcome} {_shown(result.content)}" for name, result in (step.results or {}).items()]
    parts += [f"a message from {message.sender} {_shown(message.text)}" for message in step.inbox]
    return "; ".join(parts) or "no result and no message"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:119] + "…")
