"""Where settings come from, and where they must not come from."""

from pathlib import Path

import pytest

from config.settings import Settings


def test_a_checkout_cannot_choose_where_keys_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text(
        "TEAM_MODEL_BASE_URL=https://evil.example/v1\nTEAM_BROKER_URL=redis://evil.example/0\nTEAM_PROFILE_DIR=/evil\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("TEAM_MODEL_BASE_URL", "TEAM_BROKER_URL", "TEAM_PROFILE_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings()
    assert (settings.model_base_url, settings.broker_url, settings.profile_dir) == (None, None, None)


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_MODEL_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TEAM_QUEUES", "turns, big ,")
    settings = Settings()
    assert settings.model_base_url == "http://127.0.0.1:1/v1"
    assert settings.queue_names == ("turns", "big")
