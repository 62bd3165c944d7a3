"""The JSON schema of a tool's arguments, as plain as providers want it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ohsandbox.tool.arguments import SECURITY_RISK, SECURITY_RISK_SCHEMA

if TYPE_CHECKING:
    from pydantic import BaseModel


@lru_cache(maxsize=256)
def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema without titles and references; an optional field is shown as its plain type.

    Made once a model, since it is asked for before every request (0.2 ms each): not to be changed.
    A recursive reference becomes `{"type": "object"}`: providers differ in whether they follow `$ref`.
    """
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    plain: dict[str, Any] = _plain(schema, definitions, seen=())
    plain.setdefault("properties", {})
    plain.pop("description", None)  # the class's docstring speaks to programmers
    plain["additionalProperties"] = False
    return plain


def with_security_risk(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the optional argument `security_risk`, unless the tool has one of its own."""
    properties = {**schema["properties"]}
    properties.setdefault(SECURITY_RISK, SECURITY_RISK_SCHEMA)
    return {**schema, "properties": properties}


def _plain(node: Any, definitions: dict[str, Any], *, seen: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions, seen=seen) for item in node]
    if not isinstance(node, dict):
        return node
    node = _without_null(node)
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        if name in seen:
            return {"type": "object"}
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _plain({**definitions.get(name, {}), **beside}, definitions, seen=(*seen, name))
    return {
        key: {name: _plain(item, definitions, seen=seen) for name, item in value.items()}
        if key == "properties"
        else _plain(value, definitions, seen=seen)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf: [X, null]` with a default of null, which is how pydantic writes `X | None = None`, becomes X."""
    options = node.get("anyOf")
    if not isinstance(options, list) or {"type": "null"} not in options:
        return node
    rest = [option for option in options if option != {"type": "null"}]
    beside = {key: value for key, value in node.items() if key != "anyOf" and not (key == "default" and value is None)}
    return {**rest[0], **beside} if len(rest) == 1 else {**beside, "anyOf": rest}
