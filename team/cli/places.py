"""Where an embedded stack lives: its workspace, its data directory, its lock and its record."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from config.settings import Settings
from team.cli.faults import StackBusy
from team.model.errors import ConfigurationInvalid
from team.model.events import first_fault

Owner = Literal["up", "run", "inspect"]

_RECORD: Final = "stack.json"
_LOCK: Final = "stack.lock"
_WORKSPACE: Final = "workspace"
_STARTING_SECONDS: Final = 20.0
_PROBE_SECONDS: Final = 1.0


class StackRecord(BaseModel):
    """What a live stack tells other commands of the same data directory. Holds the operator token: mode 0600."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    pid: int
    owner: Owner
    url: str
    token: str
    workspace: str
    children: dict[str, int]


def read_settings(**overrides: object) -> Settings:
    """The settings of this process with options of the command line on top; None leaves a setting alone.

    Raises:
        ConfigurationInvalid: A variable or an option has a value that its setting refuses.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**cast("dict[str, Any]", given))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        name = str(fault["loc"][0]) if fault["loc"] else "settings"
        raise ConfigurationInvalid(
            f"TEAM_{name.upper()} is not usable: {fault['msg']}. Correct the variable or the option and try again."
        ) from error


def workspace_of(settings: Settings, directory: Path) -> Path:
    """The configured workspace root, else the Git top level of ``directory``, else ``directory`` itself."""
    if "workspace_root" in settings.model_fields_set:
        return settings.workspace_root.expanduser().resolve()
    if not directory.is_dir():
        return directory.resolve()
    found = (
        subprocess.run(  # noqa: S603  # fixed arguments
            ["git", "-C", str(directory), "rev-parse", "--show-toplevel"],  # noqa: S607  # git is found on the PATH
            capture_output=True,
            text=True,
            check=False,
        )
        if _has_git()
        else None
    )
    if found is not None and found.returncode == 0 and found.stdout.strip():
        return Path(found.stdout.rstrip("\n")).resolve()
    return directory.resolve()


def _has_git() -> bool:
    return any((Path(place) / "git").exists() for place in os.get_exec_path())


def data_dir_of(settings: Settings, workspace: Path) -> Path:
    """The configured data directory, else one of its own for each workspace under the default place."""
    if "data_dir" in settings.model_fields_set:
        return settings.data_dir.expanduser().resolve()
    digest = hashlib.sha256(str(workspace).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", workspace.name)[:40] or "root"
    return settings.data_dir.expanduser().resolve() / "workspaces" / f"{name}-{digest}"


def prepare(data_dir: Path) -> None:
    """Create the data directory for its owner alone.

    Raises:
        ConfigurationInvalid: It cannot be created or written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (data_dir / "logs").mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigurationInvalid(
            f"The data directory {data_dir} cannot be used ({error.strerror}); set TEAM_DATA_DIR to a writable one."
        ) from error


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner may read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    draft.replace(path)


def remember_workspace(data_dir: Path, workspace: Path) -> None:
    """Note which workspace the Sessions of this data directory use."""
    write_private(data_dir / _WORKSPACE, str(workspace))


def remembered_workspace(data_dir: Path) -> Path | None:
    """The workspace of the newest stack on this data directory, if there was one."""
    try:
        return Path((data_dir / _WORKSPACE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def publish(data_dir: Path, record: StackRecord) -> None:
    """Write the record of a stack that is ready."""
    write_private(data_dir / _RECORD, json.dumps(record.model_dump(by_alias=True)))


def withdraw(data_dir: Path) -> None:
    """Remove the record of a stack that stops."""
    (data_dir / _RECORD).unlink(missing_ok=True)


@contextlib.contextmanager
def stack_lock(data_dir: Path) -> Generator[None]:
    """Hold the data directory for one stack; the kernel frees it however this process ends.

    Raises:
        StackBusy: Another stack holds it.
    """
    descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _locked(descriptor):
            raise StackBusy(
                f"Another team stack runs on {data_dir}; stop it, or set TEAM_DATA_DIR to another directory."
            )
        # A record that is left here belongs to a stack that was killed.
        withdraw(data_dir)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock. A command that only looks whether it is free holds it for an instant: wait that out."""
    end = time.monotonic() + _PROBE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        else:
            return True


def is_held(data_dir: Path) -> bool:
    """Whether a stack runs, or is starting, on the data directory."""
    try:
        descriptor = os.open(data_dir / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared: two commands that look at the same moment do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def live_stack(data_dir: Path) -> StackRecord | None:
    """The record of the stack that runs on the data directory, or None when none runs.

    One that is just starting is waited for, and so is the end of one that only serves an inspecting command.

    Raises:
        StackBusy: One holds the directory but never became ready.
    """
    end = time.monotonic() + _STARTING_SECONDS
    while is_held(data_dir):
        record = _record(data_dir)
        if record is not None and record.owner != "inspect":
            return record
        if time.monotonic() > end:
            raise StackBusy(f"A stack holds {data_dir} but is not ready; look into {data_dir / 'logs'} or stop it.")
        time.sleep(0.05)
    return None


def _record(data_dir: Path) -> StackRecord | None:
    try:
        return StackRecord.model_validate_json((data_dir / _RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigurationInvalid(f"{data_dir / _RECORD} is damaged ({first_fault(error)}); remove it.") from error
