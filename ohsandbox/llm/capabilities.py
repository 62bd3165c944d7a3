"""`Capabilities`: what a model accepts, by its name, litellm's list, the settings and its provider's refusals.

`adapt_request` makes a request fit them, without changing its arguments.
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
"""Limit of a function's description; beyond it OpenAI answers 400 `string_above_max_length` (seen for gpt-4o and
o3-mini)."""

IMAGE_NOTE = "[There was an image here. This model is not shown images: use a tool that describes it in words.]"

_CACHE_MARK = {"type": "ephemeral"}
"""Asks Anthropic's API to cache the prompt up to here for five minutes."""

_SHORT_DESCRIPTIONS = ("gpt-4", "o1", "o3", "o4")
"""Parts of names of models with a description limit. A match within a word (`foo1`) costs words and no facts."""
_NOT_FOR_GEMINI = {"$schema", "additionalProperties", "const", "default", "patternProperties", "propertyNames"} | {
    *("exclusiveMaximum", "exclusiveMinimum")
}
"""Keywords of JSON Schema that Gemini's API answers with 400 `Unknown name`; `const` becomes an `enum` of one value."""
_GEMINI_STRING_FORMATS = frozenset({"enum", "date-time"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SENTENCE_ENDS = (". ", ".\n", "\n\n", "\n")


class Capabilities(NamedTuple):
    """What a model accepts."""

    native_tools: bool = True
    """Tools go through the provider's API; otherwise tool calls are written as text."""
    max_tools: int | None = None
    """Limit of native tools in a request."""
    vision: bool = True
    streams: bool = True
    """The model streams its answers if that is requested."""
    context_tokens: int | None = None
    """Limit of a request, in tokens."""
    gemini_schemas: bool = False
    """Schemas are reduced to what Gemini's API accepts."""
    description_limit_chars: int | None = None
    cache_marks: bool = False
    blank_is_null: bool = False
    """A message that has only calls gets the content null: for "" litellm inserts text of its own for Claude, and an
    empty part into Gemini's request."""

    def after(self, refusal: ErrorKind, config: LLMConfig) -> Capabilities | None:
        """Return what the model accepts after its provider refused a request; None if the refusal teaches nothing."""
        if refusal is error_mapping.TOOLS and self.native_tools and config.native_tool_calling is None:
            return self._replace(native_tools=False)
        if refusal is error_mapping.IMAGES and self.vision and config.vision is None:
            return self._replace(vision=False)
        if refusal is error_mapping.STREAM and self.streams and config.stream:
            return self._replace(streams=False)
        return None


def capabilities_of(config: LLMConfig, model_info: ModelInfo) -> Capabilities:
    """Return what is known before the first request. Settings override the list.

    In the list only an explicit false counts: a missing flag says nothing (litellm 1.106 has `supports_vision` for half
    of its chat models), and refusals are learned from.
    """
    name = config.model.lower()
    is_claude = "claude" in name or model_info.provider == "anthropic"
    tools, vision, cache = config.native_tool_calling, config.vision, config.prompt_cache
    return Capabilities(
        native_tools=model_info.tools is not False and model_info.forwards_tools if tools is None else tools,
        max_tools=model_info.max_tools,
        vision=model_info.images is not False if vision is None else vision,
        context_tokens=config.context_tokens or model_info.context_tokens,
        gemini_schemas="gemini" in name,
        description_limit_chars=_DESCRIPTION_LIMIT_CHARS if wants_short_descriptions(name) else None,
        cache_marks=is_claude if cache is None else cache,
        blank_is_null=is_claude or "gemini" in name,
    )


def wants_short_descriptions(model: str) -> bool:
    """Whether tools must be described to a model of that name in at most DESCRIPTION_LIMIT_CHARS characters each."""
    if model.startswith(("scripted:", "replay:")):
        return False
    return any(part in model.lower() for part in _SHORT_DESCRIPTIONS)


def capability_warning(config: LLMConfig, model_info: ModelInfo) -> str | None:
    """Return what a user should know about the model's tools before the first request with tools; None if nothing."""
    if config.native_tool_calling is not None or (model_info.tools and model_info.forwards_tools):
        return None
    if model_info.tools is False:
        return (
            f"Function calling is unsupported for model {config.model!r} by litellm's list; its calls are written as "
            "text. Set `native_tool_calling` to true if the list is wrong."
        )
    if not model_info.forwards_tools:
        return (
            f"litellm passes no tools on to the provider {model_info.provider!r}; the calls of model {config.model!r} "
            "are written as text. Set `native_tool_calling` to true if it takes them."
        )
    return (
        f"Whether model {config.model!r} supports function calling is not known: litellm's list does not say. It is "
        "tried; set `native_tool_calling` to true or false if you know."
    )


def adapt_request(request: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    """Return the request as the model accepts it: adapts tool descriptions and schemas, images and cache marks."""
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
    """Return the JSON schema with only the keywords that Gemini knows; a property may have any name."""
    if not isinstance(schema, dict):
        return schema
    kept_keys = {key: value for key, value in schema.items() if key not in _NOT_FOR_GEMINI}
    if "const" in schema:
        kept_keys["enum"] = [schema["const"]]
    if isinstance(kept_keys.get("type"), list):
        kept_keys |= _one_type(kept_keys.pop("type"))
    if kept_keys.get("type") == "string" and kept_keys.get("format") not in _GEMINI_STRING_FORMATS:
        kept_keys.pop("format", None)
    if any(not isinstance(value, str) for value in kept_keys.get("enum", ())):
        allowed = ", ".join(str(value) for value in kept_keys.pop("enum"))  # "enum: only allowed for STRING type"
        kept_keys["description"] = f"{kept_keys.get('description', '')} One of: {allowed}.".strip()
    for key in kept_keys.keys() & _LISTS_OF_SCHEMAS:
        kept_keys[key] = [gemini_schema(option) for option in kept_keys[key]]
    if isinstance(kept_keys.get("properties"), dict):
        kept_keys["properties"] = {name: gemini_schema(value) for name, value in kept_keys["properties"].items()}
    if "items" in kept_keys:
        kept_keys["items"] = gemini_schema(kept_keys["items"])
    return kept_keys


def shortened_description(text: str, *, limit_chars: int) -> str:
    """Return the text; if it exceeds limit_chars, cut after a sentence or a line, or else between words."""
    if len(text) <= limit_chars:
        return text
    head = text[:limit_chars]
    ends = [position + len(end.rstrip()) for end in _SENTENCE_ENDS if (position := head.rfind(end)) > 0]
    if ends:
        return head[: max(ends)].rstrip()
    return head.rsplit(None, 1)[0] if len(head.split(None, 1)) > 1 else head


def with_cache_marks(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with two marks: after the system prompt, and after the newest message of a user or a tool.

    The first caches prompt and tools for every conversation, the second the whole conversation so far for the next
    step. Blank content is not marked: Anthropic's API refuses it.
    """
    marked = [dict(message) for message in messages]
    for role in ({"system"}, {"user", "tool"}):
        newest: dict[str, Any] = next((message for message in reversed(marked) if message.get("role") in role), {})
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
        function["description"] = shortened_description(function["description"], limit_chars=limit)
    return {**tool, "function": function}


def _one_type(types: Sequence[str]) -> dict[str, Any]:
    """Write `type: [X, "null"]` as Gemini does; it expresses several types as `anyOf`."""
    named = [name for name in types if name != "null"]
    nullable = {"nullable": True} if "null" in types else {}
    if len(named) > 1:
        return {"anyOf": [{"type": name} for name in named], **nullable}
    return {"type": named[0] if named else "string", **nullable}


def _without_images(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with a note in place of each image.

    A message that had an image becomes plain text: servers without vision often do not accept content in parts either.
    """
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    notes = [IMAGE_NOTE if part.get("type") in {"image_url", "image"} else None for part in parts]
    if not any(notes):
        return message
    texts = [note or part.get("text") or "" for note, part in zip(notes, parts, strict=True)]
    return {**message, "content": "\n".join(text for text in texts if text)}
