from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.llm import LLMConfig


def test_a_key_is_stripped_and_never_shown() -> None:
    config = LLMConfig(model="m", api_key=" canary-key\n")
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "canary-key"
    assert "canary" not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"


def test_a_blank_key_is_none() -> None:
    assert LLMConfig(model="m", api_key="  ").api_key is None


@pytest.mark.parametrize(
    "setting",
    [{"temprature": 1}, {"temperature": 3}, {"num_retries": 7}, {"reasoning_effort": "huge"}, {"model": ""}],
)
def test_a_wrong_setting_is_refused_without_showing_values(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        LLMConfig(**{"model": "m", "api_key": "canary-key"} | setting)
    assert "canary" not in str(caught.value)


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError):
        LLMConfig(model="m").model = "other"  # type: ignore[misc]
