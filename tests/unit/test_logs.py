"""Log lines: one id set in both forms, errors without values, and no secret that anybody can think of."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr

from config import logs
from config.settings import LogFormat, Settings
from team.model.errors import ConfigurationInvalid

SETTINGS = Settings(
    operator_token=SecretStr("canary-operator"),
    viewer_token=SecretStr("canary-viewer"),
    worker_token=SecretStr("canary-worker-token"),
    flower_password=SecretStr("canary-flower"),
    database_url="postgresql+psycopg://team:canary-dsn%21@db:5432/team",
    broker_url="rediss://user:canary-broker@redis:6379/0",
)
KEY = "canary-provider-key"
TEXT = "what somebody wrote to a member"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configuration = [*root.handlers], root.level, structlog.get_config()
    # What runs operations of the coordinator in this process binds their ids for its request, which is the process.
    structlog.contextvars.clear_contextvars()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()


def configured(form: LogFormat, *, worker: str | None = None) -> None:
    logs.configure(SETTINGS.model_copy(update={"log_format": form}), worker=worker, secrets=[KEY])


def refuse(value: str) -> None:
    raise ConfigurationInvalid(f"cannot use {value}")


def fail() -> None:
    try:
        {}[TEXT]
    except KeyError as error:
        raise ValueError(f"row ({TEXT})") from error


def test_a_line_of_json_is_one_object_with_the_ids_of_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", worker="one")
    ids = {"team": "t", "member": "bob", "session": "s", "turn": "turn-1", "step": 3}
    with structlog.contextvars.bound_contextvars(**ids):
        structlog.stdlib.get_logger("workers.calls").info("call stopped", tool="bash")
        logging.getLogger("celery.worker").warning("from a %s", "library")
    own, foreign = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    for line in (own, foreign):
        assert {name: line[name] for name in logs.IDS} == {**ids, "worker": "one"}
        assert line["level"]
        assert line["timestamp"].endswith("Z")
    assert (own["event"], own["tool"]) == ("call stopped", "bash")
    assert foreign["event"] == "from a library"


def test_a_line_of_pairs_shows_the_ids_in_one_order_and_only_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configured("keyvalue")
    structlog.stdlib.get_logger("x").info("turn ended", turn="turn-1", worker="w", team="t", reason="completed")
    line = capsys.readouterr().err
    assert line.index(" event=") < line.index(" team=") < line.index(" turn=") < line.index(" worker=")
    assert " member=" not in line


@pytest.mark.parametrize("form", ["keyvalue", "json"])
@pytest.mark.parametrize(
    "secret",
    [
        "canary-operator",
        "canary-viewer",
        "canary-worker-token",
        "canary-flower",
        "canary-dsn!",
        "canary-dsn%21",
        "canary-broker",
        KEY,
    ],
)
def test_a_secret_of_the_deployment_is_masked_wherever_it_stands(
    form: LogFormat, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(form)
    structlog.stdlib.get_logger("x").warning(f"told {secret}", field=secret, nested={"a": [f"x{secret}x"]})
    logging.getLogger("library").error("refused %s", secret)
    try:
        refuse(secret)
    except ConfigurationInvalid:
        logging.getLogger("library").exception("failed")
        structlog.stdlib.get_logger("x").exception("failed")
    written = capsys.readouterr().err
    assert secret not in written
    assert written.count("***") >= 5


@pytest.mark.parametrize("form", ["keyvalue", "json"])
def test_what_looks_like_a_secret_is_masked_though_nobody_named_it(
    form: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(form)
    for text in (
        "redis://:hunter22@other:6379/0",
        "cannot reach postgresql://u:hunter22@db/x, trying again",
        "{'Authorization': 'Bearer hunter22hunter22'}",
    ):
        structlog.stdlib.get_logger("x").info(text, again=text)
    written = capsys.readouterr().err
    assert "hunter22" not in written
    assert "@other:6379/0" in written


@pytest.mark.parametrize("form", ["keyvalue", "json"])
def test_an_error_is_told_by_its_kind_and_its_places_and_never_by_its_text(
    form: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(form)
    for log in (structlog.stdlib.get_logger("x"), logging.getLogger("library")):
        try:
            fail()
        except ValueError:
            log.exception("hint not published")
    written = capsys.readouterr().err
    assert TEXT not in written
    for word in ("ValueError", "KeyError", "test_logs.py", "hint not published"):
        assert written.count(word) >= 2


def test_a_word_too_short_to_be_a_secret_masks_no_ordinary_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(SETTINGS.model_copy(update={"flower_password": SecretStr("turn")}))
    structlog.stdlib.get_logger("x").info("turn ended")
    assert "turn ended" in capsys.readouterr().err
