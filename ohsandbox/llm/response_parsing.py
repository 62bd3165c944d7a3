"""From what a provider sends to a ChatResponse: chunks are assembled, malformed fields repaired.

litellm 1.106 turns a null message, text in parts and negative usage of an OpenAI-shaped answer into a status 500, so
`repair_response` works on the body before litellm reads it.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.chat import ChatMessage, ChatResponse, Choice, FunctionCall, ToolCall, Usage
from ohsandbox.text import encodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet


def read_answer(
    answer: Mapping[str, Any],
    *,
    used_ids: Iterable[str] = (),
    cost_usd: float | None = None,
) -> ChatResponse:
    """The response in an OpenAI-shaped answer; anything missing or malformed in it is read as absent.

    Args:
        answer: the JSON object, from the wire or put together from a stream.
        used_ids: ids of earlier tool calls; a call with one of them, or with none, gets the next free `call_<n>`.
        cost_usd: what it cost, where that is known.
    """
    answer = repair_response({"choices": []} | dict(answer) | {"error": None})
    choice = answer["choices"][0] if answer["choices"] else {"message": {}}
    message = choice["message"]
    text = content_text(message.get("content")) or ""
    usage = answer["usage"]
    return ChatResponse(
        id=_string(answer.get("id")) or f"response-{uuid.uuid4().hex}",
        model=_string(answer.get("model")),
        choices=(
            Choice(
                message=ChatMessage(
                    content=encodable(text), tool_calls=_calls(message.get("tool_calls") or [], used_ids)
                ),
                finish_reason=_string(choice.get("finish_reason")) or None,
            ),
        ),
        usage=Usage(
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ),
        cost_usd=cost_usd,
    )


def with_cost_of(earlier: ChatResponse, response: ChatResponse) -> ChatResponse:
    """The response with what an earlier one, whose place it takes, cost as well."""
    usage = Usage(**{name: count + getattr(earlier.usage, name) for name, count in response.usage})
    known = earlier.cost_usd is not None and response.cost_usd is not None
    return response.model_copy(
        update={"usage": usage, "cost_usd": (earlier.cost_usd or 0) + (response.cost_usd or 0) if known else None}
    )


def call_ids(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids of all tool calls in a conversation."""
    calls = itertools.chain.from_iterable(message.get("tool_calls") or () for message in messages)
    return {str(call.get("id")) for call in calls if isinstance(call, Mapping)}


def _calls(calls: list[dict[str, Any]], used_ids: Iterable[str]) -> tuple[ToolCall, ...]:
    used = set(used_ids)
    fresh = fresh_ids(used)
    found = []
    for call in calls:
        asked = _string(call.get("id"))
        call_id = asked if asked and asked not in used else next(fresh)
        used.add(call_id)
        function = call["function"]
        named = FunctionCall(name=_string(function.get("name")), arguments=_arguments(function.get("arguments")))
        found.append(ToolCall(id=call_id, function=named))
    return tuple(found)


def fresh_ids(used: AbstractSet[str]) -> Iterator[str]:
    """The ids `call_1`, `call_2`, ... that are not used."""
    return (name for name in (f"call_{number}" for number in itertools.count(1)) if name not in used)


def _arguments(arguments: Any) -> str:
    """The raw text; some servers send the object itself."""
    if arguments is None:
        return ""
    return encodable(arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _string(value: Any) -> str:
    return encodable(value) if isinstance(value, str) else ""


def repair_response(answer: Any) -> Any:
    """The answer with at most one choice, a readable message in it, and `usage` of real counts; other JSON as it is."""
    if not isinstance(answer, dict) or "choices" not in answer or answer.get("error"):
        return answer
    choices = answer["choices"] if isinstance(answer["choices"], list) else []
    return answer | {
        "choices": [_repaired_choice(choice) for choice in choices[:1]],
        "usage": normalized_usage(answer.get("usage")),
    }


def _repaired_choice(choice: Any) -> dict[str, Any]:
    choice = choice if isinstance(choice, dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    mended = message | {"role": "assistant", "content": content_text(message.get("content"))}
    if "tool_calls" in message:
        mended["tool_calls"] = _repaired_calls(message["tool_calls"]) or None
    return {**choice, "index": 0, "message": mended}


def _repaired_calls(calls: Any) -> list[dict[str, Any]]:
    listed = calls if isinstance(calls, list) else []
    return [
        call | {"id": call.get("id") or "", "function": _repaired_function(call.get("function"))}
        for call in listed
        if isinstance(call, dict)
    ]


def _repaired_function(function: Any) -> dict[str, Any]:
    return function if isinstance(function, dict) else {"name": None, "arguments": ""}


def content_text(content: Any) -> str | None:
    """The text of a message's content: a string, or the joined texts of its parts; None where there is none."""
    if isinstance(content, str) or content is None:
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "".join(text for text in texts if isinstance(text, str))


def token_count(value: Any) -> int:
    """A number of tokens: value where it is one, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def normalized_usage(usage: Any) -> dict[str, Any]:
    """The usage in OpenAI's form, with nothing but counts."""
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    prompt, completion = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": token_count(cached)},
    }


class StreamedAnswer:
    """The answer so far."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[_StreamedCall] = []
        self._slots: dict[Any, _StreamedCall] = {}
        self._top: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in one OpenAI-shaped chunk; returns the text in it, or ""."""
        self._top |= {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        self._finish_reason = choices[0].get("finish_reason") or self._finish_reason
        for part in delta.get("tool_calls") or []:
            self._slot(part).add(part)
        text = delta.get("content")
        if not isinstance(text, str):
            return ""
        self._text.append(text)
        return text

    def to_dict(self) -> dict[str, Any]:
        """The OpenAI-shaped answer."""
        message = {"content": "".join(self._text), "tool_calls": [call.to_dict() for call in self._calls]}
        choice = {"message": message, "finish_reason": self._finish_reason}
        return self._top | {"choices": [choice], "usage": self._usage}

    def _slot(self, part: Mapping[str, Any]) -> _StreamedCall:
        """The call that part belongs to: that of its index, unless its id says that a new one begins there.

        Some servers give every call of an answer the index 0.
        """
        index = part.get("index")
        call = self._slots.get(index)
        if call is None or (part.get("id") and call.id and part["id"] != call.id):
            call = self._slots[index] = _StreamedCall()
            self._calls.append(call)
        return call


class _StreamedCall:
    def __init__(self) -> None:
        self.id = ""
        self._name: list[str] = []
        self._arguments: list[str] = []

    def add(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or {}
        self.id = self.id or part.get("id") or ""
        self._name.append(function.get("name") or "")
        self._arguments.append(function.get("arguments") or "")

    def to_dict(self) -> dict[str, Any]:
        function = {"name": "".join(self._name), "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function", "function": function}
