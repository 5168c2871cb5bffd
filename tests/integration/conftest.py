"""The core over both databases."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import Core
from tests.support.invariants import assert_sound

MakeCore = Callable[..., Core]


@pytest.fixture
def make_core(database_url: str, tmp_path: Path) -> Iterator[MakeCore]:
    """Makes the core with chosen settings; what a test leaves behind must be sound."""
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        made.append(Core(database_url, tmp_path / "checkout", **settings))
        return made[-1]

    yield make
    for core in made:
        try:
            assert_sound(core)
        finally:
            core.close()


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    return make_core()
