"""Converts a response to actions: each valid call is an action that may run; an invalid one has a refusal."""

from __future__ import annotations

import difflib
import json
import re
import uuid
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ohsandbox import events
from ohsandbox.agent.parsing import parse_arguments
from ohsandbox.errors import ToolArgumentsError, UnknownToolError
from ohsandbox.schema import Action
from ohsandbox.strict_json import is_object, load_json
from ohsandbox.tool.annotations import SECURITY_RISK, SECURITY_RISK_SCHEMA, CallHint, take_security_risk
from ohsandbox.tools.file_read import FileReadSource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from ohsandbox.events import EventBody
    from ohsandbox.llm import ChatResponse, ToolCall
    from ohsandbox.tool import ToolDefinition

    AnyTool = ToolDefinition[Any, Any]

FunctionCallValidationError = ToolArgumentsError
"""The name of `ToolArgumentsError` in other agent frameworks."""
FunctionCallNotExistsError = UnknownToolError
"""The name of `UnknownToolError` in other agent frameworks."""

RISK_LEVELS: list[str] = list(SECURITY_RISK_SCHEMA["enum"])
"""The values that a model may give as `security_risk`."""
SECURITY_RISK_DESC: str = SECURITY_RISK_SCHEMA["description"]
"""The description of `security_risk` for the model."""

_MAX_SHOWN_ARGUMENTS_CHARS = 200
"""Number of characters of an unknown tool's arguments to quote: enough to repeat the call with another tool."""

MAX_CALLS = 16
"""Maximum number of calls per response; a model that sends more does not use their results."""

_REFUSED_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that providers refuse in a function's name in the history."""

_AROUND_A_NAME = re.compile(r"^(?:functions?|tools?|default_api)[.:/]|<\|.*$|:\d+$", re.DOTALL)
"""Text that models add to a name: a namespace from training, a template token, the number of a call."""


class ActionSecurityRisk(Enum):
    """The possible harm of an action, as the model states it."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    UNKNOWN = "UNKNOWN"
    """The model gave no risk."""


class MessageAction(Action):
    """A message for the user: a response without tool calls."""

    content: str
    wait_for_response: bool = True
    """Whether it is the user's turn."""


class ToolCallMetadata(NamedTuple):
    """The id, name and position of a call in its response."""

    tool_call_id: str
    """Unique in the conversation."""
    function_name: str
    """The tool's name; for an unknown tool the model's text, in characters that providers accept."""
    response_id: str = ""
    call_index: int = 0
    total_calls_in_response: int = 1
    model_response: ChatResponse | None = None
    """The whole response; None if only the log has the call."""


class ActionEvent(NamedTuple):
    """One action of a response, or the reason for its refusal."""

    response: ChatResponse
    metadata: ToolCallMetadata | None = None
    """None for a message."""
    tool: AnyTool | None = None
    action: Action | None = None
    refusal: str | None = None
    """Why the call does not run; reported to the model."""
    thought: str = ""
    """The model's text beside its calls; only in the first action of a response."""
    security_risk: ActionSecurityRisk | None = None
    """None for messages, malformed calls, and read-only tools, for which it is not requested."""
    arguments: str = "{}"
    """A JSON object that every parser accepts."""
    raw_arguments: str | None = None
    """The model's original text, if different."""
    raw_name: str | None = None
    approval: int | None = None
    """The number of the standing approval that allows it; None if the call needs no approval, or asks the user."""

    @property
    def tool_call_id(self) -> str:
        """The call's id; "" for a message."""
        return self.metadata.tool_call_id if self.metadata else ""

    @property
    def name(self) -> str:
        """The tool's name; "" for a message."""
        return self.metadata.function_name if self.metadata else ""

    @property
    def hint(self) -> CallHint:
        """The tool's description of this call; an empty hint if there is no tool."""
        return CallHint() if self.tool is None else self.tool.call_hint(load_json(self.arguments))

    @property
    def event(self) -> EventBody:
        """The `tool_call` or `assistant_message` event, to be stored before anything runs.

        The first event of a response has its cost.
        """
        cost: dict[str, Any] = {"usage": self.response.usage.model_dump(), "cost_usd": self.response.cost_usd}
        if self.metadata is None:
            choice = self.response.choices[0]
            return events.assistant_message(
                choice.message.content, response_id=self.response.id, finish_reason=choice.finish_reason, **cost
            )
        hint = None
        if self.tool is not None and self.action is not None:
            call_hint = self.hint
            hint_fields = call_hint.model_dump(exclude_defaults=True, exclude={"needs_agent"})
            hint = {"kind": call_hint.kind, "writes": call_hint.writes, **hint_fields}
        return events.tool_call(
            tool_call_id=self.metadata.tool_call_id,
            name=self.metadata.function_name,
            arguments=self.arguments,
            response_id=self.metadata.response_id,
            call_index=self.metadata.call_index,
            total_calls=self.metadata.total_calls_in_response,
            thought=self.thought or None,
            security_risk=self.security_risk.value if self.security_risk else None,
            raw_arguments=self.raw_arguments,
            raw_name=self.raw_name,
            approval=self.approval,
            hint=hint,
            **(cost if self.metadata.call_index == 0 else {}),
        )


