"""Running and continuing a Team: find or start a coordinator, follow the work, tell what came of it."""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from config.models import check_model
from config.secrets import take_provider_keys
from config.settings import Settings
from team.cli import checks
from team.cli.client import Operator
from team.cli.faults import DONE, FAILED, StackBusy
from team.cli.follow import Follower, Outcome
from team.cli.places import Owner, data_dir_of, live_stack, remembered_workspace, workspace_of
from team.cli.rendering import Progress, print_outcome
from team.cli.signals import Interrupted, Interruption, interruptible
from team.cli.stack import Stack, StackPlan
from team.cli.tokens import token_path
from team.cli.views import is_busy
from team.model.errors import ConfigurationInvalid, RequestInvalid, TeamError


@dataclass(frozen=True)
class Link:
    """A coordinator to work with. ``data_dir`` is None when it is not on this machine's account."""

    operator: Operator
    data_dir: Path | None
    is_own: bool


@dataclass(frozen=True)
class RunOptions:
    """What ``team run`` and ``team resume`` were asked for. ``chosen_cwd`` is the directory as it was given, if any."""

    settings: Settings
    directory: Path
    workers: int
    limit_minutes: float | None
    report: Path | None
    as_json: bool
    chosen_cwd: Path | None = None

    @property
    def lead_directory(self) -> str:
        """Where the Lead starts, as its coordinator names it.

        A configured coordinator may have the checkout at another path: for it the directory is told relative to the
        workspace root, unless it was given.
        """
        settings = self.settings
        if settings.coordinator_url is None:
            return str(self.directory)
        if self.chosen_cwd is not None:
            return str(self.chosen_cwd)
        root = settings.workspace_root.expanduser().resolve()
        inside = "workspace_root" in settings.model_fields_set and self.directory.is_relative_to(root)
        return str(self.directory.relative_to(root)) if inside else "."


def remote(settings: Settings, data_dir: Path) -> Operator | None:
    """The configured coordinator, or None when none is configured.

    Raises:
        ConfigurationInvalid: It is configured without a token.
    """
    if settings.coordinator_url is None:
        return None
    token = settings.operator_token.get_secret_value() if settings.operator_token is not None else None
    if token is None and token_path(data_dir, "operator").exists():
        token = token_path(data_dir, "operator").read_text(encoding="utf-8").strip()
    if token is None:
        raise ConfigurationInvalid(
            f"TEAM_COORDINATOR_URL names {settings.coordinator_url}, but no token is set; set TEAM_OPERATOR_TOKEN."
        )
    return Operator(settings.coordinator_url, token)


def preflight(settings: Settings) -> None:
    """Check what was configured outside the embedded stack."""
    if settings.broker_url is not None:
        checks.check_broker(settings.broker_url)
    if settings.database_url is not None:
        checks.check_database(settings.database_url)


@contextmanager
def own_stack(
    settings: Settings,
    *,
    data_dir: Path,
    workspace: Path,
    owner: Owner,
    workers: int,
    keys: Mapping[str, str],
    interruption: Interruption,
    announce: Callable[[str], None],
) -> Generator[Link]:
    """A stack for as long as the block lasts; every way out stops all of it."""
    stack = Stack(
        StackPlan(
            settings=settings,
            data_dir=data_dir,
            workspace=workspace,
            owner=owner,
            workers=workers,
            port=settings.port if "port" in settings.model_fields_set else None,
            keys=keys,
        ),
        announce,
    )
    interruption.again = stack.escalate
    try:
        record = stack.start()
        with Operator(record.url, record.token, check=stack.check) as operator:
            yield Link(operator=operator, data_dir=data_dir, is_own=True)
    finally:
        stack.stop()


