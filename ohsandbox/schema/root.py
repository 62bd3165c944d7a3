"""The root of a tool's schema, as one object with properties: what fields and providers need."""

from __future__ import annotations

from typing import Any

from ohsandbox.schema.bounded import bounded
from ohsandbox.schema.pointer import target_of

_CHOICES = ("anyOf", "oneOf")
_KEPT = frozenset({"title", "description", "$defs", "definitions", "examples"})
_MAX_MERGED = 32
"""Branches of branches; what is past it lets anything pass."""


class _Merge:
    """Schemas of objects, being put into one that accepts whatever they accept."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_MERGED

    def of(self, node: Any) -> dict[str, Any]:
        """{properties, required, additionalProperties}, the last only where it is certain."""
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
    """A bounded schema with `type: object` and `properties` at the root.

    Choices at the root (anyOf, oneOf, allOf, a reference) become one object with all their properties, since
    providers refuse them there; which of them belong together is the tool's to say. A root that is no object takes
    any arguments.
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
    """Of all that hold every name counts; of one that holds, only the names that each of them has."""
    if kind == "allOf" or not lists:
        return [name for names in lists for name in names]
    common = set(lists[0]).intersection(*lists[1:])
    return [name for name in lists[0] if name in common]


def _add_properties(properties: dict[str, Any], more: dict[str, Any], kind: str) -> None:
    """Where branches disagree on a property, either may be right."""
    for name, schema in more.items():
        known = properties.get(name, schema)
        if known == schema:
            properties[name] = schema
        elif kind == "allOf":
            properties[name] = {"allOf": [known, schema]}
        else:
            properties[name] = {"anyOf": [known, schema]}
