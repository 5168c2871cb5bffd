"""What requests of a profile show a model: system policy and tool schemas, the same bytes for every member."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from config.profiles import Profile
from team.model.errors import ConfigurationInvalid
from team.model.events import RequestHeader
from team.model.tools import LOCAL_PARAMETERS, ToolSpec, local_tool, schema_of
from team.model.values import Parameters
from team.tools import parameters, subagents

_DESCRIPTIONS: Final[Mapping[bool, Mapping[str, str]]] = {
    True: parameters.DESCRIPTIONS,
    False: {**parameters.DESCRIPTIONS, **subagents.DESCRIPTIONS},
}
_PARAMETERS: Final[Mapping[bool, Mapping[str, type[Parameters]]]] = {
    True: parameters.PARAMETERS,
    False: {**parameters.PARAMETERS, **subagents.PARAMETERS},
}


def parameters_of(*, is_team: bool) -> Mapping[str, type[Parameters]]:
    """The coordinator's tools by name. Without a Team the three controls that both kinds share address subagents."""
    return _PARAMETERS[is_team]


def tool_spec(name: str, *, is_team: bool = True) -> ToolSpec:
    """The tool of this name. Raises ConfigurationInvalid when a profile names one that it cannot have."""
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
        parameters=schema_of(known[name]),
        side="coordinator",
    )


def request_header(profile: Profile, model: str) -> RequestHeader:
    """The header of requests under a profile; its digest changes exactly when a model would see a difference."""
    return _header(profile, model)


@lru_cache(maxsize=64)
def _header(profile: Profile, model: str) -> RequestHeader:
    system = "\n\n".join(part.strip() for part in profile.prompt)
    tools = tuple(
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in (tool_spec(name, is_team=profile.is_team) for name in profile.tools)
    )
    body = json.dumps([model, system, tools], ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return RequestHeader(model=model, system=system, tools=tools, digest=digest)
