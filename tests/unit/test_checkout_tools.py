"""The face of the local tools: arguments, error results, and the judgement of calls that a lost worker left."""

import json
from pathlib import Path

import pytest

from team.model.claims import PendingCall
from team.model.errors import ConfigurationInvalid, TeamError, WorkspaceMismatch, error_from
from team.model.tools import LOCAL_PARAMETERS
from tests.support.checkout import error_of, file_desk, run
from workers.checkout import Guard, LocalTools, prove_workspace
from workers.checkout import errors as errors_module
from workers.checkout.environment import command_environment
from workers.checkout.storage import version_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "arguments", "code", "part"),
    [
        ("read", "{", "TEAM_INVALID_ARGUMENT", "not valid JSON"),
        ("read", '{"path": "f"', "TEAM_INVALID_ARGUMENT", "not valid JSON"),
        ("read", "[]", "TEAM_INVALID_ARGUMENT", "read"),
        ("read", "null", "TEAM_INVALID_ARGUMENT", "read"),
        ("read", "{}", "TEAM_INVALID_ARGUMENT", "path"),
        ("read", '{"path": 1}', "TEAM_INVALID_ARGUMENT", "path"),
        ("read", '{"path": ""}', "TEAM_INVALID_ARGUMENT", "path"),
        ("read", '{"path": "f", "offset": 0}', "TEAM_INVALID_ARGUMENT", "offset"),
        ("read", '{"path": "f", "offset": true}', "TEAM_INVALID_ARGUMENT", "offset"),
        ("read", '{"path": "f", "limit": 5001}', "TEAM_INVALID_ARGUMENT", "limit"),
        ("read", '{"path": "f", "extra": 1}', "TEAM_INVALID_ARGUMENT", "extra"),
        ("read", '{"path": "a\\u0000b"}', "TEAM_INVALID_ARGUMENT", "NUL"),
        ("read", '{"path": "\\ud800"}', "TEAM_INVALID_ARGUMENT", "surrogate"),
        ("write", '{"path": "f", "content": NaN}', "TEAM_INVALID_ARGUMENT", "NaN"),
        ("bash", '{"command": "true", "timeout_ms": 999}', "TEAM_INVALID_ARGUMENT", "timeout_ms"),
        ("bash", '{"command": ""}', "TEAM_INVALID_ARGUMENT", "command"),
        ("bash", json.dumps({"command": "x" * 130_000}), "TEAM_INVALID_ARGUMENT", "longer than"),
        ("glob", '{"pattern": "../*"}', "TEAM_INVALID_ARGUMENT", "relative"),
        ("glob", '{"pattern": "*", "path": "absent"}', "FS_NOT_FOUND", "absent"),
        ("grep", '{"pattern": "x", "path": "/etc"}', "FS_OUTSIDE_WORKSPACE", "/etc"),
        ("grep", '{"pattern": "x", "glob": "[a"}', "TEAM_INVALID_ARGUMENT", "not closed"),
        ("dance", "{}", "TOOL_UNKNOWN", "read, write, edit, glob, grep, bash"),
    ],
)
def test_a_bad_call_is_a_compact_error_result(root: Path, name: str, arguments: str, code: str, part: str) -> None:
    async def work() -> None:
        desk = file_desk(root)
        result = await desk.tools.run(name, arguments, desk)
        assert result.outcome == "error"
        assert error_of(result)[0] == code
        assert part in error_of(result)[1]
        assert result.content == json.dumps(json.loads(result.content), ensure_ascii=False, separators=(",", ":"))

    run(work())


def test_every_local_tool_is_served(root: Path) -> None:
    async def work() -> None:
        desk = file_desk(root)
        for name in LOCAL_PARAMETERS:
            code, _ = error_of(await desk.tools.run(name, "{}", desk))
            assert code == "TEAM_INVALID_ARGUMENT", name

    run(work())


def test_a_root_that_is_no_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="cannot be opened"):
        LocalTools(tmp_path / "absent", output_bytes=1000, guard=Guard())


def test_every_error_of_the_checkout_survives_the_wire() -> None:
    kinds = [kind for kind in vars(errors_module).values() if isinstance(kind, type) and issubclass(kind, TeamError)]
    assert len(kinds) > 8
    for kind in kinds:
        if kind is not TeamError:
            assert isinstance(error_from(kind.code, "text"), kind)


