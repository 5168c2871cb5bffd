"""What the sources keep: who imports whom, where SQL and the environment are, no sleeping, short files."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.architecture import (
    MAX_LINES,
    MAX_TEST_LINES,
    MAY_IMPORT,
    ROOT,
    environment_faults,
    import_faults,
    length_faults,
    model_faults,
    needless_exceptions,
    package_of,
    place_faults,
    sleep_faults,
    statement_faults,
    tracked_files,
)

Rule = Callable[[str, str], list[str]]

OWN = ("tests/support/architecture.py", "tests/unit/test_architecture.py")
"""They hold what they look for."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "rule",
    [import_faults, model_faults, statement_faults, environment_faults, sleep_faults, length_faults],
    ids=lambda rule: rule.__name__,
)
def test_every_source_keeps_the_rule(rule: Rule) -> None:
    files = tracked_files(".py")
    assert len(files) > 50
    faults = [fault for path in files for fault in rule(path, read(path))]
    assert not faults, "\n".join(faults)


def test_no_tracked_file_names_a_machine_or_a_package_host() -> None:
    faults: list[str] = []
    for path in tracked_files():
        if path in OWN:
            continue
        try:
            faults += place_faults(path, read(path))
        except UnicodeDecodeError:
            continue
    assert not faults, "\n".join(faults)


def test_every_layer_is_there() -> None:
    layers = {package_of(path) for path in tracked_files(".py")}
    assert set(MAY_IMPORT) <= layers
    assert layers - set(MAY_IMPORT) <= {"team", "tests", "examples", "benchmarks"}


def test_no_exception_outlives_its_reason() -> None:
    assert needless_exceptions({path: read(path) for path in tracked_files(".py")}) == []
    assert "team/cli/main.py" in needless_exceptions({"team/cli/main.py": "pass"})


@pytest.mark.parametrize(
    ("rule", "path", "source", "fault"),
    [
        (import_faults, "team/model/x.py", "import team.log.tables", "imports team.log.tables"),
        (import_faults, "team/model/x.py", "from team import log", "imports team.log"),
        (import_faults, "team/model/x.py", "from config.settings import Settings", "imports config.settings.Settings"),
        (import_faults, "team/log/x.py", "from team.rules.turns import end", "imports team.rules.turns.end"),
        (import_faults, "team/log/x.py", "from ..rules import turns", "imports team.rules.turns"),
        (import_faults, "team/rules/x.py", "def f():\n    from team.service.store import Store", ":2 imports"),
        (import_faults, "team/service/x.py", "from team.tools import catalog", "imports team.tools.catalog"),
        (import_faults, "team/tools/x.py", "from team.dispatch.edges import E", "imports team.dispatch.edges.E"),
        (import_faults, "team/dispatch/x.py", "from team.tools import catalog", "imports team.tools.catalog"),
        (import_faults, "team/api/x.py", "from team.cli.main import main", "imports team.cli.main.main"),
        (import_faults, "team/cli/x.py", "import workers.app", "imports workers.app"),
        (import_faults, "workers/x.py", "from team.log import runs", "imports team.log.runs"),
        (import_faults, "workers/x.py", "import importlib\nimportlib.import_module('team.log')", ":2 imports team.log"),
        (import_faults, "config/x.py", "from team.log import runs", "imports team.log.runs"),
        (import_faults, "team/api/x.py", "from tests.support import core", "imports tests.support.core"),
        (model_faults, "team/model/x.py", "from sqlalchemy import Table", "imports sqlalchemy.Table"),
        (model_faults, "team/model/x.py", "import celery", "imports celery"),
        (model_faults, "team/model/x.py", "from fastapi import FastAPI", "imports fastapi.FastAPI"),
        (statement_faults, "team/service/x.py", "from sqlalchemy import select", "imports sqlalchemy.select"),
        (statement_faults, "team/rules/x.py", "from sqlmodel import update as u", "imports sqlmodel.update"),
        (statement_faults, "team/api/x.py", "import sqlalchemy\nsqlalchemy.text('SELECT 1')", ":2 writes a text"),
        (statement_faults, "team/api/x.py", "from sqlalchemy.sql import delete", "imports sqlalchemy.sql.delete"),
        (environment_faults, "team/service/x.py", "import os\nos.environ['A']", ":2 reads os.environ"),
        (environment_faults, "workers/x.py", "import os\nos.getenv('A')", ":2 reads os.getenv"),
        (environment_faults, "workers/x.py", "from os import environ as e", "imports os.environ"),
        (sleep_faults, "tests/unit/test_x.py", "import time\ntime.sleep(1)", ":2 sleeps"),
        (sleep_faults, "tests/unit/test_x.py", "from time import sleep", "imports time.sleep"),
        (length_faults, "team/x.py", "x = 1\n" * (MAX_LINES + 1), f"has {MAX_LINES + 1} lines"),
        (length_faults, "tests/x.py", "x = 1\n" * (MAX_TEST_LINES + 1), f"has {MAX_TEST_LINES + 1} lines"),
        (place_faults, "README.md", "cd /home/somebody/code", ":1 names a directory"),
        (place_faults, "docs/x.md", f"see {ROOT}/docs", ":1 names a directory"),
        (place_faults, "requirements.lock", "--index-url https://example.invalid", ":1 names a host"),
        (place_faults, "uv.lock", "https://files.pythonhosted.org/x", ":1 names a host"),
    ],
)
def test_each_rule_can_fail(rule: Rule, path: str, source: str, fault: str) -> None:
    assert [found for found in rule(path, source) if fault in found]


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (import_faults, "team/cli/x.py", "from team.model.errors import TeamError\nfrom config import settings"),
        (import_faults, "team/log/x.py", "from . import tables\nfrom team.model import fold"),
        (statement_faults, "team/log/x.py", "from sqlalchemy import select"),
        (statement_faults, "team/service/x.py", "from sqlalchemy import Connection"),
        (environment_faults, "config/x.py", "import os\nos.environ"),
        (sleep_faults, "tests/unit/test_x.py", "code = 'import time; time.sleep(600)'"),
        (length_faults, "team/x.py", "x = 1\n" * MAX_LINES),
        (place_faults, "docs/x.md", "mount it at /proc/self/root/etc, or ../home/x/y"),
    ],
)
def test_no_rule_forbids_what_is_fine(rule: Rule, path: str, source: str) -> None:
    assert rule(path, source) == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("team.model.fold", ("sqlalchemy", "sqlmodel", "celery", "fastapi", "team.log", "config")),
        ("workers.app", ("sqlalchemy", "sqlmodel", "fastapi", "team.log", "team.service")),
    ],
)
def test_what_a_process_really_loads(module: str, absent: tuple[str, ...]) -> None:
    """Also what an import brings along."""
    code = f"import {module}, sys; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    names = loaded.stdout.split("\n")
    assert module in names
    assert not set(absent) & set(names)