@contextmanager
def run_link(
    options: RunOptions,
    *,
    profile: str | None,
    model: str | None,
    is_new: bool,
    interruption: Interruption,
    announce: Callable[[str], None],
) -> Generator[Link]:
    """A coordinator with workers: the configured one, a live ``team up``, else a stack of our own."""
    settings = options.settings
    workspace = workspace_of(settings, options.directory)
    data_dir = data_dir_of(settings, workspace)
    operator = remote(settings, data_dir)
    if operator is not None:
        with operator:
            yield Link(operator=operator, data_dir=None, is_own=False)
        return
    record = live_stack(data_dir)
    if record is not None and record.owner == "run":
        raise StackBusy(
            f"Another `team run` (process {record.pid}) uses {data_dir}; wait for it, or keep a stack with `team up` "
            "that several runs share."
        )
    if record is not None:
        with Operator(record.url, record.token) as operator:
            yield Link(operator=operator, data_dir=data_dir, is_own=False)
        return
    keys = take_provider_keys(settings)
    if is_new:
        checks.check_directory(options.directory, workspace)
        chosen = checks.check_profile(profile or "", settings)
        check_model(model or chosen.model, settings, keys)
    else:
        checks.check_store(settings, workspace, data_dir)
        if "workspace_root" not in settings.model_fields_set:
            workspace = remembered_workspace(data_dir) or workspace
    preflight(settings)
    with own_stack(
        settings,
        data_dir=data_dir,
        workspace=workspace,
        owner="run",
        workers=options.workers,
        keys=keys,
        interruption=interruption,
        announce=announce,
    ) as link:
        yield link


def run_new(options: RunOptions, *, prompt: str, profile: str, model: str | None) -> int:
    """Create a Session with the prompt and follow its Team to the end. Returns the exit code."""

    def open_session(operator: Operator) -> str:
        return operator.create_session(cwd=options.lead_directory, profile=profile, model=model, prompt=prompt)

    return _run(options, open_session, profile=profile, model=model, is_new=True)


def run_again(options: RunOptions, *, session_id: str, prompt: str | None) -> int:
    """Follow an existing Team to the end, after one more prompt if there is one. Returns the exit code."""

    def open_session(operator: Operator) -> str:
        session = operator.session(session_id)
        if session.id != session.root_id:
            raise RequestInvalid(f"{session.id} belongs to the Team of {session.root_id}; resume that one.")
        if prompt is not None:
            operator.send(session.id, prompt)
        return session.id

    return _run(options, open_session, profile=None, model=None, is_new=False)


def _run(
    options: RunOptions,
    open_session: Callable[[Operator], str],
    *,
    profile: str | None,
    model: str | None,
    is_new: bool,
) -> int:
    console = Console(highlight=False)
    progress = Progress(console)

    def show(who: str, what: str) -> None:
        if not options.as_json:
            progress.show(who, what)

    session_id: str | None = None
    with interruptible() as interruption:
        try:
            with run_link(
                options,
                profile=profile,
                model=model,
                is_new=is_new,
                interruption=interruption,
                announce=lambda text: show("stack", text),
            ) as link:
                session_id = open_session(link.operator)
                show("stack", f"session {session_id} at {link.operator.url}")
                follower = Follower(link.operator, session_id, show)
                if not is_new:
                    follower.skip_past()
                outcome = follower.follow(None if options.limit_minutes is None else options.limit_minutes * 60)
                trouble = _conclude(link, outcome)
                log = f"`team log {session_id}`" + (f", in {link.data_dir}" if link.data_dir is not None else "")
        except Interrupted:
            return _interrupted(console, session_id, as_json=options.as_json)
    report = json.dumps({**outcome.to_json(), "dataDir": str(link.data_dir) if link.data_dir else None})
    if options.as_json:
        print(report)
    else:
        print_outcome(console, outcome, log)
        if not outcome.is_done:
            console.print(f"continue with: team resume {session_id} [PROMPT]", markup=False, soft_wrap=True)
    if options.report is not None:
        _write(options.report, report)
    if trouble is not None:
        raise trouble
    return DONE if outcome.is_done else FAILED


def _conclude(link: Link, outcome: Outcome) -> TeamError | None:
    """Close a Team whose work is over. At the limit, stop what would go on without us on somebody else's stack.

    Returns what went wrong: the outcome is told first.
    """
    try:
        if not outcome.reached_limit:
            link.operator.close_team(outcome.team.team_id)
        elif not link.is_own:
            for agent in (*outcome.team.members, *outcome.team.subagents):
                if is_busy(agent):
                    link.operator.interrupt(agent.session_id)
    except TeamError as error:
        return error
    return None


def _write(path: Path, report: str) -> None:
    try:
        path.write_text(report + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationInvalid(f"The report cannot be written to {path} ({error.strerror}).") from error


def _interrupted(console: Console, session_id: str | None, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"session": session_id, "status": "interrupted"}))
    elif session_id is None:
        console.print("interrupted before anything was started")
    else:
        console.print(f"interrupted; nothing is lost: team resume {session_id}", markup=False, soft_wrap=True)
    return FAILED
