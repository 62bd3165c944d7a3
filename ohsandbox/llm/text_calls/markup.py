"""A tool call as text: written, found in what a model wrote, its values typed by the tool's JSON schema."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping


STOP = "</call>"
"""Where the provider is asked to stop, so that the model cannot go on and make a result up. It leaves the word out."""

_ATTRIBUTE = r"""\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>/]+))"""
_OPEN_CALL = re.compile(rf"<call\s+(?:tool|name){_ATTRIBUTE}\s*(/?)>")
_OPEN_ARG = re.compile(rf"""<arg\s+name{_ATTRIBUTE}\s*(type\s*=\s*["']?json["']?\s*)?>""")
_CLOSE_ARG = re.compile(r"</arg\s*>(?=\s*(?:<arg\s|</call\b|<call\s|<result\s|\Z))")
"""One that ends an argument: the next one follows, or what can follow a call. Others belong to the value."""
_END_OF_CALL = re.compile(r"</call\s*>|(?=<call\s|<result\s)|\Z")
"""Also where the model forgets to close the call and goes on with a result of its own making."""
_BLANK = re.compile(r"\s*")
_BLANKS_BEFORE_CLOSING = re.compile(r"\n[ \t]*\Z")
_CLOSING = re.compile(r"<(\\*)/(arg|call)")
_ESCAPED_CLOSING = re.compile(r"<\\(\\*)/(arg|call)")
_QUOTED_CHARS = 80

_FORM = (
    'Nothing ran. Write it again: <call tool="NAME">, then for each argument <arg name="ARGUMENT">, the value and '
    "</arg>, then </call>."
)


class TextCall(NamedTuple):
    """A call that was found."""

    before: str
    """What the model said before it."""
    name: str
    arguments: str
    """A JSON object; what the model wrote where that cannot be read."""
    parse_error: str | None = None
    """Why it cannot; told to the model."""
    is_closed: bool = True
    """Whether the model wrote `</call>`."""


class _MalformedError(ValueError):
    pass


def escaped(text: str) -> str:
    r"""The text with `</arg` and `</call` as `<\/arg` and `<\/call`, so that they end nothing."""
    return _CLOSING.sub(r"<\\\1/\2", text)


def unescaped(text: str) -> str:
    """What was there before `escaped`."""
    return _ESCAPED_CLOSING.sub(r"<\1/\2", text)


def write_call(name: str, arguments: str, schemas: Mapping[str, Schema]) -> str:
    """The call of a tool as text; arguments that cannot be read as a JSON object are written unchanged.

    Args:
        name: the tool's.
        arguments: as JSON.
        schemas: those of its arguments, by name.
    """
    opening = f'<call tool="{html.escape(name)}">'
    try:
        values = read_json(arguments or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return f"{opening}\n{escaped(arguments)}\n{STOP}"
    lines = [_write_argument(key, value, schemas.get(key, {})) for key, value in values.items()]
    return "\n".join([opening, *lines, STOP])


def find_call(text: str, schemas: Mapping[str, Mapping[str, Schema]]) -> TextCall | None:
    """The first call in text; None where there is none.

    What comes after it is not looked at: the model has not seen a result yet.

    Args:
        text: what the model wrote; the end of it may stand for `</call>`, where the provider stopped.
        schemas: those of each tool's arguments, by tool and argument.
    """
    opening = _OPEN_CALL.search(text, _end_of_thinking(text))
    if opening is None:
        return None
    before, name = text[: opening.start()].rstrip(), _attribute(opening)
    if opening.group(4):
        return TextCall(before, name, "{}")
    is_closed = STOP in text[opening.end() :]
    try:
        arguments = _read_arguments(text, opening.end(), schemas.get(name, {}))
    except _MalformedError as error:
        parse_error = f"Failed to read the call: {error}. {_FORM}"
        return TextCall(before, name, text[opening.end() :], parse_error=parse_error, is_closed=is_closed)
    return TextCall(before, name, arguments, is_closed=is_closed)


def _end_of_thinking(text: str) -> int:
    """Where a model that thinks aloud begins to answer; a call that it thinks of is none."""
    thinks = text.lstrip().startswith("<think>")
    return max(text.find("</think>"), 0) if thinks else 0


def _write_argument(name: str, value: Any, schema: Schema) -> str:
    text, is_json = write_value(value, schema)
    opening = f'<arg name="{html.escape(name)}"' + (' type="json">' if is_json else ">")
    lines = f"\n{escaped(text)}\n" if "\n" in text else escaped(text)
    return f"{opening}{lines}</arg>"


def _read_arguments(text: str, start: int, schemas: Mapping[str, Schema]) -> str:
    """The arguments from start on, as JSON."""
    values: dict[str, Any] = {}
    position = _skip_blank(text, start)
    while opening := _OPEN_ARG.match(text, position):
        name = _attribute(opening)
        closing = _CLOSE_ARG.search(text, opening.end())
        if closing is None:
            raise _MalformedError(_unclosed(name, text[opening.end() :]))
        if name in values:
            raise _MalformedError(f"argument {name!r} is given twice")
        raw = unescaped(_without_outer_breaks(text[opening.end() : closing.start()]))
        values[name] = _value(name, raw, schemas.get(name, {}), is_json=bool(opening.group(4)))
        position = _skip_blank(text, closing.end())
    return _ended(text, position, values)


def _unclosed(name: str, rest: str) -> str:
    if "</arg>" in rest:
        return f"after the </arg> of argument {name!r} stands what is neither an argument nor </call>"
    return (
        f"the value of argument {name!r} is not closed with </arg>. Where the value itself holds </call> or </arg>, "
        r"write <\/call> or <\/arg> in it"
    )


def _ended(text: str, position: int, values: dict[str, Any]) -> str:
    """The values as JSON, if the call ends here; a JSON object in place of arguments is taken as it is."""
    if _END_OF_CALL.match(text, position):
        return json.dumps(values, ensure_ascii=False)
    ending = _END_OF_CALL.search(text, position)
    assert ending is not None  # noqa: S101 - the end of the text counts
    body = text[position : ending.start()].strip()
    if not values and body.startswith("{"):
        return unescaped(body)
    shown = body if len(body) <= _QUOTED_CHARS else f"{body[:_QUOTED_CHARS]}..."
    raise _MalformedError(f"{shown!r} stands outside of an argument")


def _value(name: str, text: str, schema: Schema, *, is_json: bool) -> Any:
    if not is_json:
        return read_value(text, schema)
    try:
        return read_json(text)
    except ValueError as error:
        raise _MalformedError(f"the value of argument {name!r} is not valid JSON: {error}") from None


def _without_outer_breaks(text: str) -> str:
    """Without the line break after the opening tag, and the one before the closing tag with what indents that."""
    return _BLANKS_BEFORE_CLOSING.sub("", text.removeprefix("\n"))


def _attribute(match: re.Match[str]) -> str:
    return html.unescape(next((group for group in match.groups()[:3] if group is not None), ""))


def _skip_blank(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return found.end() if found else position


Schema = dict[str, Any]

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that the schema allows; {} allows any and names none."""
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(named or ())
    for keyword in _ALTERNATIVES:
        for option in schema.get(keyword) or ():
            found |= types_of(option)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return found or {type_of(value) for value in values}


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    by_class = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    return by_class.get(type(value), "object")


def read_value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value that text stands for: text itself where a string is allowed, or where it is nothing that is allowed.

    The tool's own validation then tells the model what is wrong with it.
    """
    types = types_of(schema)
    if not types or "string" in types:
        return text
    try:
        value = read_json(text.strip())
    except ValueError:
        value = {"true": True, "false": False}.get(text.strip().lower(), text)
    found = type_of(value)
    return value if found in types or (found == "integer" and "number" in types) else text


def read_json(text: str) -> Any:
    """The JSON value in text.

    Raises:
        ValueError: there is none, or NaN or an infinity.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def write_value(value: Any, schema: Mapping[str, Any]) -> tuple[str, bool]:
    """The value as text, and whether that has to be marked as JSON to be read back as the same."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if _same(read_value(text, schema), value):
        return text, False
    return json.dumps(value, ensure_ascii=False), True


def _same(one: Any, other: Any) -> bool:
    """Equal and of the same types: 1, 1.0 and true are three values."""
    return type(one) is type(other) and json.dumps(one) == json.dumps(other)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
