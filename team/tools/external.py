"""The tools of an outside agent: the nine of every member, and one to read its inbox."""

from typing import Final

from pydantic import BaseModel, Field

from config.profiles import Profile
from team.model.errors import InvalidArgument, ToolUnknown
from team.model.events import first_fault
from team.model.tools import ToolSpec, schema_of
from team.model.values import Parameters, decode_json
from team.service.callers import Caller
from team.service.externals import MAX_PAGE, ExternalService
from team.tools.catalog import tool_spec
from team.tools.execution import ToolExecutor
from team.tools.parameters import PARAMETERS

READ: Final = "read_messages"
_DEFAULT_PAGE: Final = 10


class ReadMessages(Parameters):
    limit: int | None = Field(
        default=None, ge=1, le=MAX_PAGE, description=f"Messages per call, 1 to {MAX_PAGE}, default {_DEFAULT_PAGE}."
    )


_DESCRIPTION: Final = (
    "Read your oldest unread messages, in the order in which they were accepted. Each message is returned once, so act "
    "on it. unread says how many are left: call again while it is not 0."
)


def tools_of(profile: Profile) -> list[ToolSpec]:
    """What an outside agent is offered: names, texts and schemas as models see them, and ``read_messages``."""
    reading = ToolSpec(name=READ, description=_DESCRIPTION, parameters=schema_of(ReadMessages), side="coordinator")
    return [*(tool_spec(name, models=profile.allowed_models) for name in PARAMETERS), reading]


def execute(
    executor: ToolExecutor, externals: ExternalService, caller: Caller, name: str, arguments: bytes
) -> BaseModel:
    """Run one tool, other than ``wait_agent``, as an external member. Raises every TeamError of the operation."""
    if name == READ:
        return externals.read(caller, _page(arguments))
    if name not in PARAMETERS:
        raise ToolUnknown(f"There is no tool {name[:80]!r} here; there are {', '.join([*PARAMETERS, READ])}.")
    outcome = executor.execute(caller, name, arguments)
    assert isinstance(outcome, BaseModel)
    return outcome


def _page(arguments: bytes) -> int:
    try:
        decode_json(arguments or b"{}")
        return ReadMessages.model_validate_json(arguments or b"{}").limit or _DEFAULT_PAGE
    except ValueError as error:
        fault = first_fault(error) if hasattr(error, "errors") else str(error)  # pyright: ignore[reportArgumentType] -- the only one with errors is pydantic's
        raise InvalidArgument(f"{READ}: {fault}. Correct the arguments and call it again.") from error
