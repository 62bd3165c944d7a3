"""From a provider's answer, whatever it holds, to a ChatResponse."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ohsandbox.llm.repair import repaired, text_of
from ohsandbox.llm.response import ChatMessage, ChatResponse, Choice, FunctionCall, ToolCall, Usage
from ohsandbox.llm.text import encodable


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
    answer = repaired({"choices": []} | dict(answer) | {"error": None})
    choice = answer["choices"][0] if answer["choices"] else {"message": {}}
    message = choice["message"]
    text = text_of(message.get("content")) or ""
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
