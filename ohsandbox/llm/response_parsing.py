"""Converts what a provider sends to a ChatResponse: assembles chunks and repairs malformed fields.

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

MAX_CALLS = 1000
"""Limit of calls in an answer; further ones of a complete answer are dropped. Each takes some 500 bytes, and 60 on the
wire."""


def read_answer(
    answer: Mapping[str, Any],
    *,
    used_ids: Iterable[str] = (),
    cost_usd: float | None = None,
) -> ChatResponse:
    """Parse an answer in OpenAI form; anything missing or malformed in it counts as absent.

    Args:
        answer: the JSON object, from the wire or put together from a stream.
        used_ids: ids of earlier tool calls; a call with one of them, or with none, gets the next free `call_<n>`.
        cost_usd: the cost of the answer, if known.
    """
    answer = repair_response({"choices": []} | dict(answer) | {"error": None})
    [choice] = answer["choices"] or [{"message": {}}]
    message, usage = choice["message"], answer["usage"]
    content = encodable(content_text(message.get("content")) or "")
    tool_calls = _tool_calls(message.get("tool_calls") or [], set(used_ids))
    finish_reason = _string(choice.get("finish_reason")) or None
    return ChatResponse(
        id=_string(answer.get("id")) or f"response-{uuid.uuid4().hex}",
        model=_string(answer.get("model")),
        choices=(Choice(message=ChatMessage(content=content, tool_calls=tool_calls), finish_reason=finish_reason),),
        usage=Usage(
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ),
        cost_usd=cost_usd,
    )


def with_cost_of(earlier: ChatResponse, response: ChatResponse) -> ChatResponse:
    """Return the response, its cost increased by that of an earlier response that it replaces."""
    usage = Usage(**{name: count + getattr(earlier.usage, name) for name, count in response.usage})
    is_priced = earlier.cost_usd is not None and response.cost_usd is not None
    cost_usd = (earlier.cost_usd or 0) + (response.cost_usd or 0) if is_priced else None
    return response.model_copy(update={"usage": usage, "cost_usd": cost_usd})


def call_ids(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of all tool calls in a conversation."""
    calls = itertools.chain.from_iterable(message.get("tool_calls") or () for message in messages)
    return {str(call.get("id")) for call in calls if isinstance(call, Mapping)}


def fresh_ids(used: AbstractSet[str]) -> Iterator[str]:
    """Yield the ids `call_1`, `call_2`, ... that are not used."""
    return (name for name in (f"call_{number}" for number in itertools.count(1)) if name not in used)


def _tool_calls(calls: list[dict[str, Any]], used: set[str]) -> tuple[ToolCall, ...]:
    fresh = fresh_ids(used)
    tool_calls = []
    for call in calls:
        given_id, arguments = _string(call["id"]), call["function"].get("arguments")
        call_id = given_id if given_id and given_id not in used else next(fresh)
        used.add(call_id)
        if not isinstance(arguments, str | None):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = FunctionCall(name=_string(call["function"].get("name")), arguments=encodable(arguments or ""))
        tool_calls.append(ToolCall(id=call_id, function=function))
    return tuple(tool_calls)


def _string(value: Any) -> str:
    return encodable(value) if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def repair_response(answer: Any) -> Any:
    """Return the answer with at most one choice, a readable message and a `usage` of real counts; else unchanged."""
    if not isinstance(answer, dict) or "choices" not in answer or answer.get("error"):
        return answer
    choices = [_repaired_choice(_object(choice)) for choice in _list(answer["choices"])[:1]]
    return answer | {"choices": choices, "usage": _repaired_usage(_object(answer.get("usage")))}


def _repaired_choice(choice: dict[str, Any]) -> dict[str, Any]:
    message = _object(choice.get("message"))
    repaired = message | {"role": "assistant", "content": content_text(message.get("content"))}
    if "tool_calls" in message:
        calls = [call for call in _list(message["tool_calls"])[:MAX_CALLS] if isinstance(call, dict)]
        no_function = {"name": None, "arguments": ""}
        repaired["tool_calls"] = [
            call | {"id": call.get("id") or "", "function": _object(call.get("function")) or no_function}
            for call in calls
        ] or None
    return {**choice, "index": 0, "message": repaired}


def _repaired_usage(usage: dict[str, Any]) -> dict[str, Any]:
    prompt, completion = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": token_count(cached)},
    }


def content_text(content: Any) -> str | None:
    """Return the text of a message's content: a string, or the joined texts of its parts; None if there is none."""
    if isinstance(content, str) or content is None:
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in _list(content)]
    return "".join(text for text in texts if isinstance(text, str))


def token_count(value: Any) -> int:
    """Return value if it is a number of tokens, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class StreamedAnswer:
    """Assembles a streamed answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[dict[str, list[str]]] = []
        """The pieces of each call's id, name and arguments."""
        self._by_index: dict[Any, dict[str, list[str]]] = {}
        self._top: dict[str, Any] = {"usage": None}
        self._finish_reason: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add one chunk in OpenAI form; return the text in it, or ""."""
        self._top |= {key: chunk[key] for key in ("id", "model", "usage") if chunk.get(key)}
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        for part in delta.get("tool_calls") or []:
            self._add_to_call(part)
        text = delta.get("content")
        if not isinstance(text, str):
            return ""
        self._text.append(text)
        return text

    @property
    def is_finished(self) -> bool:
        """Whether a finish reason has come."""
        return self._finish_reason is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer in OpenAI form."""
        calls = [{key: "".join(pieces) for key, pieces in call.items()} for call in self._calls]
        tool_calls = [{"id": call.pop("id"), "type": "function", "function": call} for call in calls]
        message = {"content": "".join(self._text), "tool_calls": tool_calls}
        return self._top | {"choices": [{"message": message, "finish_reason": self._finish_reason}]}

    def _add_to_call(self, part: Mapping[str, Any]) -> None:
        """Add a part to the call of its index, unless its id shows that a new call begins.

        Some servers give every call of an answer the index 0.
        """
        call = self._by_index.get(part.get("index"))
        if call is None or (part.get("id") and call["id"] and [part["id"]] != call["id"]):
            if len(self._calls) >= MAX_CALLS:
                raise ValueError(f"over {MAX_CALLS} tool calls in one answer")
            call = self._by_index[part.get("index")] = {"id": [], "name": [], "arguments": []}
            self._calls.append(call)
        if part.get("id"):
            call["id"] = [part["id"]]
        function = part.get("function") or {}
        for key in ("name", "arguments"):
            call[key].append(function.get(key) or "")
