"""The rules that the sources keep, each a function from a file's text to its faults."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_LOG: Final = frozenset({"config", "team.model", "team.log"})
_SERVICE: Final = _LOG | {"team.rules", "team.service"}
_API: Final = _SERVICE | {"team.dispatch", "team.tools", "team.api"}
MAY_IMPORT: Final = {
    "config": frozenset({"config", "team.model"}),
    "team.model": frozenset({"team.model"}),
    "team.log": _LOG,
    "team.rules": _LOG | {"team.rules"},
    "team.service": _SERVICE,
    "team.dispatch": _SERVICE | {"team.dispatch"},
    "team.tools": _SERVICE | {"team.tools"},
    "team.api": _API,
    "team.cli": _API | {"team.cli", "team"},
    "workers": frozenset({"workers", "config", "team.model"}),
}
"""model <- log <- rules <- service <- {dispatch, tools} <- api <- cli; workers know values and settings."""

STATEMENTS: Final = frozenset({"select", "insert", "update", "delete", "text"})

READS_ENVIRONMENT: Final = {
    "team/cli/main.py": "replaces itself by a process that inherits the environment",
    "team/cli/stack.py": "chooses what its child processes inherit",
    "workers/checkout/environment.py": "chooses what a command inherits",
    "examples/demo/run.py": "chooses what the command under demonstration inherits",
}
SLEEPS: Final = {
    "tests/support/waiting.py": "the one loop that waits for a predicate",
    "tests/support/fake_coordinator.py": "a fault that delays a response",
}

MAX_LINES: Final = 450
MAX_TEST_LINES: Final = 500

_MACHINE_PATH: Final = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/[\w.]")
_PACKAGE_HOST: Final = re.compile(
    r"pypi\.|pythonhosted|npmjs\.|crates\.io|artifactory|--(?:extra-)?index-url|--find-links|--trusted-host",
    re.IGNORECASE,
)


def tracked_files(*suffixes: str) -> list[str]:
    """The repository's own files, relative to its root; every file when no suffix is given."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("config", "team", "workers", "tests", "docs", "examples", "benchmarks")
        found = [file for folder in folders for file in (ROOT / folder).rglob("*")]
        names = [file.relative_to(ROOT).as_posix() for file in found if "__pycache__" not in file.parts]
    return sorted(name for name in names if (ROOT / name).is_file() and (not suffixes or name.endswith(suffixes)))


def package_of(path: str) -> str:
    """The layer that a file belongs to: ``team.log``, ``workers``, ``config``; another top folder by its name."""
    parts = path.split("/")
    return ".".join(parts[:2]) if parts[0] == "team" and len(parts) > 2 else parts[0]


def imported_modules(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands; ``from a import b`` is ``a.b``."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = path.removesuffix(".py").split("/")[:-level] if level else []
                prefix = ".".join([*base, *([module] if module else [])])
                yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name
            case _:
                pass


def import_faults(path: str, source: str) -> list[str]:
    """Imports that run upwards between the layers."""
    allowed = MAY_IMPORT.get(package_of(path))
    if allowed is None:
        return []
    faults: list[str] = []
    for line, module in imported_modules(path, source):
        top = module.split(".")[0]
        layer = ".".join(module.split(".")[:2]) if top == "team" else top
        if top in ("team", "workers", "config", "tests") and layer not in allowed:
            faults.append(f"{path}:{line} imports {module}")
    return faults


def model_faults(path: str, source: str) -> list[str]:
    """Libraries in the pure part: besides the standard library only pydantic."""
    if package_of(path) != "team.model":
        return []
    known = {*sys.stdlib_module_names, "pydantic", "team"}
    return [
        f"{path}:{line} imports {module}"
        for line, module in imported_modules(path, source)
        if module.split(".")[0] not in known
    ]


def statement_faults(path: str, source: str) -> list[str]:
    """SQL statements outside the log."""
    if path.startswith(("team/log/", "tests/")):
        return []
    faults = [
        f"{path}:{line} imports {module}"
        for line, module in imported_modules(path, source)
        if module.split(".")[0] in ("sqlalchemy", "sqlmodel") and module.split(".")[-1] in STATEMENTS
    ]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="sqlalchemy" | "sqlmodel" | "sa"), attr=name) if name in STATEMENTS:
                faults.append(f"{path}:{node.lineno} writes a {name} statement")
            case _:
                pass
    return faults


def environment_faults(path: str, source: str) -> list[str]:
    """Reads of the environment outside config and the files that build a child's."""
    if path.startswith(("config/", "tests/")) or path in READS_ENVIRONMENT:
        return []
    return _environment_uses(path, source)


def _environment_uses(path: str, source: str) -> list[str]:
    names = {"environ", "environb", "getenv", "getenvb"}
    faults: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                faults.append(f"{path}:{node.lineno} reads os.{name}")
            case ast.ImportFrom(module="os", names=imported):
                faults += [f"{path}:{node.lineno} imports os.{a.name}" for a in imported if a.name in names]
            case _:
                pass
    return faults


def sleep_faults(path: str, source: str) -> list[str]:
    """Waiting for time to pass in a test."""
    return [] if not path.startswith("tests/") or path in SLEEPS else _sleeps(path, source)


def _sleeps(path: str, source: str) -> list[str]:
    faults: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                faults.append(f"{path}:{node.lineno} sleeps")
            case ast.ImportFrom(module="time", names=imported) if any(alias.name == "sleep" for alias in imported):
                faults.append(f"{path}:{node.lineno} imports time.sleep")
            case _:
                pass
    return faults


def needless_exceptions(read: dict[str, str]) -> list[str]:
    """Exceptions whose file is gone or does no longer what it was excepted for; ``read`` maps files to texts."""
    uses = {**dict.fromkeys(READS_ENVIRONMENT, _environment_uses), **dict.fromkeys(SLEEPS, _sleeps)}
    return [path for path, find in uses.items() if not find(path, read.get(path, ""))]


def length_faults(path: str, source: str) -> list[str]:
    limit = MAX_TEST_LINES if path.startswith("tests/") else MAX_LINES
    lines = len(source.splitlines())
    return [f"{path} has {lines} lines; split it along its subjects"] if lines > limit else []


def place_faults(path: str, source: str) -> list[str]:
    """Directories of one machine and hosts of package registries."""
    faults: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        if _MACHINE_PATH.search(line) or f"{ROOT}/" in line:
            faults.append(f"{path}:{number} names a directory of one machine")
        if _PACKAGE_HOST.search(line):
            faults.append(f"{path}:{number} names a host of packages")
    return faults
