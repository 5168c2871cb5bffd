"""The environment of commands: an allow-list, so that no secret of the worker is in it, whatever its name."""

import os
from collections.abc import Mapping
from typing import Final

INHERITED: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "GIT_AUTHOR_EMAIL",
        "GIT_AUTHOR_NAME",
        "GIT_COMMITTER_EMAIL",
        "GIT_COMMITTER_NAME",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    }
)
"""Inherited by name, besides LC_*: where programs and certificates are, who commits, language and time zone.

Proxies are not: their URLs may hold credentials.
"""

FIXED: Final[Mapping[str, str]] = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""Nobody sits at a terminal: no colours, no pager, no prompt."""

DEFAULTS: Final[Mapping[str, str]] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/"}


def command_environment(cwd: str, source: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command that starts in ``cwd`` gets of ``source``, the worker's own environment by default."""
    # Here the child's environment is built, which needs the worker's own.
    source = os.environ if source is None else source
    inherited = {name: value for name, value in source.items() if name in INHERITED or name.startswith("LC_")}
    return {**DEFAULTS, **inherited, **FIXED, "PWD": cwd}
