"""From a value's text to the value, by the tool's JSON schema, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    raise ValueError(f"{name} is no JSON number")
