"""What requests of a profile show a model: system policy and tool schemas, the same bytes for every member."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from config.profiles import Profile
from team.model.errors import ConfigurationInvalid
from team.model.events import RequestHeader
from team.model.tools import LOCAL_PARAMETERS, ToolSpec, local_tool, schema_of
from team.model.values import JsonObject, Parameters
from team.rules import capture as captures
from team.tools import parameters, subagents, workflow

_SPAWN: Final = "spawn_teammate"
_DESCRIPTIONS: Final[Mapping[bool, Mapping[str, str]]] = {
    True: {**parameters.DESCRIPTIONS, workflow.NAME: workflow.DESCRIPTION},
    False: {**parameters.DESCRIPTIONS, **subagents.DESCRIPTIONS, workflow.NAME: workflow.DESCRIPTION},
}
_PARAMETERS: Final[Mapping[bool, Mapping[str, type[Parameters]]]] = {
    True: {**parameters.PARAMETERS, workflow.NAME: workflow.Workflow},
    False: {**parameters.PARAMETERS, **subagents.PARAMETERS, workflow.NAME: workflow.Workflow},
}


def parameters_of(*, is_team: bool) -> Mapping[str, type[Parameters]]:
    """The coordinator's tools by name. Without a Team the three controls that both kinds share address subagents."""
    return _PARAMETERS[is_team]


def tool_spec(name: str, *, is_team: bool = True, models: Sequence[str] = ()) -> ToolSpec:
    """The tool of this name; ``models`` are those that a Lead may choose for a teammate.

    Raises ConfigurationInvalid when a profile names one that it cannot have.
    """
    if name in LOCAL_PARAMETERS:
        return local_tool(name)
    known = parameters_of(is_team=is_team)
    if name not in known:
        kind = "A Team profile" if is_team else "A profile"
        raise ConfigurationInvalid(
            f"{kind} names the unknown tool {name!r}; known are {', '.join([*LOCAL_PARAMETERS, *known])}."
        )
    return ToolSpec(
        name=name,
        description=_DESCRIPTIONS[is_team][name],
        parameters=_choosing(schema_of(known[name]), models) if name == _SPAWN else schema_of(known[name]),
        side="coordinator",
    )


def _choosing(schema: JsonObject, models: Sequence[str]) -> JsonObject:
    """The schema with these models to choose from; without any there is no such parameter."""
    properties = dict(schema["properties"])
    choice = properties.pop("model")
    if models:
        named = {"enum": list(models), "type": "string"}
        properties["model"] = {**choice, "anyOf": [named, {"type": "null"}]}
    return {**schema, "properties": properties}


def request_header(profile: Profile, model: str, capture: JsonObject | None = None) -> RequestHeader:
    """The header of requests under a profile; its digest changes exactly when a model would see a difference.

    ``capture`` is the schema of the result that a child must report: it adds the tool for that.
    """
    return _header(profile, model, None if capture is None else json.dumps(capture, ensure_ascii=False))


@lru_cache(maxsize=64)
def _header(profile: Profile, model: str, capture: str | None) -> RequestHeader:
    system = "\n\n".join(part.strip() for part in profile.prompt)
    tools = tuple(
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in (tool_spec(name, is_team=profile.is_team, models=profile.allowed_models) for name in profile.tools)
    )
    if capture is not None:
        tools += ({"name": captures.TOOL, "description": captures.DESCRIPTION, "parameters": json.loads(capture)},)
    body = json.dumps([model, system, tools], ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return RequestHeader(model=model, system=system, tools=tools, digest=digest)
