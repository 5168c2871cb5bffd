"""Commands that look at Sessions or act on them, on whatever coordinator there is."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from rich.console import Console
from rich.text import Text

from config.models import resolve_model
from config.settings import Settings
from team.cli.checks import check_store
from team.cli.client import Operator
from team.cli.faults import DONE, FAILED
from team.cli.lines import plain, progress_line
from team.cli.places import data_dir_of, live_stack, remembered_workspace, workspace_of
from team.cli.rendering import print_doctor, print_session, print_team, sessions_table
from team.cli.running import own_stack, preflight, remote
from team.cli.signals import interruptible
from team.cli.views import unserved_queues
from team.model.errors import RequestInvalid
from team.model.values import decode_json
from team.model.views import EventFaultView

_WAIT_MARGIN_SECONDS: Final = 30.0
_DEFAULT_WAIT_MS: Final = 30_000


@contextmanager
def connected(settings: Settings) -> Generator[Operator]:
    """A coordinator: the configured one, a live stack, else one that is started for this command, without workers.

    Raises:
        ConfigurationInvalid: Nothing has been stored yet, so there is nothing to look at.
    """
    workspace = workspace_of(settings, Path.cwd())
    data_dir = data_dir_of(settings, workspace)
    operator = remote(settings, data_dir)
    if operator is None:
        record = live_stack(data_dir)
        operator = Operator(record.url, record.token) if record is not None else None
    if operator is not None:
        with operator:
            yield operator
        return
    check_store(settings, workspace, data_dir)
    preflight(settings)
    with (
        interruptible() as interruption,
        own_stack(
            settings,
            data_dir=data_dir,
            workspace=remembered_workspace(data_dir) or workspace,
            owner="inspect",
            workers=0,
            keys={},
            interruption=interruption,
            announce=lambda _: None,
        ) as link,
    ):
        yield link.operator


def sessions(settings: Settings, *, as_json: bool) -> int:
    """List every Session."""
    with connected(settings) as operator:
        found = operator.sessions()
    if as_json:
        print(json.dumps({"sessions": [session.to_wire() for session in found]}))
    else:
        Console(highlight=False).print(sessions_table(found))
    return DONE


def show(settings: Settings, session_id: str, *, as_json: bool) -> int:
    """Show a Session; for a root its Team too."""
    with connected(settings) as operator:
        session = operator.session(session_id)
        team = operator.team(session.id) if session.id == session.root_id else None
        workers = operator.workers()
    if as_json:
        print(json.dumps({"session": session.to_wire(), "team": team.to_wire() if team is not None else None}))
        return DONE
    console = Console(highlight=False)
    print_session(console, session)
    if team is not None:
        console.print()
        print_team(console, team)
    agents = [session, *((*team.members, *team.subagents) if team is not None else ())]
    for queue in unserved_queues(agents, workers):
        console.print(f"No worker serves the queue {queue}: start one with `team worker --queues {queue}`.")
    return DONE


def send(settings: Settings, session_id: str, text: str, *, steer: bool, as_json: bool) -> int:
    """Put a message into a Session's inbox."""
    with connected(settings) as operator:
        receipt = operator.send(session_id, text, "steer" if steer else "turn")
        staffed = bool(operator.workers())
    if as_json:
        print(json.dumps(receipt))
    else:
        note = "" if staffed else "; no worker runs: `team up` or `team resume` will take it"
        print(f"accepted as {receipt.get('messageId')}{note}")
    return DONE


def interrupt(settings: Settings, session_id: str, *, as_json: bool) -> int:
    """End a Session's open turn."""
    with connected(settings) as operator:
        answer = operator.interrupt(session_id)
    print(json.dumps(answer) if as_json else f"was {answer.get('previousStatus')}")
    return DONE


def fork(settings: Settings, session_id: str, model: str | None, *, as_json: bool) -> int:
    """Make a new root with the conversation of a Session's completed turns."""
    chosen = None if model is None else resolve_model(model)
    with connected(settings) as operator:
        forked = operator.fork(session_id, chosen)
    print(json.dumps({"id": forked}) if as_json else forked)
    return DONE


def select_model(settings: Settings, session_id: str, model: str, *, as_json: bool) -> int:
    """Choose the model of a Session's next requests."""
    with connected(settings) as operator:
        view = operator.select_model(session_id, resolve_model(model))
    print(json.dumps(view.to_wire()) if as_json else f"{session_id} uses {view.model} from its next request on")
    return DONE


def close(settings: Settings, team_id: str, *, as_json: bool) -> int:
    """Close admission to a Team and stop every live turn of it."""
    with connected(settings) as operator:
        answer = operator.close_team(team_id)
    stopped = ", ".join(answer.get("interrupted", [])) or "nobody was running"
    print(json.dumps(answer) if as_json else f"closed; interrupted: {stopped}")
    if not as_json:
        for session_id, fault in answer.get("unreadable", {}).items():
            print(plain(f"not stopped: {session_id}, {fault}"))
    return DONE


def import_log(settings: Settings, path: Path, *, as_json: bool) -> int:
    """Import exported Session trees, all of the file or nothing."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestInvalid(f"{path} cannot be read: {error.strerror}.") from error
    with connected(settings) as operator:
        answer = operator.import_log(content)
    print(json.dumps(answer) if as_json else f"imported {len(answer['sessions'])} Sessions, {answer['events']} events")
    return DONE


def tool(settings: Settings, team_id: str, member: str, name: str, parameters: str) -> int:
    """Run one tool as a member; print its result, or its error, as JSON."""
    try:
        decoded = decode_json(parameters)
    except ValueError as error:
        raise RequestInvalid(f"The parameters are not usable JSON ({error}); give an object such as '{{}}'.") from error
    if not isinstance(decoded, dict):
        raise RequestInvalid('The parameters must be a JSON object, such as \'{"task_id": "task-1"}\'.')
    given = cast("dict[str, Any]", decoded)
    timeout = given.get("timeout_ms", _DEFAULT_WAIT_MS)
    wait_ms = timeout if isinstance(timeout, int) else _DEFAULT_WAIT_MS
    with connected(settings) as operator:
        answer = operator.tool(team_id, member, name, given, wait=wait_ms / 1000 + _WAIT_MARGIN_SECONDS)
    if "error" in answer.body:
        print(json.dumps({"error": answer.body["error"]}))
        return FAILED
    print(json.dumps(answer.body.get("result")))
    return DONE


def log(settings: Settings, session_id: str, *, after: int, as_jsonl: bool) -> int:
    """Print a Session's log: readable lines, or the export of its whole tree."""
    with connected(settings) as operator:
        if as_jsonl:
            for line in operator.export(session_id):
                print(line)
            return DONE
        session = operator.session(session_id)
        members = operator.team(session.root_id).members
        names = {str(member.session_id): member.target for member in members}
        console = Console(highlight=False)
        for event in operator.records(session.id, after):
            if isinstance(event, EventFaultView):
                console.print(Text(f"{event.seq:>6} cannot be read: {event.fault}", style="red"), soft_wrap=True)
                continue
            line = Text(f"{event.seq:>6} {event.time[11:23]} ", style="dim")
            line.append(f"{event.type:<22} ")
            line.append(progress_line(event, names) or plain(json.dumps(event.data), 90), style="default")
            console.print(line, soft_wrap=True)
    return DONE


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Compare the replay of every Session with the projections; 1 when one differs."""
    with connected(settings) as operator:
        report = operator.doctor()
    if as_json:
        print(json.dumps(report.to_wire()))
    else:
        print_doctor(Console(highlight=False), report)
    return DONE if report.ok else FAILED
