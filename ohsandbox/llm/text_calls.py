"""Tool calls for models whose API has none: described in the prompt, written by the model as text, and parsed from it.

    <call tool="execute_bash">
    <arg name="command">
    grep -n "TODO" -r src | head
    </arg>
    <arg name="timeout">20</arg>
    </call>

A value is written without quotes and escapes, so that models that cannot write JSON can send code of many lines.
"""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.llm.chat import ChatMessage, Choice, DeltaEvent, FunctionCall, LLMEvent, OnEvent, RetryEvent, ToolCall
from ohsandbox.llm.response_parsing import call_ids, content_text, fresh_ids
from ohsandbox.strict_json import load_json, refuse_constant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.chat import ChatResponse, Message, ToolChoice, ToolParam

Schema = dict[str, Any]
Parts = list[dict[str, Any]]

STOP = "</call>"
"""The provider is asked to stop here, so that the model cannot continue with an invented result. It omits this text."""

_NO_CALL = "Do not call a tool in this reply. Answer in words."

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

_OPENING = "<call "
_ATTRIBUTE = r"""\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>/]+))"""
_OPEN_CALL = re.compile(rf"<call\s+(?:tool|name){_ATTRIBUTE}\s*(/?)>\s*")
_OPEN_ARG = re.compile(rf"""<arg\s+name{_ATTRIBUTE}\s*(type\s*=\s*["']?json["']?\s*)?>""")
_CLOSE_ARG = re.compile(r"</arg\s*>(?=\s*(?:<arg\s|</call\b|<call\s|<result\s|\Z))\s*")
"""A tag that ends an argument: the next argument follows, or what can follow a call. Other tags belong to the value."""
_END_OF_CALL = re.compile(r"</call\s*>|(?=<call\s|<result\s)|\Z")
"""The end of a call. Also matches if the model does not close it and continues with an invented result."""
_BLANKS_BEFORE_CLOSING = re.compile(r"\n[ \t]*\Z")
_CLOSING = re.compile(r"<(\\*)/(arg|call)")
_ESCAPED_CLOSING = re.compile(r"<\\(\\*)/(arg|call)")
_QUOTED_CHARS = 80

_FORM = (
    'Nothing ran. Write it again: <call tool="NAME">, then for each argument <arg name="ARGUMENT">, the value and '
    "</arg>, then </call>."
)


