"""Tools as both sides know them: names, parameters, which side runs them."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from pydantic import Field

from team.model.values import JsonObject, Parameters, Value

Side = Literal["coordinator", "worker"]


class ToolSpec(Value):
    """One tool as a request shows it. ``parameters`` is its JSON schema."""

    name: str
    description: str
    parameters: JsonObject
    side: Side


class ReadParameters(Parameters):
    path: str = Field(description="File to read, relative to your current directory or absolute.", min_length=1)
    offset: int | None = Field(default=None, ge=1, description="First line to return, counted from 1.")
    limit: int | None = Field(default=None, ge=1, le=5000, description="How many lines to return; default 2000.")


class WriteParameters(Parameters):
    path: str = Field(description="File to create or replace.", min_length=1)
    content: str = Field(description="The complete new content.")


class EditParameters(Parameters):
    path: str = Field(description="File to edit.", min_length=1)
    old_text: str = Field(description="Exact text to replace; must occur once unless replace_all.", min_length=1)
    new_text: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


class GlobParameters(Parameters):
    pattern: str = Field(description="Glob such as '**/*.py', relative to path.", min_length=1)
    path: str | None = Field(default=None, description="Directory to search; default your current directory.")


class GrepParameters(Parameters):
    pattern: str = Field(description="Regular expression (Rust syntax).", min_length=1)
    path: str | None = Field(default=None, description="File or directory to search; default your current directory.")
    glob: str | None = Field(default=None, description="Only files that match this glob, such as '*.py'.")
    ignore_case: bool = Field(default=False, description="Match regardless of case.")
    files_only: bool = Field(default=False, description="List the matching files instead of the lines.")


class BashParameters(Parameters):
    command: str = Field(description="Shell command; runs with bash in your current directory.", min_length=1)
    timeout_ms: int = Field(default=120_000, ge=1_000, le=600_000, description="Kill the command after this time.")
    background: bool = Field(
        default=False,
        description="Start the command as a job and return at once. No timeout unless you give timeout_ms.",
    )
    stop_job: str | None = Field(default=None, description="Job to end before the command runs, such as 'job-1'.")


LOCAL_PARAMETERS: Final[Mapping[str, type[Parameters]]] = {
    "read": ReadParameters,
    "write": WriteParameters,
    "edit": EditParameters,
    "glob": GlobParameters,
    "grep": GrepParameters,
    "bash": BashParameters,
}
"""Tools that a worker runs on the shared checkout."""

LOCAL_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "read": (
        "Read a text file of the shared checkout. Lines are numbered in the output; the numbers are not part of the "
        "file. Reading records the version that you saw, which write and edit check."
    ),
    "write": (
        "Create a file, or replace one whole. Replacing needs that you read the current version first; if a teammate "
        "changed it meanwhile the call fails with FS_STALE_VERSION: read it again and rebase your change on it."
    ),
    "edit": (
        "Replace an exact piece of a file that you have read. The text must match byte for byte and occur once, or "
        "set replace_all. FS_STALE_VERSION means that the file changed since you read it: read it again first."
    ),
    "glob": "List files that match a glob, newest first. Ignored and hidden files are left out.",
    "grep": "Search file contents with a regular expression. Ignored and hidden files are left out.",
    "bash": (
        "Run a shell command in your current directory. Standard input is empty, and every process that the command "
        "leaves behind is ended when it returns. A change of directory stays yours alone. Output beyond a limit is cut "
        "in the middle and kept whole in a file that the result names. With background the command becomes a job, such "
        "as a server to test against: its output goes to a file that the result names, later results of bash tell when "
        "it has ended, and it is ended when your turn ends, when you wait for others, or by stop_job."
    ),
}


def schema_of(parameters: type[Parameters]) -> dict[str, Any]:
    """The JSON schema that a model is shown: no titles, stable order."""

    def strip(node: Any, within_properties: bool = False) -> Any:
        if isinstance(node, dict):
            items = cast("dict[str, Any]", node)
            return {
                key: strip(value, key == "properties")
                for key, value in items.items()
                if within_properties or key != "title"
            }
        if isinstance(node, list):
            return [strip(item) for item in cast("list[Any]", node)]
        return node

    return strip(parameters.model_json_schema())


def local_tool(name: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=LOCAL_DESCRIPTIONS[name],
        parameters=schema_of(LOCAL_PARAMETERS[name]),
        side="worker",
    )
