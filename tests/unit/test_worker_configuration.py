"""What a worker reads at its start, and how it refuses what it cannot use."""

import os
import threading
from pathlib import Path

import pytest

from config import faults
from config.broker import redis_url
from config.celery import celery_app
from config.secrets import take_provider_keys
from config.settings import Settings
from team.model.errors import ConfigurationInvalid
from workers.__main__ import worker_name


@pytest.fixture(autouse=True)
def no_keys_of_the_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)


def test_keys_of_the_environment_are_taken_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "two")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TEAM_WORKER_TOKEN", "three")

    keys = take_provider_keys(Settings())

    assert keys == {"OPENAI_API_KEY": "one", "DEEPSEEK_API_KEY": "two", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    assert not {"OPENAI_API_KEY", "DEEPSEEK_API_KEY", "TEAM_WORKER_TOKEN"} & set(os.environ)
    assert os.environ["OPENAI_BASE_URL"]


def test_a_keys_file_wins_and_the_environment_still_loses_its_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("# keys\n\nOPENAI_API_KEY = unused\n".replace(" = ", "=") + "ANTHROPIC_API_KEY='quoted=value'\n")
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")

    keys = take_provider_keys(Settings(provider_keys_file=file))

    assert keys == {"OPENAI_API_KEY": "unused", "ANTHROPIC_API_KEY": "quoted=value"}
    assert "OPENAI_API_KEY" not in os.environ


def test_keys_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("OPENAI_API_KEY=piped\n",))
    writer.start()
    assert take_provider_keys(Settings(provider_keys_file=pipe)) == {"OPENAI_API_KEY": "piped"}
    writer.join(10)


def test_a_malformed_line_is_named_by_its_number_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("OPENAI_API_KEY=one\nsecret without a name\n")
    with pytest.raises(ConfigurationInvalid, match="line 2 of") as caught:
        take_provider_keys(Settings(provider_keys_file=file))
    assert "secret" not in str(caught.value)


def test_a_missing_keys_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="cannot be read"):
        take_provider_keys(Settings(provider_keys_file=tmp_path / "absent"))


@pytest.mark.parametrize(
    ("broker", "client"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://:secret@broker/1", "rediss://:secret@broker/1"),
        ("redis+socket:///run/valkey.sock", "unix:///run/valkey.sock?db=0"),
        ("redis+socket:///run/valkey.sock?virtual_host=3", "unix:///run/valkey.sock?db=3"),
    ],
)
def test_a_broker_url_names_the_same_server_for_redis(broker: str, client: str) -> None:
    assert redis_url(broker) == client


@pytest.mark.parametrize(
    "broker",
    [None, "", "localhost:6379", "amqp://:secret@localhost", "redis://", "redis://:secret@h:port", "redis+socket://"],
)
def test_an_unusable_broker_url_is_refused_without_being_shown(broker: str | None) -> None:
    with pytest.raises(ConfigurationInvalid, match="TEAM_BROKER_URL") as caught:
        redis_url(broker)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("spec", ["nowhere:1", "in-tool", "in-tool:0", "in-tool:x", "in-tool:1,boundary:1"])
def test_a_malformed_fault_point_is_refused(spec: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="TEAM_FAULT_POINTS"):
        faults.arm(spec)
    faults.arm(None)


def test_an_unarmed_point_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def kill(pid: int, number: int) -> None:
        assert pid == os.getpid()
        killed.append(number)

    monkeypatch.setattr("config.faults.os.kill", kill)
    faults.arm("in-tool:2")
    faults.reached("before-boundary")
    faults.reached("in-tool")
    assert killed == []
    faults.reached("in-tool")
    faults.reached("in-tool")
    faults.arm(None)
    assert len(killed) == 1


def test_a_point_named_by_a_file_is_taken_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    killed: list[int] = []
    monkeypatch.setattr("config.faults.os.kill", lambda _pid, number: killed.append(number))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]  # as os.kill
    faults.arm(None, tmp_path)
    faults.reached("after-commit")
    (tmp_path / "after-commit").touch()
    faults.reached("before-commit")
    assert killed == []
    faults.reached("after-commit")
    faults.reached("after-commit")
    faults.arm(None)
    assert len(killed) == 1
    assert [file.name for file in tmp_path.iterdir()] == [f"after-commit.{os.getpid()}"]


def test_a_name_that_could_not_be_part_of_a_queue_is_refused() -> None:
    assert worker_name("one.two-3_x") == "one.two-3_x"
    assert worker_name(None)
    for name in ("a b", "-a", "a/b", "x" * 101, "a\n"):
        with pytest.raises(ConfigurationInvalid, match="TEAM_WORKER_NAME"):
            worker_name(name)


def test_a_variable_of_celery_does_not_win_over_the_configured_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.setenv(name, "redis://somebody-elses:6379/0")
    app = celery_app("redis://127.0.0.1:1/0", "team:")
    with app.connection_for_read() as reading, app.connection_for_write() as writing:
        assert (reading.hostname, writing.hostname) == ("127.0.0.1", "127.0.0.1")
