"""`Capabilities`: what a model takes, from its name, litellm's list, the settings and what its provider refused.

`adapt_request` makes a request fit them. Pure: what comes in is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.llm import error_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.chat import Message, ToolParam
    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.error_mapping import ErrorKind
    from ohsandbox.llm.provider import ModelInfo

_DESCRIPTION_LIMIT_CHARS = 1024
"""Of a function's description; past it OpenAI answers 400 `string_above_max_length` (seen of gpt-4o and o3-mini)."""

IMAGE_NOTE = "[There was an image here. This model is not shown images: use a tool that describes it in words.]"

_CACHE_MARK = {"type": "ephemeral"}
"""Anthropic's word for "keep the prompt up to here" for five minutes."""

_SHORT_DESCRIPTIONS = ("gpt-4", "o1", "o3", "o4")
"""Parts of a model's name. One in the middle of a word (`foo1`) costs words and no facts."""
_NOT_FOR_GEMINI = {"$schema", "additionalProperties", "const", "default", "patternProperties", "propertyNames"} | {
    *("exclusiveMaximum", "exclusiveMinimum")
}
"""JSON Schema's words that Gemini's API answers with 400 `Unknown name`; `const` becomes an `enum` of one."""
_GEMINI_STRING_FORMATS = frozenset({"enum", "date-time"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SENTENCE_ENDS = (". ", ".\n", "\n\n", "\n")


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
    is_claude = "claude" in name or model_info.provider == "anthropic"
    tools, vision, cache = config.native_tool_calling, config.vision, config.prompt_cache
    return Capabilities(
        native_tools=model_info.tools is not False and model_info.forwards_tools if tools is None else tools,
        vision=model_info.images is not False if vision is None else vision,
        context_tokens=config.context_tokens or model_info.context_tokens,
        gemini_schemas="gemini" in name,
        description_limit_chars=_DESCRIPTION_LIMIT_CHARS if wants_short_descriptions(name) else None,
        cache_marks=is_claude if cache is None else cache,
        blank_is_null=is_claude or "gemini" in name,
    )


def wants_short_descriptions(model: str) -> bool:
    """Whether a model of that name is told of its tools in at most DESCRIPTION_LIMIT_CHARS characters each."""
    if model.startswith(("scripted:", "replay:")):
        return False
    return any(part in model.lower() for part in _SHORT_DESCRIPTIONS)


def capability_warning(config: LLMConfig, model_info: ModelInfo) -> str | None:
    """What a person should know of the model's tools before the first request that has some."""
    if config.native_tool_calling is not None or (model_info.tools and model_info.forwards_tools):
        return None
    if model_info.tools is False or not model_info.forwards_tools:
        return (
            f"Function calling is unsupported for model {config.model!r} by litellm's list; its calls are written as "
            "text. Set `native_tool_calling` to true if the list is wrong."
        )
    return (
        f"Whether model {config.model!r} supports function calling is not known: litellm's list lacks it. It is tried; "
        "set `native_tool_calling` to true or false if you know."
    )


def adapt_request(request: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    """The request as the model takes it: its tools' words and schemas, its images, its cache marks."""
    adapted, messages = dict(request), [dict(message) for message in request["messages"]]
    if "tools" in request:
        adapted["tools"] = [_adapted_tool(tool, capabilities) for tool in request["tools"]]
    if not capabilities.vision:
        messages = [_without_images(message) for message in messages]
    if capabilities.blank_is_null:
        for message in messages:
            if message.get("tool_calls") and not str(message.get("content") or "").strip():
                message["content"] = None
    adapted["messages"] = with_cache_marks(messages) if capabilities.cache_marks else messages
    return adapted


def gemini_schema(schema: Any) -> Any:
    """The JSON schema in the words that Gemini knows; a property may have any name."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _NOT_FOR_GEMINI}
    if "const" in schema:
        kept["enum"] = [schema["const"]]
    if isinstance(kept.get("type"), list):
        kept |= _one_type(kept.pop("type"))
    if kept.get("type") == "string" and kept.get("format") not in _GEMINI_STRING_FORMATS:
        kept.pop("format", None)
    if any(not isinstance(value, str) for value in kept.get("enum", ())):
        allowed = ", ".join(str(value) for value in kept.pop("enum"))  # "enum: only allowed for STRING type"
        kept["description"] = f"{kept.get('description', '')} One of: {allowed}.".strip()
    for key in kept.keys() & _LISTS_OF_SCHEMAS:
        kept[key] = [gemini_schema(option) for option in kept[key]]
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: gemini_schema(value) for name, value in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = gemini_schema(kept["items"])
    return kept


def shortened(text: str, *, limit_chars: int) -> str:
    """The text, cut after a sentence or a line where it is longer than limit_chars; else between words."""
    if len(text) <= limit_chars:
        return text
    head = text[:limit_chars]
    ends = [position + len(end.rstrip()) for end in _SENTENCE_ENDS if (position := head.rfind(end)) > 0]
    if ends:
        return head[: max(ends)].rstrip()
    return head.rsplit(None, 1)[0] if len(head.split(None, 1)) > 1 else head


def with_cache_marks(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with two marks: after the system prompt, and after the newest message of a user or a tool.

    The first keeps prompt and tools for every conversation, the second the whole so far for the next step. Blank
    content is not marked: Anthropic's API refuses it.
    """
    marked = [dict(message) for message in messages]
    for role in ({"system"}, {"user", "tool"}):
        newest: dict[str, Any] = next((one for one in reversed(marked) if one.get("role") in role), {})
        content = newest.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
        if parts and (parts[-1].get("type") != "text" or str(parts[-1].get("text")).strip()):
            newest["content"] = [*parts[:-1], {**parts[-1], "cache_control": _CACHE_MARK}]
    return marked


def _adapted_tool(tool: ToolParam, capabilities: Capabilities) -> dict[str, Any]:
    function, limit = dict(tool["function"]), capabilities.description_limit_chars
    if capabilities.gemini_schemas and "parameters" in function:
        function["parameters"] = gemini_schema(function["parameters"])
    if limit is not None and "description" in function:
        function["description"] = shortened(function["description"], limit_chars=limit)
    return {**tool, "function": function}


def _one_type(types: Sequence[str]) -> dict[str, Any]:
    """`type: [X, "null"]` as Gemini writes it; of several types it takes `anyOf`."""
    named = [name for name in types if name != "null"]
    nullable = {"nullable": True} if "null" in types else {}
    if len(named) > 1:
        return {"anyOf": [{"type": name} for name in named], **nullable}
    return {"type": named[0] if named else "string", **nullable}


def _without_images(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a note in place of each image.

    One that had an image becomes plain text: servers without vision often take no content in parts either.
    """
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    notes = [IMAGE_NOTE if part.get("type") in {"image_url", "image"} else None for part in parts]
    if not any(notes):
        return message
    texts = [note or part.get("text") or "" for note, part in zip(notes, parts, strict=True)]
    return {**message, "content": "\n".join(text for text in texts if text)}
