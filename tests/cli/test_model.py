from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.model import complete, key_source, provider_variables
from ohsandbox.errors import UsageError
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    ("model", "variable"),
    [("openai/gpt-5", "OPENAI_API_KEY"), ("gpt-4o", "OPENAI_API_KEY"), ("claude-opus-4", "ANTHROPIC_API_KEY")],
)
def test_the_variable_of_a_known_provider_is_known(model: str, variable: str) -> None:
    assert provider_variables(model)[0] == variable


@pytest.mark.parametrize("model", ["ollama/llama3", "bedrock/anthropic.claude", "unheard-of"])
def test_other_providers_are_left_to_litellm(model: str) -> None:
    assert complete(Settings(model=model), person=False).model == model


def test_a_server_of_ones_own_may_need_no_key() -> None:
    assert key_source(Settings(model="openai/local", base_url="http://127.0.0.1:1/v1")) is not None


def test_the_scripted_model_needs_no_key() -> None:
    assert key_source(Settings(model="scripted:demo")) == "none needed"


def test_the_providers_own_variable_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert complete(Settings(model="openai/gpt-5"), person=False).api_key is None


def test_our_variable_is_the_key_whatever_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_API_KEY", "k")
    assert complete(Settings(model="openai/gpt-5"), person=False).resolved_api_key() == "k"


def test_a_missing_key_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        complete(Settings(model="openai/gpt-5"), person=False)


@pytest.mark.parametrize("command", [["mcp", "list"], ["run", "x", "--model", "scripted:none", "--runtime", "cli"]])
def test_a_misspelt_variable_is_told_once_by_a_command(
    invoke: Invoke, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_MODLE", "canary")
    ended = invoke(*command)
    assert ended.err.count("OHSANDBOX_MODLE is not used. Did you mean OHSANDBOX_MODEL?") == 1
    assert "canary" not in ended.err