def accepted_name(name: str) -> str:
    """Return a function's name with `_` for what providers refuse in the history."""
    return _REFUSED_IN_NAMES.sub("_", name or "unknown")[:64]


def response_to_actions(
    response: ChatResponse, tools_map: Mapping[str, AnyTool], *, taken_ids: AbstractSet[str] = frozenset()
) -> list[ActionEvent]:
    """Return the actions of a response, in its order; without calls, one message.

    Args:
        response: has exactly one choice; `ChatResponse` ensures that.
        tools_map: the tools by name.
        taken_ids: call ids of earlier responses; a call with one of them, or without an id, gets a new id.
    """
    message = response.choices[0].message
    if not message.tool_calls:
        return [ActionEvent(response, action=MessageAction(content=message.content))]
    used: set[str] = set()
    planned = []
    for index, call in enumerate(message.tool_calls):
        is_fresh = call.id and call.id not in used and call.id not in taken_ids
        tool_call_id = call.id if is_fresh else f"call_{uuid.uuid4().hex[:24]}"
        used.add(tool_call_id)
        metadata = ToolCallMetadata(
            tool_call_id, call.function.name, response.id, index, len(message.tool_calls), response
        )
        planned.append(_planned(call, tools_map, ActionEvent(response, metadata)))
    return [combine_thought(planned[0], message.content), *planned[1:]]


def combine_thought(event: ActionEvent, thought: str) -> ActionEvent:
    """Return the event with a text before its own thought."""
    return event._replace(thought="\n".join(part for part in (thought, event.thought) if part))


def set_security_risk(event: ActionEvent, arguments: Mapping[str, Any]) -> ActionEvent:
    """Return the event with the risk in the arguments; if there is none, UNKNOWN, or None for a read-only tool.

    Raises:
        ToolArgumentsError: the risk is not one of RISK_LEVELS.
    """
    assert event.tool is not None  # noqa: S101 - only a tool has a risk
    is_argument = SECURITY_RISK in event.tool.arguments_type.model_fields
    _, stated_risk = ({}, None) if is_argument else take_security_risk(event.tool.name, arguments)
    if stated_risk is None and event.tool.is_read_only:
        return event._replace(security_risk=None)
    return event._replace(security_risk=ActionSecurityRisk(stated_risk or "UNKNOWN"))


def action_of(tool: AnyTool, arguments: dict[str, Any]) -> Action:
    """Return the action for an event's arguments.

    A null for an optional argument whose schema does not allow null is dropped: models send it to omit an argument.

    Raises:
        ToolArgumentsError: the arguments do not fit the tool.
    """
    fields = tool.arguments_type.model_fields
    idle = {
        name
        for name, field in fields.items()
        if not field.is_required() and type(None) not in get_args(field.annotation)
    }
    given_arguments = {name: value for name, value in arguments.items() if value is not None or name not in idle}
    action: Action = tool.action_from_arguments(given_arguments)
    return action


def only_reads(tool: AnyTool, action: Action | None) -> bool:
    """Whether the call changes nothing: the tool is read-only, or this action views a file."""
    return tool.is_read_only or isinstance(getattr(action, "impl_source", None), FileReadSource)


def runs_beside(tool: AnyTool, action: Action | None) -> bool:
    """Whether the call may run concurrently with adjacent calls: it changes nothing, and does not end the run."""
    return only_reads(tool, action) and not (asks_user(tool, action) or ends_task(tool, action))


def ends_task(tool: AnyTool | None, action: Action | None) -> bool:
    """Whether a successful call ends the task."""
    return _hint(tool, action).ends_task


def asks_user(tool: AnyTool | None, action: Action | None) -> bool:
    """Whether the user is next after a successful call."""
    return _hint(tool, action).asks_user


