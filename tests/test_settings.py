from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_missing_default_file_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    assert Settings.load() == Settings()
    assert Settings.load().image == "python:3.12"


def test_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        Settings.load(tmp_path / "no.json")


def test_flags_stand_above_the_file_and_none_is_no_flag(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"model": "a/b", "image": "node:22", "mcp": {"stdio_servers": []}}))
    settings = Settings.load(path, model="c/d", image=None)
    assert (settings.model, settings.image, settings.mcp) == ("c/d", "node:22", {"stdio_servers": []})


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"modle": "x"}', "unknown key 'modle'"),
        ('{"temperature": "hot"}', "key 'temperature' is wrong"),
        ('{"api_key": ["sk-secret"]}', "key 'api_key' is wrong"),
        ('{"max_iterations": 0}', "key 'max_iterations' is wrong"),
    ],
)
def test_fault_names_file_and_key_on_one_line(tmp_path: Path, text: str, fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.load(write(tmp_path, text))
    assert fact in str(caught.value)
    assert "settings.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_wrong_flag_is_an_error_of_the_command_line() -> None:
    with pytest.raises(UsageError, match="command line: key 'temperature'"):
        Settings().with_flags(temperature=-1)


def test_key_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    text = '{"api_key": "sk-secret"}'
    [warning] = Settings.load(write(tmp_path, text, 0o644), model="a/b").warnings
    assert "chmod 600" in warning
    assert "sk-secret" not in warning
    assert Settings.load(write(tmp_path, text, 0o600)).warnings == ()
    assert Settings.load(write(tmp_path, '{"api_key": "env:K"}', 0o644)).warnings == ()


def test_key_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.model_validate({"model": "a/b", "api_key": "env:MY_KEY"})
    with pytest.raises(UsageError, match="'MY_KEY', which is not set"):
        settings.llm_config()
    monkeypatch.setenv("MY_KEY", "sk-1")
    key = settings.llm_config().api_key
    assert key is not None
    assert key.get_secret_value() == "sk-1"


def test_key_is_not_shown() -> None:
    settings = Settings.model_validate({"api_key": "sk-secret"})
    assert "sk-secret" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_model_config_gets_what_is_set_and_leaves_the_rest() -> None:
    config = Settings.model_validate({"model": "a/b", "reasoning_effort": "low", "top_p": 0.5}).llm_config()
    assert (config.model, config.reasoning_effort, config.top_p, config.temperature) == ("a/b", "low", 0.5, 0.0)


def test_no_model_is_an_error_with_both_remedies() -> None:
    with pytest.raises(UsageError, match='--model provider/model, or set "model"'):
        Settings().llm_config()
