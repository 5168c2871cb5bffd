"""What a model's name needs before it can be used."""

import subprocess
import sys
from pathlib import Path

import pytest

from config.models import PROVIDERS, check_model, endpoint, resolve_model
from config.settings import Settings
from team.model.errors import ConfigurationInvalid

NOWHERE = Settings(model_base_url=None)


def refusal(name: str | None, settings: Settings = NOWHERE, keys: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        check_model(name, settings, keys or {})
    message = caught.value.message
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("name", [None, ""])
def test_no_model_says_how_to_choose_one(name: str | None) -> None:
    message = refusal(name)
    for part in ("--model", "TEAM_MODEL", "openai-chat:NAME", "script:FILE"):
        assert part in message


@pytest.mark.parametrize("name", ["gpt-5", "opneai:gpt-5", ":x", "openai chat:x"])
def test_an_unknown_prefix_is_told_with_the_known_ones(name: str) -> None:
    message = refusal(name)
    assert repr(name) in message
    for prefix in PROVIDERS:
        assert f"{prefix}:" in message


@pytest.mark.parametrize("name", ["openai-chat:", "anthropic: ", "script:"])
def test_a_prefix_alone_is_no_model(name: str) -> None:
    assert repr(name) in refusal(name)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY"),
        ("openrouter:some/model", "OPENROUTER_API_KEY"),
        ("anthropic:claude-opus-5", "ANTHROPIC_API_KEY"),
        ("google:gemini", "GOOGLE_API_KEY"),
    ],
)
def test_a_missing_key_is_named_and_a_present_one_is_used(name: str, variable: str) -> None:
    assert f"set {variable}" in refusal(name)
    assert f"set {variable}" in refusal(name, keys={variable: "  "})
    assert endpoint(name, NOWHERE, {variable: " key \n"}).api_key == "key"


@pytest.mark.parametrize("name", ["vllm:qwen", "ollama:llama3"])
def test_a_local_server_needs_no_key_and_has_its_usual_address(name: str) -> None:
    check_model(name, NOWHERE, {})
    assert endpoint(name, NOWHERE, {}).base_url.startswith("http://127.0.0.1:")


def test_a_server_of_ones_own_needs_no_key() -> None:
    settings = Settings(model_base_url="http://127.0.0.1:9/v1")
    check_model("openai-chat:x", settings, {})
    assert endpoint("openai-chat:x", settings, {}).base_url == "http://127.0.0.1:9/v1"


def test_the_base_url_of_an_openai_api_does_not_apply_to_other_apis() -> None:
    settings = Settings(model_base_url="http://127.0.0.1:9/v1")
    assert "ANTHROPIC_API_KEY" in refusal("anthropic:claude-opus-5", settings)
    place = endpoint("anthropic:claude-opus-5", settings, {"ANTHROPIC_API_KEY": "k", "TEAM_MODEL_API_KEY": "other"})
    assert (place.base_url, place.api_key) == ("https://api.anthropic.com", "k")


def test_a_base_url_among_the_keys_applies_to_its_provider_alone() -> None:
    keys = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "DEEPSEEK_API_KEY": "k"}
    assert endpoint("anthropic:x", NOWHERE, keys).base_url == "http://127.0.0.1:9"
    assert endpoint("deepseek:x", NOWHERE, keys).base_url == "https://api.deepseek.com"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "/v1"])
def test_a_base_url_that_is_none_is_told(url: str) -> None:
    assert "TEAM_MODEL_BASE_URL" in refusal("openai-chat:x", Settings(model_base_url=url))


@pytest.mark.parametrize("key", ["sk-\u20ac", "two\nlines"])
def test_an_impossible_key_is_told_without_showing_it(key: str) -> None:
    message = refusal("openai-chat:x", keys={"OPENAI_API_KEY": key})
    assert "OPENAI_API_KEY" in message
    assert key not in message


def test_a_missing_extra_is_told() -> None:
    assert "pydantic-ai-slim[google]" in refusal("google:gemini", keys={"GOOGLE_API_KEY": "k"})


def test_a_scripts_path_is_made_absolute_and_other_names_stay(tmp_path: Path) -> None:
    assert resolve_model("script:plan.yaml", tmp_path) == f"script:{tmp_path / 'plan.yaml'}"
    assert resolve_model(f"script:{tmp_path}/a/../plan.yaml") == f"script:{tmp_path / 'plan.yaml'}"
    assert resolve_model("openai-chat:a/b") == "openai-chat:a/b"


def test_a_script_is_checked_with_the_model(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    assert str(file) in refusal(f"script:{file}")
    file.write_text("members: {lead: {start: a, states: {a: {say: done}}}}")
    check_model(f"script:{file}", NOWHERE, {})


def test_checking_a_model_loads_no_providers_library() -> None:
    """The command line must not pay seconds of imports for a check."""
    program = (
        "import sys\n"
        "from config.models import check_model\n"
        "from config.settings import Settings\n"
        "check_model('openai-chat:x', Settings(), {'OPENAI_API_KEY': 'k'})\n"
        "check_model('anthropic:x', Settings(), {'ANTHROPIC_API_KEY': 'k'})\n"
        "print(sorted({'openai', 'anthropic', 'pydantic_ai'} & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_that_plays_scripts_loads_no_providers_library() -> None:
    program = "import sys, workers.models\nprint('pydantic_ai' in sys.modules)\n"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
