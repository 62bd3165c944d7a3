from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.settings.model import (
    keep_server,
    key_source,
    provider_variables,
    with_kept_server,
    without_key_of_another,
)
from ohsandbox.cli.settings.run_settings import complete_settings
from ohsandbox.errors import UsageError
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    ("model", "variable"),
    [("openai/gpt-5", "OPENAI_API_KEY"), ("gpt-4o", "OPENAI_API_KEY"), ("claude-opus-4", "ANTHROPIC_API_KEY")],
)
def test_the_variable_of_a_known_provider_is_known(model: str, variable: str) -> None:
    assert provider_variables(model)[0] == variable


@pytest.mark.parametrize("model", ["ollama/llama3", "bedrock/anthropic.claude", "unheard-of"])
def test_other_providers_are_left_to_litellm(model: str) -> None:
    assert complete_settings(Settings(model=model), person=False).model == model


def test_a_server_of_ones_own_may_need_no_key() -> None:
    assert key_source(Settings(model="openai/local", base_url="http://127.0.0.1:1/v1")) is not None


def test_the_scripted_model_needs_no_key() -> None:
    assert key_source(Settings(model="scripted:demo")) == "none needed"


def test_the_providers_own_variable_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert complete_settings(Settings(model="openai/gpt-5"), person=False).api_key is None


def test_our_variable_is_the_key_whatever_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_API_KEY", "k")
    assert complete_settings(Settings(model="openai/gpt-5"), person=False).resolved_api_key() == "k"


@pytest.mark.parametrize(
    ("flags", "key", "price"),
    [
        ({"model": "openai/gpt-5"}, None, None),
        ({"model": "anthropic/claude-opus-4-5"}, "k", None),
        ({"model": "anthropic/claude-sonnet-4-5"}, "k", (1.0, 2.0)),
        ({}, "k", (1.0, 2.0)),
        ({"model": "openai/gpt-5", "api_key": "own", "price": "3,4"}, "own", (3.0, 4.0)),
        ({"model": "openai/gpt-5", "base_url": "https://gateway.example/v1"}, "k", (1.0, 2.0)),
    ],
)
def test_what_the_file_says_of_its_model_does_not_hold_for_one_of_a_flag(
    tmp_path: Path, flags: dict[str, Any], key: str | None, price: object
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"model": "anthropic/claude-sonnet-4-5", "api_key": "k", "price": [1, 2]}')
    file.chmod(0o600)
    settings = without_key_of_another(Settings.load(file, **flags), file)
    assert (settings.resolved_api_key(), settings.price) == (key, price)


def test_a_missing_key_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        complete_settings(Settings(model="openai/gpt-5"), person=False)


@pytest.mark.parametrize("command", [["mcp", "list"], ["run", "x", "--model", "scripted:none", "--runtime", "cli"]])
def test_a_misspelt_variable_is_told_once_by_a_command(
    invoke: Invoke, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_MODLE", "canary")
    ended = invoke(*command)
    assert ended.err.count("OHSANDBOX_MODLE is not used. Did you mean OHSANDBOX_MODEL?") == 1
    assert "canary" not in ended.err


def test_where_a_stored_key_is_sent_by_a_variable_of_the_provider_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "openai").write_text("stored-key\n")
    complete_settings(Settings(model="openai/gpt-5"), person=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://u:canary@127.0.0.1:9/v1")
    complete_settings(Settings(model="openai/gpt-5"), person=False)
    told = capsys.readouterr().err
    assert "OPENAI_BASE_URL, 'http://***@127.0.0.1:9/v1', says where the stored key is sent" in told


def test_the_address_of_a_flag_is_kept_for_who_resumes_and_that_of_the_file_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Settings(model="openai/m").with_flags(base_url="http://me:pw@localhost:1/v1")
    keep_server(tmp_path, Settings(model="openai/m", base_url="http://localhost:2/v1"))
    assert with_kept_server(Settings(model="openai/m"), tmp_path).base_url is None
    keep_server(tmp_path, given)
    assert with_kept_server(Settings(model="openai/m"), tmp_path).base_url == given.base_url
    assert "@localhost:1/v1, as before" in capsys.readouterr().err
    assert with_kept_server(given.with_flags(base_url="http://other:1"), tmp_path).base_url == "http://other:1"


def test_no_model_names_the_settings_that_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    with pytest.raises(UsageError, match=f"{tmp_path}/state/settings.json"):
        complete_settings(Settings(), person=False)
