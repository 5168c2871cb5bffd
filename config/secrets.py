"""Provider keys of a worker: read once, then gone from where a child process could see them."""

import os
import re
from pathlib import Path

from config.settings import Settings
from team.model.errors import ConfigurationInvalid

_PROVIDER_KEY = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")
_PROVIDER_PLACE = re.compile(r"[A-Z][A-Z0-9_]*_BASE_URL|OPENAI_(?:ORG|PROJECT)_ID")
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_OWN = ("TEAM_WORKER_TOKEN", "TEAM_OPERATOR_TOKEN", "TEAM_BROKER_URL", "TEAM_DATABASE_URL")
_CREDENTIALS = (*_OWN, "ANTHROPIC_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def take_provider_keys(settings: Settings) -> dict[str, str]:
    """Provider keys by variable name, such as OPENAI_API_KEY, with the ``*_BASE_URL`` of the environment.

    Keys come from ``provider_keys_file`` (NAME=VALUE lines; a pipe is read to its end once), else from this process's
    ``*_API_KEY`` variables. Afterwards the environment holds no such key and no credential of the deployment, so
    that no child process inherits one. A second call finds nothing in the environment.

    Raises:
        ConfigurationInvalid: The file cannot be read, or a line is not NAME=VALUE.
    """
    places = {name: value for name, value in os.environ.items() if _PROVIDER_PLACE.fullmatch(name) and value}
    keys = {name: value for name, value in os.environ.items() if _PROVIDER_KEY.fullmatch(name) and value}
    for name in [*os.environ]:
        if _PROVIDER_KEY.fullmatch(name) or name in _CREDENTIALS:
            del os.environ[name]
    if settings.provider_keys_file is not None:
        keys = _read(settings.provider_keys_file)
    return {**places, **keys}


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "cannot be opened") if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigurationInvalid(f"TEAM_PROVIDER_KEYS_FILE {path} cannot be read ({reason})") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            # The line itself may be a key: it is never shown.
            raise ConfigurationInvalid(f"line {number} of TEAM_PROVIDER_KEYS_FILE {path} is not NAME=VALUE")
        value = match[2].strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if value:
            keys[match[1]] = value
    return keys
