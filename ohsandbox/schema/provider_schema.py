"""JSON Schema in the form that providers accept: limited, an object at the root, no references, no titles.

MCP servers choose their own schemas. `bounded` makes one well-formed, and small enough to compile and to send with
every request: a provider refuses every request that contains a malformed schema.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ohsandbox.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel

MAX_DEPTH = 48
"""Nested schemas. Schemas in practice nest 10 deep; both Python and providers fail somewhere past 100."""

MAX_NODES = 4_000
"""Schemas and values together: some 1,000 arguments. A model with that many fields takes 50 ms to create. The limit
applies again to schemas with references inlined, which can double at every level: past it they accept any value."""

MAX_CHARS = 128 * 1024
"""All names and texts together: some 30,000 tokens in every request."""

_MAX_ENUM = 1_000
"""Limit of the values of an enum; a longer one is dropped, but its type is kept."""

_MAX_HOPS = 32
"""Limit of references that only lead to further references; more are a cycle."""

_MAX_MERGED = 32
"""Limit of merged branches at the root in total; any value passes beyond it."""

_MAX_INLINED_DEPTH = 64
"""Nesting depth at which references are no longer inlined; no model fills in deeper values."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_BEYOND = 1e300
"""A larger number limits nothing, and most JSON parsers cannot represent it."""

_SCHEMA = frozenset({"additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not",
                     "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"})  # fmt: skip
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
"""Copied last, so that an excess of them does not displace arguments."""
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords whose values are maps from names to schemas."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


_DATA: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and 0 < len(value) <= _MAX_ENUM,
    "examples": lambda value: isinstance(value, list),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "$ref": lambda value: isinstance(value, str) and (value == "#" or value.startswith("#/")),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("const", "default"), lambda _: True),
    **dict.fromkeys(
        ("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"),
        lambda value: isinstance(value, str),
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
         "maxContains"),
        lambda value: _is_number(value) and value >= 0 and value == int(value),
    ),
    **dict.fromkeys(("minimum", "maximum"), _is_number),
    # draft 4 has `exclusiveMinimum: true`
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"), lambda value: isinstance(value, bool) or _is_number(value)
    ),
    **dict.fromkeys(
        ("nullable", "uniqueItems", "deprecated", "readOnly", "writeOnly"), lambda value: isinstance(value, bool)
    ),
}  # fmt: skip
"""The supported keywords, each with the check of its value; `nullable` is OpenAPI's."""


class _TooMuchError(Exception):
    """The limits are reached."""


class _NotJSONError(Exception):
    """A value is nested too deep, or is not JSON."""


class _Copy:
    """One copy operation, with the remaining limits."""

    def __init__(self) -> None:
        self._nodes, self._chars = MAX_NODES, MAX_CHARS

    def schema(self, node: Any, depth: int = 0) -> dict[str, Any] | bool:
        """Copy a schema; `True` if it is malformed or too deep; the part that fits if the limits are reached."""
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            return node is not False
        kept: dict[str, Any] = {}
        try:
            self._spend(1)
            for key, value in sorted(node.items(), key=lambda item: item[0] in _DEFINITIONS):
                self._keep(kept, key, value, depth + 1)
        except _TooMuchError:
            kept.pop("additionalProperties", None)  # it would apply to the dropped properties, too
        return kept

    def _keep(self, kept: dict[str, Any], key: str, value: Any, depth: int) -> None:
        if key in _SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            if isinstance(value, list) and value:
                self._spend(len(value))
                kept[key] = [self.schema(item, depth) for item in value]
        elif key in _SCHEMA:
            kept[key] = self.schema(value, depth)
        elif key in _SCHEMA_MAPS or key in _DEFINITIONS:
            if isinstance(value, dict):
                copied = kept[key] = {}  # attached before it is filled: entries before the limits are reached stay
                for name, item in value.items():
                    if isinstance(name, str) and encodable(name) == name:
                        self._spend(1, len(name))
                        copied[name] = self.schema(item, depth)
        elif key in _DATA and _DATA[key](value):
            with contextlib.suppress(_NotJSONError):
                kept[key] = self._data(value, depth - 1)

    def _data(self, value: Any, depth: int) -> Any:
        if isinstance(value, str) and encodable(value) == value:
            self._spend(1, len(value))
            return value
        self._spend(1)
        if depth <= MAX_DEPTH and isinstance(value, list):
            return [self._data(item, depth + 1) for item in value]
        if depth <= MAX_DEPTH and isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {self._data(name, depth): self._data(item, depth + 1) for name, item in value.items()}
        if value is None or isinstance(value, bool) or _is_number(value):
            return value
        raise _NotJSONError

    def _spend(self, nodes: int, chars: int = 0) -> None:
        self._nodes -= nodes
        self._chars -= chars
        if self._nodes < 0 or self._chars < 0:
            raise _TooMuchError


def bounded(schema: Any) -> dict[str, Any]:
    """Copy the known, well-formed keywords within MAX_DEPTH, MAX_NODES and MAX_CHARS; any value passes elsewhere."""
    copy = _Copy().schema(schema)
    return copy if isinstance(copy, dict) else {}


