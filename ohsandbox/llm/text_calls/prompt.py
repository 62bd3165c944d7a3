"""What a model without tool calls in its API is told of tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.text_calls.markup import types_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.chat import ToolChoice, ToolParam
    from ohsandbox.llm.text_calls.markup import Schema

_HOW = r"""# Calling tools

To call a tool, end your reply with a call in exactly this form:

<call tool="TOOL">
<arg name="ARGUMENT">
VALUE
</arg>
</call>

- At most one call in a reply, and nothing after `</call>`: its result comes in the next message, as
  `<result tool="TOOL">`. Never write a result yourself.
- VALUE is taken as it is: no quotes around it, nothing escaped, line breaks and blanks kept. The line break after
  `<arg ...>` and the one before `</arg>` do not belong to it: text that ends in a line break needs an empty line there.
- Short values may stand in one line: `<arg name="ARGUMENT">VALUE</arg>`. Numbers and true or false are written plainly,
  arrays and objects as JSON. `<arg name="ARGUMENT" type="json">` makes any value JSON.
- Where VALUE itself holds `</arg>` or `</call>`, write `<\/arg>` or `<\/call>` in it.
- A reply without a call is an answer to the user.

# Tools"""

NO_CALL = "Do not call a tool in this reply. Answer in words."


def tools_prompt(tools: Sequence[ToolParam], tool_choice: ToolChoice) -> str:
    """The part of the system prompt that explains tools; "" where there are none."""
    if not tools:
        return ""
    if tool_choice == "none":
        return NO_CALL
    must = requirement(tool_choice)
    return "\n\n".join([_HOW, *(_described(tool["function"]) for tool in tools), *([must] if must else [])])


def requirement(tool_choice: ToolChoice) -> str:
    """What a reply must hold; "" where it is free."""
    wanted = required_tool(tool_choice)
    if wanted:
        return f"Your reply must end with a call of the tool {wanted}."
    return "Your reply must end with a call of a tool." if tool_choice == "required" else ""


def required_tool(tool_choice: ToolChoice) -> str | None:
    """The one tool that must be called, if it is named."""
    if isinstance(tool_choice, str):
        return None
    function = tool_choice.get("function")
    return str(function["name"]) if isinstance(function, dict) and function.get("name") else None


def properties_of(tool: ToolParam) -> dict[str, Schema]:
    """The schemas of a tool's arguments, by name."""
    found = (tool["function"].get("parameters") or {}).get("properties")
    return found if isinstance(found, dict) else {}


def _described(function: Mapping[str, Any]) -> str:
    properties = properties_of({"function": function})
    required = (function.get("parameters") or {}).get("required") or ()
    lines = [_argument(name, schema, required=name in required) for name, schema in properties.items()]
    arguments = ["Arguments:", *lines] if lines else ["No arguments."]
    return "\n".join([f"## {function['name']}", *filter(None, [function.get("description")]), *arguments])


def _argument(name: str, schema: Schema, *, required: bool) -> str:
    types = types_of(schema)
    facts = [" or ".join(sorted(types)) or "text", "required" if required else "optional"]
    if "enum" in schema:
        facts.append("one of " + ", ".join(_plain(value) for value in schema["enum"]))
    if "default" in schema:
        facts.append(f"default {_plain(schema['default'])}")
    told = f"- {name} ({'; '.join(facts)})" + (f": {schema['description']}" if schema.get("description") else "")
    if types & {"array", "object"}:
        told += f"\n  JSON schema: {json.dumps(_without_words(schema), ensure_ascii=False)}"
    return told


def _without_words(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in {"description", "default"}}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
