"""The forms of a tool in `Agent(tools=...)`, besides agents: a name, a spec or a definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.tool import RuntimeTool, Tool, ToolDefinition, function_tool, is_registered

AnyTool = ToolDefinition[Any, Any]
GivenTool = str | Tool | AnyTool | RuntimeTool | Mapping[str, Any] | Callable[..., Any]


def tool_entry(given: GivenTool) -> str | Tool | AnyTool:
    """Return an agent's entry for a tool. Whether a name exists is checked when a conversation makes the tools.

    A dict names a registered tool, whose own description and schema are used: `{"type": "function", "function":
    {"name": ...}}`, as in litellm and OpenAI, or only `name`. A dict with `inputSchema`, as from `Runtime.get_tools`,
    may name a tool of the runtime.

    Raises:
        UsageError: the object has none of these forms, a dict's tool is not registered, or a function cannot be a tool.
    """
    if isinstance(given, str | Tool | ToolDefinition):
        return given
    if isinstance(given, RuntimeTool):
        return Tool(name=given.name)
    if isinstance(given, Mapping):
        return _named_by(given)
    if inspect.isfunction(given) or inspect.ismethod(given):
        return function_tool(given)
    shown = f"class {given.__name__!r}" if isinstance(given, type) else f"{type(given).__name__} {given!r}"[:200]
    raise UsageError(
        f"An agent's tools cannot hold the {shown}. Give a name, a Tool, a ToolDefinition, a dict, a function or an "
        "Agent; register a class or a factory with register_tool, and name it."
    )


def _named_by(fields: Mapping[str, Any]) -> Tool:
    if "inputSchema" in fields:
        try:
            return Tool(name=RuntimeTool.model_validate(fields).name)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise UsageError(
                f"Tool dict is not as Runtime.get_tools has it: {fault['loc']}: {fault['msg']}. Pass one of its dicts."
            ) from None
    function = fields.get("function", fields)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name or fields.get("type", "function") != "function":
        raise UsageError(
            f"A tool's dict needs a name: {{'type': 'function', 'function': {{'name': ...}}}}; this one has the keys "
            f"{', '.join(map(repr, fields))}."[:500]
        )
    if not is_registered(name):
        raise UsageError(
            f"Tool {name!r} is only described: nothing runs a dict, and no tool of that name is registered. "
            "Give the Python function itself, or register a tool with register_tool."
        )
    return Tool(name=name)
