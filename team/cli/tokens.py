"""Secrets of an embedded stack: its two bearer tokens, and the provider keys that only workers may hold."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from team.cli.places import write_private
from team.model.errors import ConfigurationInvalid
from team.model.ids import new_token

_KEY_SUFFIX: Final = "_API_KEY"
_PIPE_BYTES: Final = 60_000  # a pipe holds 64 KiB before a writer blocks


def is_provider_key(name: str) -> bool:
    """Whether an environment variable holds a provider's key."""
    return name.endswith(_KEY_SUFFIX)


def stored_token(data_dir: Path, kind: Literal["operator", "worker"]) -> str:
    """The token of this data directory, created at first use in a file that only its owner may read."""
    path = token_path(data_dir, kind)
    if not path.exists():
        write_private(path, new_token())
    return path.read_text(encoding="utf-8").strip()


def token_path(data_dir: Path, kind: Literal["operator", "worker"]) -> Path:
    """Where the token lies."""
    return data_dir / f"{kind}.token"


def keys_pipe(keys: Mapping[str, str]) -> int:
    """The read end of a pipe that holds ``NAME=VALUE`` lines; the caller closes it once a child has inherited it.

    Raises:
        ConfigurationInvalid: The keys do not fit into a pipe, or one holds a line break.
    """
    if any("\n" in value for value in keys.values()):
        raise ConfigurationInvalid("A provider key holds a line break; correct the *_API_KEY variable.")
    text = "".join(f"{name}={value}\n" for name, value in keys.items()).encode()
    if len(text) > _PIPE_BYTES:
        raise ConfigurationInvalid(f"The *_API_KEY variables hold more than {_PIPE_BYTES} bytes; unset some.")
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return reader
