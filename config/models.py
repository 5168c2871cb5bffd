"""Which models there are: provider prefixes, their keys and base URLs, and what a model name needs before it is used.

Nothing here imports a provider's library, so the command line checks a model without the cost of loading it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config.scenario import load_scenario
from config.settings import Settings
from team.model.errors import ConfigurationInvalid

SCRIPT: Final = "script"
MODEL_KEY: Final = "TEAM_MODEL_API_KEY"
"""Key of the server at ``model_base_url``; it wins over the key of the provider that the prefix names."""

EXAMPLES: Final = "openai-chat:NAME, deepseek:NAME, anthropic:NAME or script:FILE"


@dataclass(frozen=True)
class Provider:
    """One prefix of a model name.

    ``compatible`` providers speak an OpenAI API, so ``model_base_url`` applies to them. ``base_url`` is where requests
    go when nothing else is said; None leaves it to the library. ``module`` must be importable, else ``extra`` of
    pydantic-ai-slim is missing.
    """

    prefix: str
    title: str
    key_variables: tuple[str, ...]
    base_url_variable: str
    base_url: str
    compatible: bool
    needs_key: bool
    module: str
    extra: str


def _provider(
    prefix: str,
    title: str,
    base_url: str,
    *keys: str,
    compatible: bool = True,
    needs_key: bool = True,
    module: str = "openai",
    extra: str = "openai",
) -> Provider:
    variable = keys[0].removesuffix("_API_KEY") + "_BASE_URL"
    return Provider(prefix, title, keys, variable, base_url, compatible, needs_key, module, extra)


PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.prefix: provider
    for provider in (
        _provider("openai-chat", "OpenAI Chat Completions", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        _provider("openai", "OpenAI Responses", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        _provider("deepseek", "DeepSeek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        _provider("openrouter", "OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        _provider("vllm", "vLLM", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", needs_key=False),
        _provider("ollama", "Ollama", "http://127.0.0.1:11434/v1", "OLLAMA_API_KEY", needs_key=False),
        _provider(
            "anthropic",
            "Anthropic",
            "https://api.anthropic.com",
            "ANTHROPIC_API_KEY",
            compatible=False,
            module="anthropic",
            extra="anthropic",
        ),
        _provider(
            "google",
            "Google",
            "https://generativelanguage.googleapis.com",
            "GOOGLE_API_KEY",
            "GEMINI_API_KEY",
            compatible=False,
            module="google.genai",
            extra="google",
        ),
    )
}


DEFAULT_WINDOW: Final = 128_000
WINDOWS: Final[Mapping[str, int]] = {
    "script:*": 0,
    "anthropic:*": 200_000,
    "google:*": 1_000_000,
    "openai:gpt-4.1*": 1_000_000,
    "openai-chat:gpt-4.1*": 1_000_000,
    "openai:gpt-5*": 272_000,
    "openai-chat:gpt-5*": 272_000,
    "deepseek:*": 128_000,
    "ollama:*": 32_768,
}
"""Input tokens that models take, cautiously; what is not named takes ``DEFAULT_WINDOW``."""


def context_window(model: str, *chosen: Mapping[str, int]) -> int:
    """How many tokens a model's requests may hold; 0 when nobody should count.

    Args:
        model: Its full name.
        chosen: Windows by name, the more important mapping first; a trailing ``*`` stands for any rest, and the longest
            pattern that fits decides.
    """
    for windows in (*chosen, WINDOWS):
        fitting = [pattern for pattern in windows if _fits(pattern, model)]
        if fitting:
            return windows[max(fitting, key=len)]
    return DEFAULT_WINDOW


def _fits(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


@dataclass(frozen=True)
class Endpoint:
    """Where the requests of one model go. ``api_key`` is None where none is needed and none is known."""

    provider: Provider
    model: str
    base_url: str
    custom: bool
    api_key: str | None


def resolve_model(name: str, directory: Path | None = None) -> str:
    """The name with a ``script:`` path made absolute against ``directory`` (default: the current one)."""
    prefix, _, rest = name.partition(":")
    if prefix != SCRIPT or not rest:
        return name
    return f"{SCRIPT}:{((directory or Path.cwd()) / Path(rest).expanduser()).resolve()}"


def check_model(name: str | None, settings: Settings, keys: Mapping[str, str]) -> None:
    """Raise unless the model can be used: a known prefix with its key and library, or a sound script.

    No request is made and no provider's library is loaded.

    Raises:
        ConfigurationInvalid: One sentence that says what to do.
    """
    if not name:
        raise ConfigurationInvalid(f"No model is chosen: give --model or set TEAM_MODEL, such as {EXAMPLES}.")
    prefix, _, rest = name.partition(":")
    if prefix == SCRIPT and rest:
        load_scenario(Path(rest))
        return
    provider = endpoint(name, settings, keys).provider
    if not _importable(provider.module):
        raise ConfigurationInvalid(
            f"The model {name!r} needs a library that is not installed: pip install "
            f"'pydantic-ai-slim[{provider.extra}]' on every machine that runs a worker."
        )


def endpoint(name: str, settings: Settings, keys: Mapping[str, str]) -> Endpoint:
    """Resolve a provider model's name to where and with which key it is asked.

    The base URL is ``settings.model_base_url`` for every provider that speaks an OpenAI API, else the provider's
    ``..._BASE_URL`` entry of ``keys``, else its public address. With ``model_base_url`` the key is TEAM_MODEL_API_KEY
    if it is there; otherwise the provider's own.

    Raises:
        ConfigurationInvalid: The prefix is unknown, the model's own name is missing, a URL or key is unusable, or a
            key is missing.
    """
    prefix, colon, model = name.partition(":")
    provider = PROVIDERS.get(prefix)
    if provider is None or not colon:
        known = ", ".join(f"{known}:" for known in (*PROVIDERS, SCRIPT))
        raise ConfigurationInvalid(f"The model {name!r} names no known provider: begin it with one of {known}.")
    if not model.strip():
        raise ConfigurationInvalid(f"The model {name!r} lacks its own name: write {prefix}:NAME.")
    custom, source = _base_url(provider, settings, keys)
    if custom is not None:
        _check_url(custom, source)
    variables = (MODEL_KEY, *provider.key_variables) if source == "TEAM_MODEL_BASE_URL" else provider.key_variables
    api_key = _key(variables, keys)
    if api_key is None and provider.needs_key and custom is None:
        where = " (or TEAM_MODEL_BASE_URL for a server of your own)" if provider.compatible else ""
        raise ConfigurationInvalid(
            f"The model {name!r} needs a key of {provider.title}: set {provider.key_variables[0]}{where}."
        )
    return Endpoint(provider, model, custom or provider.base_url, custom is not None, api_key)


def _base_url(provider: Provider, settings: Settings, keys: Mapping[str, str]) -> tuple[str | None, str]:
    if provider.compatible and settings.model_base_url:
        return settings.model_base_url, "TEAM_MODEL_BASE_URL"
    return keys.get(provider.base_url_variable) or None, provider.base_url_variable


def _check_url(url: str, source: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        sound = False
    if not sound:
        raise ConfigurationInvalid(f"{source} is not a URL: give one such as http://127.0.0.1:8000/v1.")


def _key(variables: tuple[str, ...], keys: Mapping[str, str]) -> str | None:
    for variable in variables:
        key = keys.get(variable, "").strip()
        if not key:
            continue
        if not key.isascii() or not key.isprintable():
            raise ConfigurationInvalid(f"{variable} holds characters that no key has: paste it again.")
        return key
    return None


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
