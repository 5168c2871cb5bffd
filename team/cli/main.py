"""The ``team`` command."""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer

from config.models import resolve_model
from team.cli import checks, inspection, invitations
from team.cli import usage as usages
from team.cli.faults import FAILED, exit_code
from team.cli.places import read_settings
from team.cli.running import RunOptions, run_again, run_new
from team.cli.serving import serve
from team.model.errors import ConfigurationInvalid, TeamError

P = ParamSpec("P")

app = typer.Typer(
    name="team",
    help="Durable teams of model agents, run as a distributed task queue.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Profile = Annotated[
    str, typer.Option(envvar="TEAM_PROFILE", help="What the agents may do: base (one agent), team, or one of your own.")
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="TEAM_MODEL",
        help="openai-chat:NAME, deepseek:NAME, anthropic:NAME, script:FILE… Default: the profile's model.",
        show_default="the profile's",
    ),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        envvar="TEAM_WORKSPACE_ROOT",
        help="The shared checkout; nothing outside it is read or written by file tools.",
        show_default="the Git top level, else the directory",
    ),
]
Cwd = Annotated[Path | None, typer.Option(help="Where the Lead starts.", show_default="the current directory")]
Workers = Annotated[
    int, typer.Option(min=0, max=64, envvar="TEAM_WORKERS", help="Worker processes of an embedded stack.")
]
Slots = Annotated[
    int | None,
    typer.Option(min=1, max=256, envvar="TEAM_SLOTS", help="Turns that one worker runs at once.", show_default="8"),
]
LimitMinutes = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        envvar="TEAM_LIMIT_MINUTES",
        help="Stop after this time and report what is unfinished.",
        show_default="no limit",
    ),
]
Report = Annotated[Path | None, typer.Option(help="Also write the outcome as JSON to this file.", show_default="none")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for a machine instead.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A Session id.")]


def reported(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's result, or its error, into the exit code; an error is one sentence on standard error."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except TeamError as error:
            print(f"team: {error.message}", file=sys.stderr)
            code = exit_code(error)
        except BrokenPipeError:
            # The reader of our output has gone; the interpreter must not complain while it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FAILED
        raise typer.Exit(code)

    return run


def _print_version(value: bool) -> None:
    if value:
        print(importlib.metadata.version("celery-agent-teams"))
        raise typer.Exit


@app.callback()
def team(
    version: Annotated[  # noqa: ARG001  # handled by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Durable teams of model agents, run as a distributed task queue.

    Every option is also a setting: a TEAM_* variable. Exit codes: 0 done, 1 the team failed or is unfinished,
    2 something has to be corrected first.
    """


@app.command()
@reported
def run(
    prompt: Annotated[str, typer.Argument(help="What the Lead is asked to do; '-' reads standard input.")],
    profile: Profile = "base",
    model: Model = None,
    cwd: Cwd = None,
    workspace: Workspace = None,
    workers: Workers = 1,
    slots: Slots = None,
    limit_minutes: LimitMinutes = None,
    report: Report = None,
    as_json: AsJson = False,
) -> int:
    """Run one task to its end: on a live coordinator if there is one, else on an embedded stack of its own."""
    directory = (cwd or Path.cwd()).expanduser().resolve()
    settings = read_settings(model=model, slots=slots, workspace_root=workspace)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise ConfigurationInvalid("The prompt is empty; say what is to be done.")
    return run_new(
        RunOptions(settings, directory, _staffed(workers), limit_minutes, report, as_json, chosen_cwd=cwd),
        prompt=text,
        profile=profile,
        model=resolve_model(settings.model) if settings.model else None,
    )


@app.command()
@reported
def resume(
    session: SessionId,
    prompt: Annotated[str | None, typer.Argument(help="One more prompt; releases held messages.")] = None,
    workspace: Workspace = None,
    workers: Workers = 1,
    slots: Slots = None,
    limit_minutes: LimitMinutes = None,
    report: Report = None,
    as_json: AsJson = False,
) -> int:
    """Continue an unfinished run from its log and follow it to its end."""
    settings = read_settings(slots=slots, workspace_root=workspace)
    options = RunOptions(settings, Path.cwd(), _staffed(workers), limit_minutes, report, as_json)
    return run_again(options, session_id=session, prompt=prompt)


@app.command()
@reported
def up(
    workspace: Workspace = None,
    workers: Workers = 1,
    slots: Slots = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, envvar="TEAM_PORT", help="Port of the coordinator.", show_default="8765"),
    ] = None,
) -> int:
    """Keep a broker, a coordinator and workers running until Ctrl-C; whatever ends is started again."""
    return serve(read_settings(slots=slots, workspace_root=workspace, port=port), workers=workers)


@app.command()
@reported
def coordinator(
    host: Annotated[
        str | None, typer.Option(envvar="TEAM_HOST", help="Address to listen on.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, envvar="TEAM_PORT", help="Port to listen on.", show_default="8765"),
    ] = None,
) -> int:
    """Be a coordinator: own the log, dispatch turns. Takes its settings from TEAM_* variables."""
    settings = read_settings(host=host, port=port)
    checks.check_port(settings.host, settings.port)
    _become("team.api", TEAM_HOST=settings.host, TEAM_PORT=str(settings.port))


@app.command()
@reported
def worker(
    name: Annotated[
        str | None,
        typer.Option(
            envvar="TEAM_WORKER_NAME", help="Its name, unique in the deployment.", show_default="host and process id"
        ),
    ] = None,
    slots: Slots = None,
    queues: Annotated[
        str | None,
        typer.Option(envvar="TEAM_QUEUES", help="Celery queues to serve, comma-separated.", show_default="turns"),
    ] = None,
) -> int:
    """Be a worker: run turns. Takes its settings from TEAM_* variables."""
    read_settings(worker_name=name, slots=slots, queues=queues)
    chosen = {"TEAM_WORKER_NAME": name, "TEAM_SLOTS": slots, "TEAM_QUEUES": queues}
    _become("workers", **{key: str(value) for key, value in chosen.items() if value is not None})


@app.command()
@reported
def migrate() -> int:
    """Bring the database to this version's schema, and leave. A coordinator does the same when it starts."""
    return checks.migrate_database(read_settings())


@app.command()
@reported
def flower(
    host: Annotated[
        str | None, typer.Option(envvar="TEAM_HOST", help="Address to listen on.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5555,
) -> int:
    """Be Flower on this deployment's broker, behind TEAM_FLOWER_USER and TEAM_FLOWER_PASSWORD."""
    settings = read_settings(host=host, port=port)
    checks.check_port(settings.host, settings.port)
    _become("config.flower", TEAM_HOST=settings.host, TEAM_PORT=str(settings.port))


@app.command()
@reported
def sessions(as_json: AsJson = False) -> int:
    """List every Session."""
    return inspection.sessions(read_settings(), as_json=as_json)


@app.command()
@reported
def show(session: SessionId, as_json: AsJson = False) -> int:
    """Show a Session and, for a Lead, its roster and board."""
    return inspection.show(read_settings(), session, as_json=as_json)


@app.command()
@reported
def send(
    session: SessionId,
    text: Annotated[str, typer.Argument(help="The message.")],
    steer: Annotated[
        bool, typer.Option(help="Deliver at the next step of a running turn instead of opening a turn of its own.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Send a message to a Session."""
    return inspection.send(read_settings(), session, text, steer=steer, as_json=as_json)


@app.command()
@reported
def interrupt(session: SessionId, as_json: AsJson = False) -> int:
    """End a Session's open turn; its queue stays, held until the next message."""
    return inspection.interrupt(read_settings(), session, as_json=as_json)


@app.command()
@reported
def fork(
    session: SessionId,
    model: Annotated[str | None, typer.Option(help="Model of the fork; default the Session's own.")] = None,
    as_json: AsJson = False,
) -> int:
    """Make a new root with the conversation of a Session's completed turns; its Team starts empty."""
    return inspection.fork(read_settings(), session, model, as_json=as_json)


@app.command()
@reported
def model(
    session: SessionId,
    name: Annotated[str, typer.Argument(help="Such as openai-chat:NAME.")],
    as_json: AsJson = False,
) -> int:
    """Choose the model of a Session's next requests."""
    return inspection.select_model(read_settings(), session, name, as_json=as_json)


@app.command()
@reported
def usage(session: SessionId, as_json: AsJson = False) -> int:
    """Show what each member of a Session's Team has used: tokens, turns, steps, tool time."""
    return usages.usage(read_settings(), session, as_json=as_json)


@app.command()
@reported
def close(
    team_id: Annotated[str, typer.Argument(metavar="TEAM", help="The Team: the Session id of its Lead.")],
    as_json: AsJson = False,
) -> int:
    """Close a Team: no new work, and every live turn of it is stopped. A prompt opens it again."""
    return inspection.close(read_settings(), team_id, as_json=as_json)


@app.command("import")
@reported
def import_(
    file: Annotated[Path, typer.Argument(help="What `team log --jsonl` wrote.")],
    as_json: AsJson = False,
) -> int:
    """Import exported Sessions, all of the file or nothing; open turns go on here."""
    return inspection.import_log(read_settings(), file, as_json=as_json)


@app.command()
@reported
def tool(
    team_id: Annotated[str, typer.Argument(metavar="TEAM", help="The Team: the Session id of its Lead.")],
    member: Annotated[str, typer.Argument(help="The member that acts: lead, or a teammate's name.")],
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Such as team_task_create or send_message.")],
    parameters: Annotated[str, typer.Argument(metavar="JSON", help="Its parameters as a JSON object.")] = "{}",
) -> int:
    """Run one Team tool as a member; print its result, or {"error": …} and exit 1."""
    return inspection.tool(read_settings(), team_id, member, name, parameters)


@app.command()
@reported
def invite(
    team_id: Annotated[str, typer.Argument(metavar="TEAM", help="The Team: the Session id of its Lead.")],
    name: Annotated[str, typer.Argument(help="The member's name; one that is there gets a new token.")],
    description: Annotated[str, typer.Argument(help="One line on what the member is for.")],
    as_json: AsJson = False,
) -> int:
    """Invite an outside agent as a member of a Team, and print its token once."""
    return invitations.invite(read_settings(), team_id, name, description, as_json=as_json)


@app.command()
@reported
def revoke(
    team_id: Annotated[str, typer.Argument(metavar="TEAM", help="The Team: the Session id of its Lead.")],
    name: Annotated[str, typer.Argument(help="The external member.")],
    as_json: AsJson = False,
) -> int:
    """End the invitation of an external member; it stays in the roster and cannot act."""
    return invitations.revoke(read_settings(), team_id, name, as_json=as_json)


@app.command()
@reported
def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve /mcp on loopback instead of standard input.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of --http.")] = 8766,
) -> int:
    """Be the MCP server of an external member, for an outside agent. TEAM_INVITE_TOKEN says which."""
    return invitations.serve(read_settings(), http_port=port if http else None)


@app.command()
@reported
def log(
    session: SessionId,
    after: Annotated[int, typer.Option(min=0, help="Only events with a greater number.")] = 0,
    as_jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Export the Session and its children: a header line, then events.")
    ] = False,
) -> int:
    """Print a Session's log."""
    return inspection.log(read_settings(), session, after=after, as_jsonl=as_jsonl)


@app.command()
@reported
def doctor(as_json: AsJson = False) -> int:
    """Check that the replay of every Session equals its projections; exit 1 when one differs."""
    return inspection.doctor(read_settings(), as_json=as_json)


def _staffed(workers: int) -> int:
    if workers < 1:
        raise ConfigurationInvalid("A run needs a worker; give --workers 1 or more.")
    return workers


def _become(module: str, **environment: str) -> NoReturn:
    """Replace this process by a module of the product; what a service manager signals is then that process itself."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module], {**os.environ, **environment})  # noqa: S606  # no shell wanted


def main() -> None:
    """Entry of the ``team`` command."""
    app()


if __name__ == "__main__":
    main()