def resolve_reference(root: Any, reference: str) -> Any:
    """Resolve a local reference, also through further ones; `True` (any value) if it has no target."""
    node = _step(root, reference)
    for _ in range(_MAX_HOPS):
        if not (isinstance(node, dict) and "$ref" in node and not set(node) - {"$ref", "description", "title"}):
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


def object_schema(schema: Any) -> dict[str, Any]:
    """Bound a schema and convert it to one with `type: object`, `properties` and `required` at the root.

    Choices at the root (anyOf, oneOf, allOf, a reference) become one object with all their properties, since
    providers refuse them there; the tool itself checks which of them belong together. A root that is not an object
    accepts any arguments.
    """
    root = bounded(schema)
    if "object" not in _types(root):
        root = {key: value for key, value in root.items() if key in {"title", "description"}}
    merged = _Merge(root).of(root)
    merged["required"] = list(dict.fromkeys(merged["required"]))
    kept = {"title", "description", "examples", *_DEFINITIONS}
    return {"type": "object", **merged, **{key: value for key, value in root.items() if key in kept}}


def _types(node: Any) -> list[str]:
    kind = node.get("type", "object") if isinstance(node, dict) else "object"
    return kind if isinstance(kind, list) else [kind]


class _Merge:
    """Merges object schemas into one that accepts every value that they accept."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._left = root, _MAX_MERGED

    def of(self, node: Any) -> dict[str, Any]:
        """Return {properties, required, additionalProperties}, the last only if certain."""
        self._left -= 1
        if not isinstance(node, dict) or self._left < 0:
            return {"properties": {}, "required": []}
        properties, required = dict(node.get("properties", {})), list(node.get("required", []))
        parts = [("allOf", [resolve_reference(self._root, node["$ref"])])] if "$ref" in node else []
        parts += [(kind, node[kind]) for kind in ("allOf", "anyOf", "oneOf") if kind in node]
        for kind, branches in parts:
            made = [self.of(branch) for branch in branches if branch is not False and "object" in _types(branch)]
            for name, schema in (pair for branch in made for pair in branch["properties"].items()):
                known = properties.setdefault(name, schema)
                if known != schema:  # accept either one, unless both are required
                    properties[name] = {"allOf" if kind == "allOf" else "anyOf": [known, schema]}
            demanded = [branch["required"] for branch in made]
            common = set[str]().union(*demanded)
            if kind != "allOf":
                common.intersection_update(*demanded)
            required += [name for names in demanded for name in names if name in common]
        merged = {"properties": properties, "required": required}
        if "additionalProperties" in node and not parts and "patternProperties" not in node:
            merged["additionalProperties"] = node["additionalProperties"]
        return merged


@lru_cache(maxsize=256)
def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles and references; an optional field is shown as its plain type.

    Cached per model, since every request needs it (0.2 ms each): do not modify.
    A recursive reference becomes its bare type: providers differ in whether they follow `$ref`.
    """
    return inlined(model.model_json_schema())


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a JSON schema in the form of `plain_schema`."""
    plain: dict[str, Any] = _Plain(schema).of(schema)
    plain.setdefault("properties", {})
    plain.pop("description", None)  # the class's docstring is for programmers
    return plain


class _Plain:
    """Inlines the references of one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._left = root, MAX_NODES

    def of(self, node: Any, *, seen: tuple[str, ...] = (), depth: int = 0) -> Any:
        """The node without titles and references; seen holds the references on the path."""
        if isinstance(node, list):
            return [self.of(item, seen=seen, depth=depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        self._left -= 1
        node = _without_null(node)
        if "$ref" in node:
            return self._followed(node, seen=seen, depth=depth + 1)
        plain: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DEFINITIONS or (key == "title" and isinstance(value, str)):
                continue
            if key in _SCHEMA_MAPS and isinstance(value, dict):
                plain[key] = {name: self.of(item, seen=seen, depth=depth + 1) for name, item in value.items()}
            elif key in {"default", "const", "enum", "examples", "required"}:  # data, even if it looks like a schema
                plain[key] = value
            else:
                plain[key] = self.of(value, seen=seen, depth=depth + 1)
        return plain

    def _followed(self, node: dict[str, Any], *, seen: tuple[str, ...], depth: int) -> Any:
        reference = node["$ref"]
        target = resolve_reference(self._root, reference)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        if not isinstance(target, dict):
            return self.of(beside, seen=seen, depth=depth)
        if reference in seen or depth > _MAX_INLINED_DEPTH or self._left < 0:
            kind = target.get("type")
            return {"type": kind} if isinstance(kind, str) else {}
        return self.of({**target, **beside}, seen=(*seen, reference), depth=depth)


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf: [X, null]` with a default of null, which is how pydantic writes `X | None = None`, becomes X."""
    options = node.get("anyOf")
    if not isinstance(options, list) or {"type": "null"} not in options or node.get("default", 0) is not None:
        return node
    rest = [option for option in options if option != {"type": "null"}]
    beside = {key: value for key, value in node.items() if key not in {"anyOf", "default"}}
    return {**rest[0], **beside} if len(rest) == 1 and isinstance(rest[0], dict) else {**beside, "anyOf": rest}
