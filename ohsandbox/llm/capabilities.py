"""`Capabilities`: what a model takes, from its name, litellm's list, the settings and what its provider refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.llm import error_mapping

if TYPE_CHECKING:
    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.error_mapping import ErrorKind

DESCRIPTION_LIMIT_CHARS = 1024
"""Of a function's description; past it OpenAI answers 400 `string_above_max_length` (seen of gpt-4o and o3-mini)."""

_SHORT_DESCRIPTIONS = re.compile(r"(?:^|[/.:])(?:(?:chat)?gpt-4|o[134](?:$|-))")


class ModelInfo(NamedTuple):
    """What litellm's list says of a model; None is nothing."""

    provider: str = ""
    tools: bool | None = None
    forwards_tools: bool = True
    """litellm sends `tools` on to this provider; where it does not, it drops them in silence."""
    images: bool | None = None
    context_tokens: int | None = None


class Capabilities(NamedTuple):
    """What a model takes."""

    native_tools: bool = True
    """Tools go through the provider's API; else tool calls are written as text."""
    vision: bool = True
    streams: bool = True
    """It streams its answers where that is asked for."""
    context_tokens: int | None = None
    """The most that a request may hold."""
    gemini_schemas: bool = False
    """Schemas are cut down to what Gemini's API takes."""
    description_limit_chars: int | None = None
    cache_marks: bool = False
    blank_is_null: bool = False
    """A message of calls alone has the content null: for "" litellm puts words of its own into Claude's mouth, and an
    empty part into Gemini's request."""

    def after(self, refusal: ErrorKind, config: LLMConfig) -> Capabilities | None:
        """What the model takes, now that its provider refused a request so; None where that teaches nothing."""
        if refusal is error_mapping.TOOLS and self.native_tools and config.native_tool_calling is None:
            return self._replace(native_tools=False)
        if refusal is error_mapping.IMAGES and self.vision and config.vision is None:
            return self._replace(vision=False)
        if refusal is error_mapping.STREAM and self.streams and config.stream:
            return self._replace(streams=False)
        return None


def capabilities_of(config: LLMConfig, model_info: ModelInfo) -> Capabilities:
    """What is known before the first request. Settings stand above the list.

    Only a plain no of the list counts: a flag that is missing says nothing (litellm 1.106 has `supports_vision` for
    half of its chat models), and a refusal is learned from.
    """
    name = config.model.lower()
    listed_tools = model_info.tools is not False and model_info.forwards_tools
    is_claude = "claude" in name or model_info.provider == "anthropic"
    return Capabilities(
        native_tools=_given(config.native_tool_calling, listed_tools),
        vision=_given(config.vision, model_info.images is not False),
        context_tokens=config.context_tokens or model_info.context_tokens,
        gemini_schemas="gemini" in name,
        description_limit_chars=DESCRIPTION_LIMIT_CHARS if _SHORT_DESCRIPTIONS.search(name) else None,
        cache_marks=_given(config.prompt_cache, is_claude),
        blank_is_null=is_claude or "gemini" in name,
    )


def capability_warning(config: LLMConfig, model_info: ModelInfo) -> str | None:
    """What a person should know of the model's tools before the first request that has some."""
    if config.native_tool_calling is not None or (model_info.tools and model_info.forwards_tools):
        return None
    if model_info.tools is False or not model_info.forwards_tools:
        return (
            f"Function calling is unsupported for model {config.model!r} by litellm's list; its calls are written as "
            "text. Set `native_tool_calling` to true if the list is wrong."
        )
    return f"Function calling seems unsupported for model {config.model!r}; continuing anyway."


def _given(setting: bool | None, otherwise: bool) -> bool:  # noqa: FBT001 - two values of one kind
    return otherwise if setting is None else setting
