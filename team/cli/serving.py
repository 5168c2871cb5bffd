"""Keeping an embedded stack up until somebody ends it."""

import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from config.secrets import take_provider_keys
from config.settings import Settings
from team.cli import checks
from team.cli.faults import DONE, StackBusy
from team.cli.places import data_dir_of, is_held, live_stack, workspace_of
from team.cli.running import preflight
from team.cli.signals import Interrupted, interruptible
from team.cli.stack import Stack, StackPlan
from team.cli.tokens import token_path

_PERIOD_SECONDS: Final = 0.5


def serve(settings: Settings, *, workers: int) -> int:
    """Run a stack for the workspace until SIGINT, SIGTERM or SIGHUP; a second signal kills what still stops.

    Raises:
        ConfigurationInvalid: The port is in use, or the configured broker or database does not answer.
        StackBusy: A stack runs on this data directory already.
    """
    console = Console(highlight=False)
    workspace = workspace_of(settings, Path.cwd())
    data_dir = data_dir_of(settings, workspace)
    if is_held(data_dir):
        record = live_stack(data_dir)
        if record is not None:
            raise StackBusy(
                f"A stack (process {record.pid}) serves {data_dir} already at {record.url}; use it, or stop it first."
            )
    checks.check_directory(workspace, workspace)
    checks.check_port("127.0.0.1", settings.port)
    preflight(settings)
    stack = Stack(
        StackPlan(
            settings=settings,
            data_dir=data_dir,
            workspace=workspace,
            owner="up",
            workers=workers,
            port=settings.port,
            keys=take_provider_keys(settings),
        ),
        lambda text: console.print(Text(text), soft_wrap=True),
    )
    with interruptible() as interruption:
        interruption.again = stack.escalate
        try:
            record = stack.start()
            for name, value in (
                ("coordinator", record.url),
                ("panel", f"{record.url}/ in a browser; it asks for the token"),
                ("workspace", str(workspace)),
                ("workers", f"{workers}, {settings.slots} slots each"),
                ("token", str(token_path(data_dir, "operator"))),
                ("logs", str(data_dir / "logs")),
            ):
                console.print(Text(f"{name:<12} {value}"), soft_wrap=True)
            console.print("Ctrl-C stops everything; again to stop at once.")
            while True:
                stack.check()
                time.sleep(_PERIOD_SECONDS)
        except Interrupted:
            console.print("stopping: workers finish their step")
        finally:
            stack.stop()
    return DONE
