"""`open_model`: from a config to the model it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.llm.client import LLM
from ohsandbox.llm.replay import ReplayLLM
from ohsandbox.llm.scripted import ScriptedLLM

if TYPE_CHECKING:
    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.model import ChatModel


def open_model(config: LLMConfig) -> ChatModel:
    """The model that `config.model` names: `scripted:NAME`, `scripted:PATH`, `replay:PATH`, or one that litellm knows.

    Raises:
        UsageError: the script or the recording cannot be read.
    """
    kind, _, source = config.model.partition(":")
    if kind == "scripted":
        return ScriptedLLM.load(source or "demo")
    if kind == "replay":
        return ReplayLLM.load(source)
    return LLM(config)