def pending(name: str, before: str | None = None, after: str | None = None, path: str | None = None) -> PendingCall:
    return PendingCall(
        step=1,
        index=0,
        call_id="c",
        name=name,
        arguments="{}",
        intent_path=path,
        intent_before=before,
        intent_after=after,
    )


OLD, NEW = version_of(b"old"), version_of(b"new")


def test_a_replace_that_happened_is_recovered_as_done(root: Path) -> None:
    (root / "f").write_text("new")
    result = file_desk(root).tools.recover(pending("write", OLD, NEW, "f"))
    assert result.outcome == "ok"
    assert [(item.path, item.version) for item in result.observed] == [("f", NEW)]


@pytest.mark.parametrize(("content", "before"), [("old", OLD), (None, None)])
def test_a_replace_that_did_not_happen_is_recovered_as_that(
    root: Path, content: str | None, before: str | None
) -> None:
    if content:
        (root / "f").write_text(content)
    result = file_desk(root).tools.recover(pending("edit", before, NEW, "f"))
    assert result.outcome == "error"
    assert error_of(result)[0] == "CALL_INTERRUPTED"
    assert "as it was" in error_of(result)[1]
    assert [(item.path, item.version) for item in result.observed] == [("f", before)]


@pytest.mark.parametrize("content", ["third", None])
def test_a_file_that_went_on_leaves_the_outcome_unknown(root: Path, content: str | None) -> None:
    if content:
        (root / "f").write_text(content)
    result = file_desk(root).tools.recover(pending("write", OLD, NEW, "f"))
    assert (result.outcome, error_of(result)[0], result.observed) == ("unknown", "CALL_OUTCOME_UNKNOWN", ())


def test_a_file_that_cannot_be_looked_at_leaves_the_outcome_unknown(root: Path) -> None:
    (root / "f").symlink_to("/etc/passwd")
    result = file_desk(root).tools.recover(pending("write", OLD, NEW, "f"))
    assert (result.outcome, error_of(result)[0]) == ("unknown", "CALL_OUTCOME_UNKNOWN")


@pytest.mark.parametrize("name", ["read", "glob", "grep", "write", "edit"])
def test_a_call_without_an_intent_changed_nothing(root: Path, name: str) -> None:
    result = file_desk(root).tools.recover(pending(name))
    assert (result.outcome, error_of(result)[0]) == ("error", "CALL_INTERRUPTED")


def test_a_command_has_an_unknown_outcome(root: Path) -> None:
    result = file_desk(root).tools.recover(pending("bash"))
    assert (result.outcome, error_of(result)[0]) == ("unknown", "CALL_OUTCOME_UNKNOWN")


def test_the_workspace_is_proved_by_its_id(root: Path) -> None:
    with pytest.raises(WorkspaceMismatch, match=r"cannot read .*workspace-id \(No such file or directory\)"):
        prove_workspace(root, "w-1")
    (root / ".team").mkdir()
    (root / ".team" / "workspace-id").write_text("w-2\n")
    with pytest.raises(WorkspaceMismatch, match="holds 'w-2', not 'w-1'"):
        prove_workspace(root, "w-1")
    prove_workspace(root, "w-2")
    (root / ".team" / "workspace-id").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkspaceMismatch, match="it is not text"):
        prove_workspace(root, "w-2")


def test_b04_the_environment_of_commands_is_an_allow_list() -> None:
    source = {
        "PATH": "/bin",
        "LC_TIME": "C",
        "OPENAI_API_KEY": "k",
        "X_0": "k",
        "TEAM_BROKER_URL": "k",
        "https_proxy": "http://user:k@proxy",
        "PYTHONPATH": "k",
        "LD_PRELOAD": "k",
        "BASH_ENV": "k",
        "GIT_AUTHOR_NAME": "Ada",
    }
    environment = command_environment("/work", source)
    assert "k" not in environment.values()
    assert set(environment) == {
        *("PATH", "LC_TIME", "GIT_AUTHOR_NAME", "HOME", "LANG", "PWD"),
        *("TERM", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "DEBIAN_FRONTEND"),
    }
    assert (environment["PATH"], environment["PWD"]) == ("/bin", "/work")
