"""Globs over relative paths."""

import re

import pytest

from team.model.errors import InvalidArgument
from workers.checkout.globs import glob_regex


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "d/e/a.py", True),
        ("**/*.py", "d/e/a.pyc", False),
        ("src/**", "src/a/b", True),
        ("src/**/b", "src/b", True),
        ("src/**/b", "src/x/y/b", True),
        ("src/**/b", "srcx/b", False),
        ("./src/?.c", "src/a.c", True),
        ("src/?.c", "src/ab.c", False),
        ("?", "/", False),
        ("*.{ts,tsx}", "a.tsx", True),
        ("*.{ts,tsx}", "a.js", False),
        ("{a,b/**/c}", "b/x/c", True),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[!ab].txt", "c.txt", True),
        ("a[]]b", "a]b", True),
        ("a+b(c).txt", "a+b(c).txt", True),
        (r"\*.txt", "*.txt", True),
        (r"\*.txt", "a.txt", False),
        ("a.txt", "aXtxt", False),
        ("a,b}", "a,b}", True),
    ],
)
def test_a_pattern_matches_whole_paths(pattern: str, path: str, matches: bool) -> None:
    assert bool(re.fullmatch(glob_regex(pattern), path)) is matches


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../b", "[ab", "{a,b", "[z-a]"])
def test_a_pattern_that_leaves_or_is_broken_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        glob_regex(pattern)
