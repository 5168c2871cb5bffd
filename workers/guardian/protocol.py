"""What worker, guard and shepherd tell each other: JSON over Unix sockets, descriptors beside it."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, cast

CONTROL_BYTES: Final = 4096
"""Longest message of the control socket; one message is one packet."""

LARGEST_SPEC: Final = 4 * 1024 * 1024

State = Literal["exited", "timed-out", "stopped", "lease", "too-many", "refused", "failed"]
"""How a command ended. ``stopped``: cancelled, its turn ended, or worker or guard went away. ``lease``: its turn's
lease was not renewed in time. ``refused``: not started, for want of a valid lease. ``failed``: it could not be
started."""


Confinement = Literal["none", "user-namespace", "root"]
"""Whether the program is bubblewrap, which starts the command proper in a PID namespace. As ``root`` it needs this
process's capabilities, and takes them from the command itself."""


class Selection(NamedTuple):
    """Keep only some records of the standard output, instead of its head and tail.

    A record ends with ``separator``; its path ends with ``path_end``, or is all of it when that is empty. Records
    whose path does not match ``pattern`` (a regular expression over the whole path) are dropped; of the others the
    first ``records`` are kept, at most ``size`` bytes of them, and all are counted.
    """

    separator: str
    path_end: str
    pattern: str | None
    records: int
    size: int


class CommandSpec(NamedTuple):
    """One command: the path of a program and its arguments, its shown name first. Times are seconds, sizes bytes.

    Its standard output and error are one stream, unless ``selection`` is set. Of the stream ``head`` and ``tail``
    bytes are kept; a longer one is written whole, up to ``spill_bytes``, to the file ``spill`` (path components
    below the directory ``spill_root``); with ``spill_at_once`` each one is, as it comes. With ``track_directory`` the
    command reports its last directory on the descriptor ``DIRECTORY_FD``.
    """

    program: str
    argv: list[str]
    environment: dict[str, str]
    timeout: float
    head: int
    tail: int
    spill_root: str | None = None
    spill: list[str] | None = None
    spill_bytes: int = 0
    spill_at_once: bool = False
    track_directory: bool = False
    selection: Selection | None = None
    confinement: Confinement = "none"


DIRECTORY_FD: Final = 237
"""High, so that a script's own redirections (3, 9, 10 to 63, 200) do not meet it."""


class CommandReport(NamedTuple):
    """What became of a command.

    ``code`` is the exit code, or the negative number of the signal that ended it. ``head`` is all output unless
    ``tail`` is set; ``total`` counts its true bytes. ``left`` names processes that the command left behind, which
    were ended; ``immortal`` counts those that could not be.
    """

    state: State
    code: int | None = None
    head: str = ""
    tail: str | None = None
    total: int = 0
    spill: str | None = None
    spilled: int = 0
    errors: str = ""
    directory: str | None = None
    left: list[str] | None = None
    immortal: int = 0
    records: list[str] | None = None
    matched: int = 0
    detail: str = ""


def encode_spec(spec: CommandSpec) -> bytes:
    """Length-prefixed JSON. Raises ValueError beyond ``LARGEST_SPEC``."""
    data = spec._asdict()
    data["selection"] = spec.selection._asdict() if spec.selection else None
    body = json.dumps(data).encode()
    if len(body) > LARGEST_SPEC:
        raise ValueError("the command is too long")
    return struct.pack("!I", len(body)) + body


def receive_spec(connection: socket.socket) -> CommandSpec | None:
    """The spec that the worker sends first, or None when it went away instead."""
    prefix = _exactly(connection, 4)
    if prefix is None:
        return None
    (length,) = struct.unpack("!I", prefix)
    body = _exactly(connection, length)
    if body is None:
        return None
    data = cast("dict[str, Any]", json.loads(body))
    selection = cast("dict[str, Any] | None", data.pop("selection"))
    return CommandSpec(**data, selection=Selection(**selection) if selection else None)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 65_536))
        if not part:
            return None
        parts += part
    return bytes(parts)


def encode_report(report: CommandReport) -> bytes:
    """One line of JSON; the newline says that it is complete."""
    return json.dumps(report._asdict()).encode() + b"\n"


def decode_report(data: bytes) -> CommandReport | None:
    """The report, or None when the shepherd ended before it had sent it whole."""
    if not data.endswith(b"\n"):
        return None
    return CommandReport(**cast("dict[str, Any]", json.loads(data)))


def encode_control(message: Mapping[str, str | float]) -> bytes:
    """One packet. Raises ValueError when it does not fit."""
    packet = json.dumps(message).encode()
    if len(packet) > CONTROL_BYTES:
        raise ValueError("an id is too long for the guard")
    return packet


def decode_control(packet: bytes) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(packet))
