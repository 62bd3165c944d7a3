"""A response's tool calls, checked: each becomes an action that may run, or the reason why nothing does."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ohsandbox import events
from ohsandbox.errors import ToolArgumentsError, UnknownToolError
from ohsandbox.tool.arguments import SECURITY_RISK, take_security_risk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.events import EventBody
    from ohsandbox.llm import ChatResponse
    from ohsandbox.schema import Action
    from ohsandbox.tool import ToolDefinition

MAX_CALLS = 16
"""Of one response so many run; five hundred at once is a model gone wrong, and none of them saw another's result."""

MAX_ARGUMENTS_CHARS = 2 * 1024 * 1024
"""Room for a 1 MiB file with every character escaped; more would be sent again with every later request."""

MAX_QUOTED_CHARS = 500
"""Of malformed arguments the model is shown this much."""

_NAME = re.compile(r"[^a-zA-Z0-9_-]")
"""What providers refuse in a function's name when history is sent back."""


class PlannedCall(NamedTuple):
    """One tool call of a response."""

    tool_call_id: str
    name: str
    event: EventBody
    """The `tool_call` event, to be stored before anything runs."""
    tool: ToolDefinition[Any, Any] | None = None
    action: Action | None = None
    refusal: str | None = None
    """Why nothing runs; told to the model."""


class _Parsed(NamedTuple):
    tool: ToolDefinition[Any, Any]
    action: Action
    security_risk: str | None


def response_to_actions(
    response: ChatResponse, tools_map: Mapping[str, ToolDefinition[Any, Any]], *, taken_ids: frozenset[str] | set[str]
) -> list[PlannedCall]:
    """The calls of a response in its order; text and cost of the response stand on the first one.

    Args:
        response: one answer.
        tools_map: the tools by name.
        taken_ids: call ids of earlier responses; a call with one of them, or with none, gets a fresh id.
    """
    choice = response.choices[0]
    used = set(taken_ids)
    planned = []
    for index, call in enumerate(choice.message.tool_calls):
        tool_call_id = call.id if call.id and call.id not in used else f"call_{uuid.uuid4().hex[:24]}"
        used.add(tool_call_id)
        blocked = _blocked(index, finish_reason=choice.finish_reason)
        first = {
            "thought": choice.message.content or None,
            "usage": response.usage.model_dump(),
            "cost_usd": response.cost_usd,
        }
        place: dict[str, Any] = {
            "tool_call_id": tool_call_id,
            "response_id": response.id,
            "call_index": index,
            "total_calls": len(choice.message.tool_calls),
            **(first if index == 0 else {}),
        }
        planned.append(_plan(call.function.name, call.function.arguments, tools_map, place=place, blocked=blocked))
    return planned


def find_tool(tools_map: Mapping[str, ToolDefinition[Any, Any]], name: str) -> ToolDefinition[Any, Any]:
    """The tool of that name or alias.

    Raises:
        UnknownToolError: there is none; the message names those that are.
    """
    tool = tools_map.get(name) or next((tool for tool in tools_map.values() if name in tool.aliases), None)
    if tool is None:
        raise UnknownToolError(f"Unknown tool: {name[:100]}. Tools you can call: {', '.join(sorted(tools_map))}.")
    return tool


def _blocked(index: int, *, finish_reason: str | None) -> str | None:
    if finish_reason == "length":
        return (
            "Not executed: your reply was cut at the output limit, so its last call is incomplete and none was run. "
            "Send the calls again in smaller pieces, one at a time."
        )
    if index >= MAX_CALLS:
        return (
            f"Not executed: too many calls in one reply; at most {MAX_CALLS} run. Send it again if it is still needed."
        )
    return None


def _plan(
    name: str,
    raw: str,
    tools_map: Mapping[str, ToolDefinition[Any, Any]],
    *,
    place: dict[str, Any],
    blocked: str | None,
) -> PlannedCall:
    safe_name = _NAME.sub("_", name or "unknown")[:64]
    facts = {**place, "name": safe_name, "raw_name": name[:1000] if name != safe_name else None}
    identity = {"tool_call_id": place["tool_call_id"], "name": safe_name}
    stored = "{}"
    try:
        arguments = parse_arguments(raw)
        stored = raw if _is_strict(raw) else json.dumps(arguments)
        parsed = _parse(name, arguments, tools_map)
    except (ToolArgumentsError, UnknownToolError) as error:
        kept_raw = raw if stored != raw else None
        event = events.tool_call(**facts, arguments=stored, raw_arguments=kept_raw)
        return PlannedCall(**identity, event=event, refusal=blocked or str(error))
    kept_raw = raw if stored != raw else None
    event = events.tool_call(**facts, arguments=stored, raw_arguments=kept_raw, security_risk=parsed.security_risk)
    return PlannedCall(**identity, event=event, tool=parsed.tool, action=parsed.action, refusal=blocked)


def _parse(name: str, arguments: dict[str, Any], tools_map: Mapping[str, ToolDefinition[Any, Any]]) -> _Parsed:
    tool = find_tool(tools_map, name)
    if SECURITY_RISK in tool.action_type.model_fields:
        return _Parsed(tool, tool.action_from_arguments(arguments), None)
    rest, risk = take_security_risk(tool.name, arguments)
    return _Parsed(tool, tool.action_from_arguments(rest), risk)


def parse_arguments(raw: str) -> dict[str, Any]:
    """The arguments that a model wrote. Raw control characters in strings pass: models write them.

    Raises:
        ToolArgumentsError: no JSON object, or not finite, or too long; says where, and quotes the beginning.
    """
    if len(raw) > MAX_ARGUMENTS_CHARS:
        raise ToolArgumentsError(
            f"Failed to parse tool call arguments: they are {len(raw)} characters long, at most {MAX_ARGUMENTS_CHARS} "
            "are taken. Nothing ran. Send less at once: write a large file in parts."
        )
    try:
        arguments = json.loads(raw, strict=False, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ToolArgumentsError(_malformed(str(error) or "nested too deep", raw)) from None
    if not isinstance(arguments, dict):
        raise ToolArgumentsError(_malformed(f"a JSON object is needed, not {type(arguments).__name__}", raw))
    return arguments


def _is_strict(raw: str) -> bool:
    """Whether a strict parser takes it too; providers refuse history with malformed JSON in it."""
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _malformed(reason: str, raw: str) -> str:
    return (
        f"Failed to parse tool call arguments: {reason}. Nothing ran. You sent: {raw[:MAX_QUOTED_CHARS]!r}"
        f"{'...' if len(raw) > MAX_QUOTED_CHARS else ''}. Send the call again with valid JSON."
    )