def _hint(tool: AnyTool | None, action: Action | None) -> CallHint:
    return CallHint() if tool is None or action is None else tool.call_hint(action.to_arguments())


def find_tool(tools_map: Mapping[str, AnyTool], name: str) -> AnyTool:
    """Return the tool with this name or alias; else the one with a similar spelling, if there is only one.

    Raises:
        UnknownToolError: there is none; the message names the closest and the available ones.
    """
    exact = tools_map.get(name) or next((tool for tool in tools_map.values() if name in tool.aliases), None)
    if exact is not None:
        return exact
    names = {_AROUND_A_NAME.sub("", name.strip()): None, name: None}
    for spelling in map(_spelling, names):
        alike = {
            tool.name: tool for tool in tools_map.values() if spelling in map(_spelling, (tool.name, *tool.aliases))
        }
        if spelling and len(alike) == 1:
            return next(iter(alike.values()))
    raise UnknownToolError(_no_such_tool(tools_map, name))


def _planned(call: ToolCall, tools_map: Mapping[str, AnyTool], event: ActionEvent) -> ActionEvent:
    """Complete the event with its tool, arguments and action, or with the refusal.

    The arguments are stored as strict JSON: providers refuse a history with anything else.
    """
    name, raw, parse_error = call.function.name, call.function.arguments, call.function.parse_error
    event = _named(event._replace(raw_arguments=raw), name, accepted_name(name))
    blocked = _blocked(event)
    try:
        tool, unknown = find_tool(tools_map, name), None
    except UnknownToolError as error:
        tool, unknown = None, error
    try:
        if parse_error:
            raise ToolArgumentsError(parse_error)  # noqa: TRY301 - reported like every other argument error
        needs_none = tool is not None and not tool.to_openai_tool()["function"]["parameters"].get("required")
        arguments = {} if raw.strip() in {"", "null"} and needs_none else parse_arguments(raw)
        stored = (raw, None) if is_object(raw) else (json.dumps(arguments), raw)
        event = event._replace(arguments=stored[0], raw_arguments=stored[1])
        if tool is None:
            return event._replace(refusal=blocked or f"{unknown} Nothing ran. You sent: {_shown(event.arguments)}")
        event = set_security_risk(_named(event._replace(tool=tool), name, tool.name), arguments)
        event = event._replace(action=action_of(tool, load_json(event.arguments)))
        vars(event.action)["tool_call_metadata"] = event.metadata  # this is not a field, and those are frozen
    except ToolArgumentsError as error:
        return event._replace(tool=None, security_risk=None, refusal=blocked or str(error))
    return event._replace(refusal=blocked)


def _named(event: ActionEvent, name: str, known_name: str) -> ActionEvent:
    assert event.metadata is not None  # noqa: S101 - a call has metadata
    metadata = event.metadata._replace(function_name=known_name)
    return event._replace(metadata=metadata, raw_name=name[:1000] if name != known_name else None)


def _blocked(event: ActionEvent) -> str | None:
    if cut := event.response.cut:
        return (
            f"Not executed: your reply was cut {cut}, so its last call is incomplete and none was run. "
            "Send the calls again in smaller pieces, one at a time."
        )
    if event.metadata and event.metadata.call_index >= MAX_CALLS:
        return (
            f"Not executed: too many calls in one reply; at most {MAX_CALLS} run. Send it again if it is still needed."
        )
    return None


def _shown(arguments: str) -> str:
    more = "..." if len(arguments) > _MAX_SHOWN_ARGUMENTS_CHARS else ""
    return arguments[:_MAX_SHOWN_ARGUMENTS_CHARS] + more


def _spelling(name: str) -> str:
    """Return the name without case, punctuation and the ending `Tool`."""
    return re.sub(r"[\W_]", "", name).lower().removesuffix("tool")


def _no_such_tool(tools_map: Mapping[str, AnyTool], name: str) -> str:
    spellings = {_spelling(spelled): tool.name for tool in tools_map.values() for spelled in (*tool.aliases, tool.name)}
    spellings_tried = map(_spelling, (name[:100], re.split(r"[.:/]", name[:100])[-1]))
    near = [match for spelling in spellings_tried for match in difflib.get_close_matches(spelling, spellings, n=1)]
    hint = f" Did you mean {spellings[near[0]]!r}?" if near else ""
    there = ", ".join(sorted(tools_map)) or "none"
    return f"Unknown tool: {name[:100].strip() or '(no name given)'}.{hint} Tools you can call: {there}."
