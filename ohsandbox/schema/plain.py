"""A model's JSON Schema as plain as providers want it: no references, no titles, an object at the root."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ohsandbox.schema.pointer import target_of

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_NODES = 4_000
"""References written out can double at every level; past this many nodes a reference becomes "any value"."""

MAX_DEPTH = 64
"""Schemas within each other, after which no reference is written out; no model fills in what lies deeper."""

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Their keys are names, not keywords."""

_DATA = frozenset({"default", "const", "enum", "examples", "required"})
"""What stands in them is data, whatever it looks like."""


@lru_cache(maxsize=256)
def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles and references; an optional field is shown as its plain type.

    Made once a model, since it is asked for before every request (0.2 ms each): not to be changed.
    A recursive reference becomes its bare type: providers differ in whether they follow `$ref`.
    """
    schema = model.model_json_schema()
    plain: dict[str, Any] = _Plain(schema).of(schema, seen=())
    plain.setdefault("properties", {})
    plain.pop("description", None)  # the class's docstring speaks to programmers
    return plain


class _Plain:
    """One schema being written out."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MAX_NODES
        self._depth = 0

    def of(self, node: Any, *, seen: tuple[str, ...]) -> Any:
        self._depth += 1
        try:
            return self._of(node, seen=seen)
        finally:
            self._depth -= 1

    def _of(self, node: Any, *, seen: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [self.of(item, seen=seen) for item in node]
        if not isinstance(node, dict):
            return node
        self._left -= 1
        node = _without_null(node)
        if "$ref" in node:
            return self._followed(node, seen=seen)
        return {key: self._value(key, value, seen=seen) for key, value in node.items() if not _is_left_out(key, value)}

    def _value(self, key: str, value: Any, *, seen: tuple[str, ...]) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return {name: self.of(item, seen=seen) for name, item in value.items()}
        return value if key in _DATA else self.of(value, seen=seen)

    def _followed(self, node: dict[str, Any], *, seen: tuple[str, ...]) -> Any:
        reference = node["$ref"]
        target = target_of(self._root, reference)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        if not isinstance(target, dict):
            return self.of(beside, seen=seen)
        if reference in seen or self._depth > MAX_DEPTH or self._left < 0:
            kind = target.get("type")
            return {"type": kind} if isinstance(kind, str) else {}
        return self.of({**target, **beside}, seen=(*seen, reference))


def _is_left_out(key: str, value: Any) -> bool:
    return key in {"$defs", "definitions"} or (key == "title" and isinstance(value, str))


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf: [X, null]` with a default of null, which is how pydantic writes `X | None = None`, becomes X."""
    options = node.get("anyOf")
    if not isinstance(options, list) or {"type": "null"} not in options or node.get("default", 0) is not None:
        return node
    rest = [option for option in options if option != {"type": "null"}]
    beside = {key: value for key, value in node.items() if key not in {"anyOf", "default"}}
    return {**rest[0], **beside} if len(rest) == 1 and isinstance(rest[0], dict) else {**beside, "anyOf": rest}
