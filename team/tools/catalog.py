"""What requests of a profile show a model: system policy and tool schemas, the same bytes for every member."""

import hashlib
import json
from functools import lru_cache

from config.profiles import Profile
from team.model.errors import ConfigurationInvalid
from team.model.events import RequestHeader
from team.model.tools import LOCAL_PARAMETERS, ToolSpec, local_tool, schema_of
from team.tools.parameters import DESCRIPTIONS, PARAMETERS


def tool_spec(name: str) -> ToolSpec:
    """The tool of this name. Raises ConfigurationInvalid when a profile names one that does not exist."""
    if name in LOCAL_PARAMETERS:
        return local_tool(name)
    if name not in PARAMETERS:
        known = ", ".join([*LOCAL_PARAMETERS, *PARAMETERS])
        raise ConfigurationInvalid(f"A profile names the unknown tool {name!r}; known are {known}.")
    return ToolSpec(
        name=name, description=DESCRIPTIONS[name], parameters=schema_of(PARAMETERS[name]), side="coordinator"
    )


def request_header(profile: Profile, model: str) -> RequestHeader:
    """The header of requests under a profile; its digest changes exactly when a model would see a difference."""
    return _header(profile, model)


@lru_cache(maxsize=64)
def _header(profile: Profile, model: str) -> RequestHeader:
    system = "\n\n".join(part.strip() for part in profile.prompt)
    tools = tuple(
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in map(tool_spec, profile.tools)
    )
    body = json.dumps([model, system, tools], ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return RequestHeader(model=model, system=system, tools=tools, digest=digest)
