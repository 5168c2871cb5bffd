"""Workspaces, data directories, the lock and the record of a stack."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from config.settings import Settings
from team.cli.faults import StackBusy
from team.cli.places import (
    StackRecord,
    data_dir_of,
    is_held,
    live_stack,
    prepare,
    publish,
    read_settings,
    remember_workspace,
    remembered_workspace,
    stack_lock,
    workspace_of,
)
from team.cli.stack import child_environment
from team.cli.tokens import stored_token, token_path
from team.model.errors import ConfigurationInvalid

RECORD = StackRecord(
    pid=1, owner="up", url="http://127.0.0.1:1", token="secret", workspace="/w", children={"worker-1": 2}
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("TEAM_") and name != "TEAM_TEST_RUN":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_directory_in_a_checkout_belongs_to_the_checkout(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "src" / "deep"
    inner.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    assert workspace_of(Settings(), inner) == (tmp_path / "project").resolve()
    assert workspace_of(Settings(workspace_root=tmp_path), inner) == tmp_path.resolve()


def test_a_directory_without_a_checkout_is_its_own_workspace(tmp_path: Path) -> None:
    assert workspace_of(Settings(), tmp_path) == tmp_path.resolve()


def test_each_workspace_has_a_data_directory_of_its_own_unless_one_is_configured(tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "same name", tmp_path / "b" / "same name"
    places = {data_dir_of(Settings(), place) for place in (one, other)}
    assert len(places) == 2
    assert all(place.name.startswith("same-name-") for place in places)
    configured = Settings(data_dir=tmp_path / "data")
    assert data_dir_of(configured, one) == data_dir_of(configured, other) == (tmp_path / "data").resolve()


def test_one_stack_at_a_time_uses_a_data_directory(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with stack_lock(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(StackBusy, match="TEAM_DATA_DIR"), stack_lock(tmp_path):
            pytest.fail("two stacks hold one directory")
    assert not is_held(tmp_path)


def test_the_record_of_a_killed_stack_counts_for_nothing(tmp_path: Path) -> None:
    publish(tmp_path, RECORD)
    assert live_stack(tmp_path) is None
    with stack_lock(tmp_path):
        publish(tmp_path, RECORD)
        assert live_stack(tmp_path) == RECORD


def test_the_record_and_the_tokens_are_for_their_owner_alone(tmp_path: Path) -> None:
    publish(tmp_path, RECORD)
    token = stored_token(tmp_path, "operator")
    assert stored_token(tmp_path, "operator") == token
    assert stored_token(tmp_path, "worker") != token
    for path in (tmp_path / "stack.json", token_path(tmp_path, "operator"), token_path(tmp_path, "worker")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_workspace_of_a_data_directory_is_remembered(tmp_path: Path) -> None:
    assert remembered_workspace(tmp_path) is None
    remember_workspace(tmp_path, tmp_path / "w")
    assert remembered_workspace(tmp_path) == tmp_path / "w"


def test_a_data_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationInvalid, match="TEAM_DATA_DIR"):
        prepare(tmp_path / "file" / "data")


def test_a_setting_that_is_not_usable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_LEASE_SECONDS", "soon")
    with pytest.raises(ConfigurationInvalid, match="TEAM_LEASE_SECONDS is not usable"):
        read_settings()


def test_an_option_wins_over_its_variable_and_an_absent_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_SLOTS", "3")
    assert read_settings(slots=None).slots == 3
    assert read_settings(slots=5).slots == 5


def test_children_get_every_chosen_setting_and_no_key(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        slots=3,
        database_url="postgresql+psycopg://user:password@host/db",
        operator_token=SecretStr("operator-secret"),
        worker_token=SecretStr("worker-secret"),
        model=None,
    )
    inherited = {"PATH": "/bin", "OPENAI_API_KEY": "sk", "TEAM_SLOTS": "99", "TEAM_UNKNOWN": "1", "LANG": "C"}
    coordinator = child_environment(settings, inherited, worker=False)
    worker = child_environment(settings, inherited, worker=True)
    for environment in (coordinator, worker):
        assert environment["PATH"] == "/bin"
        assert environment["LANG"] == "C"
        assert environment["TEAM_SLOTS"] == "3"
        assert environment["TEAM_WORKER_TOKEN"] == "worker-secret"
        assert not {"OPENAI_API_KEY", "TEAM_UNKNOWN", "TEAM_MODEL"} & environment.keys()
    assert coordinator["TEAM_OPERATOR_TOKEN"] == "operator-secret"
    assert coordinator["TEAM_DATABASE_URL"] == "postgresql+psycopg://user:password@host/db"
    assert not {"TEAM_OPERATOR_TOKEN", "TEAM_DATABASE_URL"} & worker.keys()
