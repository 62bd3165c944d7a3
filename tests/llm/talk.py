"""A conversation with a tool, and how it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.llm import LLM, ChatResponse, LLMEvent
from ohsandbox.testing.provider import FakeClock, FakeProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

PARAMETERS = {
    "type": "object",
    "$schema": "x",
    "additionalProperties": False,
    "required": ["default"],
    "properties": {
        "default": {"type": "string", "format": "uri", "default": "x", "description": "A name."},
        "when": {"type": "string", "format": "date-time"},
        "format": {"type": ["integer", "null"], "format": "int32", "exclusiveMinimum": 0},
        "level": {"enum": [1, 2], "type": "integer", "description": "How."},
        "kind": {"const": "a", "type": "string"},
        "list": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}},
        "any": {"anyOf": [{"type": "string", "format": "email", "default": ""}, {"type": "null"}]},
        "two": {"type": ["string", "integer"]},
    },
}


def tool(**function: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS} | function,
    }


def assistant(*pairs: tuple[str, str], content: str = "") -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": "look", "arguments": raw}} for i, raw in pairs]
    return {"role": "assistant", "content": content, "tool_calls": made}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Go."},
    assistant(("c1", '{"default": "a"}')),
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
]
WITH_IMAGE = [*TALK, {"role": "user", "content": [{"type": "text", "text": "The picture:"}, IMAGE]}]


def send(
    provider: FakeProvider,
    *,
    llm: LLM | None = None,
    tools: Sequence[dict[str, Any]] = (),
    messages: Sequence[dict[str, Any]] = TALK,
    tool_choice: Any = "auto",
    **changes: Any,
) -> tuple[ChatResponse, list[LLMEvent]]:
    told: list[LLMEvent] = []
    llm = llm or LLM(provider.config(**changes), clock=FakeClock())
    return llm.send(messages, tools or [tool()], tool_choice, on_event=told.append), told
