"""Mending what a provider answers, before litellm sees it and gives up on the whole answer.

litellm 1.106 turns a null message, text in parts and negative usage of an OpenAI-shaped answer into a status 500.
"""

from __future__ import annotations

from typing import Any


def repaired(answer: Any) -> Any:
    """The answer with at most one choice, a readable message in it, and `usage` of real counts; other JSON as it is."""
    if not isinstance(answer, dict) or "choices" not in answer or answer.get("error"):
        return answer
    choices = answer["choices"] if isinstance(answer["choices"], list) else []
    return answer | {"choices": [_choice(choice) for choice in choices[:1]], "usage": usage_of(answer.get("usage"))}


def _choice(choice: Any) -> dict[str, Any]:
    choice = choice if isinstance(choice, dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    mended = message | {"role": "assistant", "content": text_of(message.get("content"))}
    if "tool_calls" in message:
        mended["tool_calls"] = _calls(message["tool_calls"]) or None
    return {**choice, "index": 0, "message": mended}


def _calls(calls: Any) -> list[dict[str, Any]]:
    listed = calls if isinstance(calls, list) else []
    return [
        call | {"id": call.get("id") or "", "function": _function(call.get("function"))}
        for call in listed
        if isinstance(call, dict)
    ]


def _function(function: Any) -> dict[str, Any]:
    return function if isinstance(function, dict) else {"name": None, "arguments": ""}


def text_of(content: Any) -> str | None:
    """The text of a message's content: a string, or the joined texts of its parts; None where there is none."""
    if isinstance(content, str) or content is None:
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "".join(text for text in texts if isinstance(text, str))


def count_of(value: Any) -> int:
    """A number of tokens: value where it is one, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def usage_of(usage: Any) -> dict[str, Any]:
    """The usage in OpenAI's form, with nothing but counts."""
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    prompt, completion = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": count_of(cached)},
    }