class TextCalls:
    """One request of the agent, for a model that is asked in text.

    Args:
        request: messages, and perhaps tools and tool_choice, in OpenAI form.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._messages = request["messages"]
        self._tools = request.get("tools") or ()
        self._choice = request.get("tool_choice", "auto")
        self._schemas = {tool["function"]["name"]: _properties(tool["function"]) for tool in self._tools}
        self.used_ids = call_ids(self._messages)
        """The ids of earlier calls."""
        self._may_call = bool(self._tools) and self._choice != "none"

    def request(self) -> dict[str, Any]:
        """The request as text."""
        prompt = tools_prompt(self._tools, self._choice)
        messages = messages_as_text(self._messages, self._schemas, prompt=prompt)
        return {"messages": messages, **({"stop": [STOP]} if self._may_call else {})}

    def visible_text(self, emit: OnEvent) -> _CallFilter:
        """Return a listener of `send` that forwards all to emit but the text of calls; `end` it with the response."""
        return _CallFilter(emit)

    def read(self, response: ChatResponse) -> ChatResponse:
        """Return the response with the call that its text holds; unchanged if there is none."""
        text_call = find_call(response.message.content, self._schemas) if self._may_call else None
        if text_call is None or response.message.tool_calls:
            return response
        function = FunctionCall(name=text_call.name, arguments=text_call.arguments, parse_error=text_call.parse_error)
        call = ToolCall(id=next(fresh_ids(self.used_ids)), function=function)
        finish_reason = "tool_calls" if text_call.is_closed or not response.cut else response.choices[0].finish_reason
        message = ChatMessage(content=text_call.before, tool_calls=(call,))
        return response.model_copy(update={"choices": (Choice(message=message, finish_reason=finish_reason),)})

    def with_reminder(self, response: ChatResponse) -> TextCalls | None:
        """Return the request with a reminder if the model omitted a required call; else None."""
        must = _requirement(self._choice) if self._may_call else ""
        called = [call.function.name for call in response.message.tool_calls]
        if not must or (called and _required_tool(self._choice) in {None, called[0]}):
            return None
        answer_messages = [] if response.is_empty else [response.message.to_llm_dict()]
        reminder = {"role": "user", "content": f"That reply called {called[0] if called else 'no tool'}. {must}"}
        messages = [*self._messages, *answer_messages, reminder]
        return TextCalls({"messages": messages, "tools": self._tools, "tool_choice": self._choice})


class _CallFilter:
    """A listener of `send` that forwards the text outside of calls."""

    def __init__(self, emit: OnEvent) -> None:
        self._emit = emit
        self._held: list[str] = []
        self._is_call = False

    def __call__(self, event: LLMEvent) -> None:
        """Pass the event on; of text, only what can be shown now."""
        if isinstance(event, RetryEvent):
            self._held, self._is_call = [], False  # the text of that attempt is void
        if not isinstance(event, DeltaEvent):
            self._emit(event)
        elif self._is_call:
            self._held.append(event.text)
        else:
            text = "".join(self._held) + event.text
            self._is_call = _OPENING in text
            overlap = (size for size in range(len(_OPENING) - 1, 0, -1) if text.endswith(_OPENING[:size]))
            end = text.index(_OPENING) if self._is_call else len(text) - next(overlap, 0)
            self._held = [text[end:]]
            self._show(text[:end])

    def end(self, response: ChatResponse) -> None:
        """Forward the text that was held back, unless it became a call."""
        if not response.message.tool_calls:
            self._show("".join(self._held))

    def _show(self, text: str) -> None:
        if text:
            self._emit(DeltaEvent(text=text))


# --- the prompt -------------------------------------------------------------------------------------


def tools_prompt(tools: Sequence[ToolParam], tool_choice: ToolChoice) -> str:
    """Return the part of the system prompt that explains tools; "" if there are none."""
    if not tools:
        return ""
    if tool_choice == "none":
        return _NO_CALL
    parts = [_HOW, *(_described(tool["function"]) for tool in tools), _requirement(tool_choice)]
    return "\n\n".join(part for part in parts if part)


def _requirement(tool_choice: ToolChoice) -> str:
    """Return what a reply must contain, for the prompt; "" if nothing is required."""
    if tool_name := _required_tool(tool_choice):
        return f"Your reply must end with a call of the tool {tool_name}."
    return "Your reply must end with a call of a tool." if tool_choice == "required" else ""


def _required_tool(tool_choice: ToolChoice) -> str | None:
    """Return the one tool that must be called, if it is named."""
    function = None if isinstance(tool_choice, str) else tool_choice.get("function")
    return str(function["name"]) if isinstance(function, dict) and function.get("name") else None


def _properties(function: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the schemas of a tool's arguments, by name."""
    properties = (function.get("parameters") or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _described(function: Mapping[str, Any]) -> str:
    required = (function.get("parameters") or {}).get("required") or ()
    lines = [_argument(name, schema, required=name in required) for name, schema in _properties(function).items()]
    arguments = ["Arguments:", *lines] if lines else ["No arguments."]
    return "\n".join([f"## {function['name']}", *filter(None, [function.get("description")]), *arguments])


def _argument(name: str, schema: Schema, *, required: bool) -> str:
    types = _types_of(schema)
    details = [" or ".join(sorted(types)) or "text", "required" if required else "optional"]
    if "enum" in schema:
        details.append("one of " + ", ".join(_plain(value) for value in schema["enum"]))
    if "default" in schema:
        details.append(f"default {_plain(schema['default'])}")
    line = f"- {name} ({'; '.join(details)})" + (f": {schema['description']}" if schema.get("description") else "")
    if types & {"array", "object"}:
        bare = {key: value for key, value in schema.items() if key not in {"description", "default"}}
        line += f"\n  JSON schema: {json.dumps(bare, ensure_ascii=False)}"
    return line


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


# --- the history ------------------------------------------------------------------------------------


def messages_as_text(
    messages: Sequence[Message], schemas: Mapping[str, Mapping[str, Schema]], *, prompt: str
) -> list[dict[str, Any]]:
    """Return the messages with tool calls and tool results as text.

    User and assistant alternate as far as the conversation allows: the chat templates of some models refuse two
    messages of the user in a row.

    Args:
        messages: the conversation in OpenAI form.
        schemas: those of each tool's arguments, by tool and argument.
        prompt: appended to the system message, or put before all messages if there is none.
    """
    names: dict[str, str] = {}
    converted: list[dict[str, Any]] = []
    if prompt and not any(message.get("role") == "system" for message in messages):
        messages = [{"role": "system", "content": ""}, *messages]
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "system":
            converted.append({**message, "content": _joined(content, prompt)})
            prompt = ""
        elif role == "assistant":
            texts = [content_text(content)]
            for call in message.get("tool_calls") or ():
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                names[str(call.get("id"))] = name
                texts.append(write_call(name or "", arguments or "", schemas.get(name, {})))
            converted.append({"role": "assistant", "content": "\n\n".join(text for text in texts if text)})
        else:
            if role == "tool":
                content = _result(content, names.get(str(message.get("tool_call_id")), "unknown"))
            if converted and converted[-1]["role"] == "user":
                content = _joined(converted.pop()["content"], content)
            converted.append({"role": "user", "content": content})
    return converted


def _result(content: Any, name: str) -> str | Parts:
    """Return the result in tags that its own text cannot close: a web page must not speak for the user."""
    if isinstance(content, list):
        inner = [{**part, "text": _held_in(part["text"])} if "text" in part else part for part in _parts(content)]
        return [*_parts(f'<result tool="{html.escape(name)}">'), *inner, *_parts("</result>")]
    text, is_error = _unwrapped(content or "")
    status = ' status="error"' if is_error else ""
    return f'<result tool="{html.escape(name)}"{status}>\n{_held_in(text)}\n</result>'


def _held_in(text: str) -> str:
    return text.replace("</result", r"<\/result")


def _unwrapped(content: str) -> tuple[str, bool]:
    r"""Return the text of a JSON result of the form {status, output} or {status, error}, and whether it is an error.

    The text is plain because models copy what they see: an escape `\n` would end up in the files that they write.
    """
    try:
        result = load_json(content)
    except ValueError:
        return content, False
    if not isinstance(result, dict) or result.get("status") not in {"ok", "error"}:
        return content, False
    texts = [value for key, value in result.items() if key != "status"]
    if not result.keys() <= {"status", "output", "error"} or not all(isinstance(text, str) for text in texts):
        return content, False
    return "\n".join(texts), result["status"] == "error"


def _joined(first: Any, second: Any) -> str | Parts:
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return "\n\n".join(text for text in (first, second) if text)


def _parts(content: Any) -> Parts:
    if isinstance(content, list):
        return [{"type": "text", "text": part} if isinstance(part, str) else dict(part) for part in content]
    return [{"type": "text", "text": content}] if content else []


# --- a call, written and read -----------------------------------------------------------------------


class _TextCall(NamedTuple):
    """A call that was found in a text."""

    before: str
    """The text before the call."""
    name: str
    arguments: str
    """The arguments as a JSON object, or as the model wrote them if they cannot be read."""
    parse_error: str | None = None
    """Why the arguments cannot be read; the model gets this message."""
    is_closed: bool = True
    """Whether the model wrote `</call>`."""


class _MalformedError(ValueError):
    pass


def escaped(text: str) -> str:
    r"""Return the text with `</arg` and `</call` as `<\/arg` and `<\/call`, so that they do not end anything."""
    return _CLOSING.sub(r"<\\\1/\2", text)


def unescaped(text: str) -> str:
    """Undo `escaped`."""
    return _ESCAPED_CLOSING.sub(r"<\1/\2", text)


def write_call(name: str, arguments: str, schemas: Mapping[str, Schema]) -> str:
    """Write the call of a tool as text; arguments that cannot be read as a JSON object are written unchanged.

    Args:
        name: the tool's name.
        arguments: the arguments as JSON.
        schemas: the schemas of its arguments, by name.
    """
    try:
        values = _read_json(arguments or "{}")
    except ValueError:
        values = None
    if isinstance(values, dict):
        lines = [_write_argument(key, value, schemas.get(key, {})) for key, value in values.items()]
    else:
        lines = [escaped(arguments)]
    return "\n".join([f'<call tool="{html.escape(name)}">', *lines, STOP])


def find_call(text: str, schemas: Mapping[str, Mapping[str, Schema]]) -> _TextCall | None:
    """Find the first call in text; None if there is none.

    Ignores what follows the call, since the model has not seen a result yet, and calls within the model's reasoning.

    Args:
        text: what the model wrote; its end counts as `</call>`, since the provider stops there.
        schemas: the schemas of each tool's arguments, by tool and argument.
    """
    thought = max(text.find("</think>"), 0) if text.lstrip().startswith("<think>") else 0
    opening = _OPEN_CALL.search(text, thought)
    if opening is None:
        return None
    before, name = text[: opening.start()].rstrip(), _attribute(opening)
    if opening.group(4):
        return _TextCall(before, name, "{}")
    is_closed = STOP in text[opening.end() :]
    try:
        arguments = _read_arguments(text, opening.end(), schemas.get(name, {}))
    except _MalformedError as error:
        parse_error = f"Failed to read the call: {error}. {_FORM}"
        return _TextCall(before, name, text[opening.end() :], parse_error=parse_error, is_closed=is_closed)
    return _TextCall(before, name, arguments, is_closed=is_closed)


def _write_argument(name: str, value: Any, schema: Schema) -> str:
    """Write the value as text if that is read back as the same value of the same type; else marked as JSON."""
    as_json = json.dumps(value, ensure_ascii=False)
    text = value if isinstance(value, str) else as_json
    back = read_value(text, schema)
    is_json = type(back) is not type(value) or json.dumps(back, ensure_ascii=False) != as_json
    text = escaped(as_json if is_json else text)
    mark = ' type="json"' if is_json else ""
    return f'<arg name="{html.escape(name)}"{mark}>' + (f"\n{text}\n" if "\n" in text else text) + "</arg>"


def _read_arguments(text: str, position: int, schemas: Mapping[str, Schema]) -> str:
    """Read the arguments from position on, as JSON; a JSON object in their place is accepted."""
    values: dict[str, Any] = {}
    while opening := _OPEN_ARG.match(text, position):
        name = _attribute(opening)
        closing = _CLOSE_ARG.search(text, opening.end())
        if closing is None:
            raise _MalformedError(_unclosed(name, text[opening.end() :]))
        if name in values:
            raise _MalformedError(f"argument {name!r} is given twice")
        # the line break after the opening tag, and the one before the closing tag with its indent, are not the value's
        raw = _BLANKS_BEFORE_CLOSING.sub("", text[opening.end() : closing.start()].removeprefix("\n"))
        try:
            value = unescaped(raw)
            values[name] = _read_json(value) if opening.group(4) else read_value(value, schemas.get(name, {}))
        except ValueError as error:
            raise _MalformedError(f"the value of argument {name!r} is not valid JSON: {error}") from None
        position = closing.end()
    ending = _END_OF_CALL.search(text, position)
    body = text[position : ending.start() if ending else None].strip()
    if not body:
        return json.dumps(values, ensure_ascii=False)
    if not values and body.startswith("{"):
        return unescaped(body)
    shown = body if len(body) <= _QUOTED_CHARS else f"{body[:_QUOTED_CHARS]}..."
    raise _MalformedError(f"{shown!r} stands outside of an argument")


def _unclosed(name: str, rest: str) -> str:
    if "</arg>" in rest:
        return f"after the </arg> of argument {name!r} stands what is neither an argument nor </call>"
    return (
        f"the value of argument {name!r} is not closed with </arg>. Where the value itself holds </call> or </arg>, "
        r"write <\/call> or <\/arg> in it"
    )


def _attribute(match: re.Match[str]) -> str:
    return html.unescape(next((group for group in match.groups()[:3] if group is not None), ""))


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that the schema allows; {} allows any and names none."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named or ())
    for keyword in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(keyword) or ():
            types |= _types_of(option)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return types or {_TYPES[type(value)] for value in values}


_TYPES = {
    type(None): "null", str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"
}  # fmt: skip
"""The JSON type of a value, by its class."""


def read_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value of text: text itself if the schema allows a string, or if text has no allowed value.

    In the latter case the tool's own validation tells the model what is wrong.
    """
    types = _types_of(schema)
    if not types or "string" in types:
        return text
    try:
        value = _read_json(text.strip())
    except ValueError:
        value = {"true": True, "false": False}.get(text.strip().lower(), text)
    kind = _TYPES[type(value)]
    return value if kind in types or (kind == "integer" and "number" in types) else text


def _read_json(text: str) -> Any:
    """Parse the JSON value in text.

    Raises:
        ValueError: text is not JSON, or holds NaN or an infinity.
    """
    return load_json(text, strict=False, parse_constant=refuse_constant)
