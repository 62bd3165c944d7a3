"""JSON Schema in the form that providers accept: an object at the root, no references, no titles."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ohsandbox.schema.bounded import bounded

if TYPE_CHECKING:
    from pydantic import BaseModel


MAX_HOPS = 32
"""Limit of references that only lead to further references; more are a cycle."""


def target_of(root: Any, reference: str) -> Any:
    """Resolve a local reference, also through further ones; `True` (any value) if it has no target."""
    node = _step(root, reference)
    for _ in range(MAX_HOPS):
        if not (isinstance(node, dict) and set(node) & {"$ref"} and not set(node) - {"$ref", "description", "title"}):
            return node if isinstance(node, dict | bool) else True
        node = _step(root, node["$ref"])
    return True


def _step(root: Any, reference: str) -> Any:
    node = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isascii() and key.isdigit() and len(key) < 6 and int(key) < len(node):  # noqa: PLR2004 - lists are shorter
            node = node[int(key)]
        else:
            return True
    return node


_CHOICES = ("anyOf", "oneOf")
_KEPT = frozenset({"title", "description", "$defs", "definitions", "examples"})
_MAX_MERGED = 32
"""Limit of merged branches in total; any value passes beyond it."""


class _Merge:
    """Merges object schemas into one that accepts every value that they accept."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_MERGED

    def of(self, node: Any) -> dict[str, Any]:
        """Return {properties, required, additionalProperties}, the last only if certain."""
        self._left -= 1
        if not isinstance(node, dict) or self._left < 0:
            return {"properties": {}, "required": []}
        merged: dict[str, Any] = {
            "properties": dict(node.get("properties", {})),
            "required": list(node.get("required", [])),
        }
        parts = self._parts(node)
        if "additionalProperties" in node and not parts and "patternProperties" not in node:
            merged["additionalProperties"] = node["additionalProperties"]
        for kind, branches in parts:
            made = [self.of(branch) for branch in branches if branch is not False and "object" in _types(branch)]
            for branch in made:
                _add_properties(merged["properties"], branch["properties"], kind)
            merged["required"] += _required(kind, [branch["required"] for branch in made])
        return merged

    def _parts(self, node: dict[str, Any]) -> list[tuple[str, list[Any]]]:
        parts = [(kind, node[kind]) for kind in ("allOf", *_CHOICES) if kind in node]
        return [("allOf", [target_of(self._root, node["$ref"])]), *parts] if "$ref" in node else parts


def object_schema(schema: Any) -> dict[str, Any]:
    """Convert a bounded schema to one with `type: object` and `properties` at the root.

    Choices at the root (anyOf, oneOf, allOf, a reference) become one object with all their properties, since
    providers refuse them there; the tool itself checks which of them belong together. A root that is not an object
    accepts any arguments.
    """
    root = bounded(schema)
    if "object" not in _types(root):
        root = {key: value for key, value in root.items() if key in {"title", "description"}}
    merged = _Merge(root).of(root)
    merged["required"] = list(dict.fromkeys(merged["required"]))
    kept = {key: value for key, value in root.items() if key in _KEPT}
    return {"type": "object", **merged, **kept}


def _types(node: Any) -> list[str]:
    kind = node.get("type", "object") if isinstance(node, dict) else "object"
    return kind if isinstance(kind, list) else [kind]


def _required(kind: str, lists: list[list[str]]) -> list[str]:
    """allOf: the union of the required names; anyOf and oneOf: their intersection."""
    if kind == "allOf" or not lists:
        return [name for names in lists for name in names]
    common = set(lists[0]).intersection(*lists[1:])
    return [name for name in lists[0] if name in common]


def _add_properties(properties: dict[str, Any], more: dict[str, Any], kind: str) -> None:
    """If branches disagree on a property, accept either."""
    for name, schema in more.items():
        known = properties.get(name, schema)
        if known == schema:
            properties[name] = schema
        elif kind == "allOf":
            properties[name] = {"allOf": [known, schema]}
        else:
            properties[name] = {"anyOf": [known, schema]}


MAX_NODES = 4_000
"""Inlined references can double at every level; past this many nodes a reference becomes "any value"."""

MAX_DEPTH = 64
"""Nesting depth at which references are no longer inlined; no model fills in deeper values."""

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Their keys are names, not keywords."""

_DATA = frozenset({"default", "const", "enum", "examples", "required"})
"""Their values are data, even if they look like schemas."""


@lru_cache(maxsize=256)
def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles and references; an optional field is shown as its plain type.

    Cached per model, since every request needs it (0.2 ms each): do not modify.
    A recursive reference becomes its bare type: providers differ in whether they follow `$ref`.
    """
    schema = model.model_json_schema()
    plain: dict[str, Any] = _Plain(schema).of(schema, seen=())
    plain.setdefault("properties", {})
    plain.pop("description", None)  # the class's docstring is for programmers
    return plain


class _Plain:
    """Inlines the references of one schema."""

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
