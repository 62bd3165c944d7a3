"""Making tools and messages fit what a model takes. Pure: what comes in is not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.llm.capabilities import Capabilities
    from ohsandbox.llm.chat import Message, ToolParam

IMAGE_NOTE = "[There was an image here. This model is not shown images: use a tool that describes it in words.]"

CACHE_MARK = {"type": "ephemeral"}
"""Anthropic's word for "keep the prompt up to here" for five minutes."""

_NOT_FOR_GEMINI = frozenset(
    {
        "$schema",
        "additionalProperties",
        "const",
        "default",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "patternProperties",
        "propertyNames",
    }
)
"""JSON Schema's words that Gemini's API answers with 400 `Unknown name`; `const` becomes an `enum` of one."""

_GEMINI_STRING_FORMATS = frozenset({"enum", "date-time"})
_MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords that hold a list of schemas."""
_SENTENCE_ENDS = (". ", ".\n", "\n\n", "\n")


def adapt_request(request: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    """The request as the model takes it: its tools' words and schemas, its images, its cache marks."""
    fitted = dict(request)
    if "tools" in request:
        fitted["tools"] = adapt_tools(request["tools"], capabilities)
    if not capabilities.vision:
        fitted["messages"] = without_images(fitted["messages"])
    if capabilities.blank_is_null:
        fitted["messages"] = [_blank_as_null(message) for message in fitted["messages"]]
    if capabilities.cache_marks:
        fitted["messages"] = with_cache_marks(fitted["messages"])
    return fitted


def adapt_tools(tools: Sequence[ToolParam], capabilities: Capabilities) -> list[dict[str, Any]]:
    """The tools with schemas and descriptions as the model takes them."""
    fitted = [dict(tool) for tool in tools]
    if capabilities.gemini_schemas:
        fitted = [_with_function(tool, parameters=gemini_schema) for tool in fitted]
    if (limit := capabilities.description_limit_chars) is not None:
        fitted = [_with_function(tool, description=lambda text: shortened(text, limit_chars=limit)) for tool in fitted]
    return fitted


def gemini_schema(schema: Any) -> Any:
    """The JSON schema in the words that Gemini knows; a property may have any name."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _NOT_FOR_GEMINI}
    if "const" in schema:
        kept["enum"] = [schema["const"]]
    if isinstance(schema.get("type"), list):
        kept = {key: value for key, value in kept.items() if key != "type"} | _one_type(schema["type"])
    if kept.get("type") == "string" and kept.get("format") not in _GEMINI_STRING_FORMATS:
        kept.pop("format", None)
    if any(not isinstance(value, str) for value in kept.get("enum", ())):
        allowed = ", ".join(str(value) for value in kept.pop("enum"))  # "enum: only allowed for STRING type"
        kept["description"] = f"{kept.get('description', '')} One of: {allowed}.".strip()
    for key in kept.keys() & _MANY:
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


def without_images(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with a note in place of each image.

    A message that had one becomes plain text: servers without vision often take no content in parts either.
    """
    return [_in_words(message) if _has_image(message) else dict(message) for message in messages]


def with_cache_marks(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with two marks: after the system prompt, and after the newest message of a user or a tool.

    The first keeps prompt and tools for every conversation, the second the whole so far for the next step.
    """
    marked = [dict(message) for message in messages]
    for role in ({"system"}, {"user", "tool"}):
        newest = next((message for message in reversed(marked) if message.get("role") in role), None)
        if newest is not None:
            newest["content"] = _marked(newest.get("content"))
    return marked


def _with_function(tool: dict[str, Any], **changes: Callable[[Any], Any]) -> dict[str, Any]:
    function = dict(tool["function"])
    for name, change in changes.items():
        if name in function:
            function[name] = change(function[name])
    return {**tool, "function": function}


def _one_type(types: Sequence[str]) -> dict[str, Any]:
    """`type: [X, "null"]` as Gemini writes it; of several types it takes `anyOf`."""
    named = [name for name in types if name != "null"]
    nullable = {"nullable": True} if "null" in types else {}
    if len(named) == 1:
        return {"type": named[0], **nullable}
    return {"type": "string", **nullable} if not named else {"anyOf": [{"type": name} for name in named], **nullable}


def _blank_as_null(message: Message) -> dict[str, Any]:
    is_blank = message.get("tool_calls") and not str(message.get("content") or "").strip()
    return {**message, "content": None} if is_blank else dict(message)


def _has_image(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(_is_image(part) for part in content)


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in {"image_url", "image"}


def _in_words(message: Message) -> dict[str, Any]:
    texts = [IMAGE_NOTE if _is_image(part) else part.get("text") or "" for part in message["content"]]
    return {**message, "content": "\n".join(text for text in texts if text)}


def _marked(content: Any) -> Any:
    """The content in parts with the mark on the last; unchanged where that is blank, which Anthropic's API refuses."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    if not parts or (parts[-1].get("type") == "text" and not str(parts[-1].get("text")).strip()):
        return content
    return [*parts[:-1], {**parts[-1], "cache_control": CACHE_MARK}]
