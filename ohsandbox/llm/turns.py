"""What the two models without a provider share: an answer from given parts, and where in a conversation one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.llm.events import DeltaEvent, OnEvent
from ohsandbox.llm.reading import call_ids, read_answer
from ohsandbox.llm.repair import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.model import Message
    from ohsandbox.llm.response import ChatResponse


def position(messages: Sequence[Message]) -> int:
    """How often the assistant has spoken. By it a model needs no memory: resumed, forked and shared, it still fits."""
    return sum(message.get("role") == "assistant" for message in messages)


def answer(
    message: Mapping[str, Any],
    *,
    model: str,
    messages: Sequence[Message],
    on_event: OnEvent | None,
) -> ChatResponse:
    """The response that says message, an assistant message in OpenAI form; its text is told as one piece."""
    finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"message": dict(message), "finish_reason": finish_reason}
    fields = {"model": model, "choices": [choice]}
    response = read_answer(fields, used_ids=call_ids(messages), cost_usd=0.0)
    if on_event and response.message.content:
        on_event(DeltaEvent(text=response.message.content))
    return response


def last_result(messages: Sequence[Message]) -> str:
    """The text of the newest message of a tool, or ""."""
    results = (message for message in reversed(messages) if message.get("role") == "tool")
    return text_of(next(results, {}).get("content")) or ""
