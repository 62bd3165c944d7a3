"""Limits a foreign JSON Schema: unknown, malformed or excess parts are dropped, so that any value passes there.

MCP servers choose their own schemas. The result is small enough to compile and to send with every request, and
well-formed: a provider refuses a request that contains a malformed schema, and so every request.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_DEPTH = 48
"""Nested schemas. Schemas in practice nest 10 deep; both Python and providers fail somewhere past 100."""

MAX_NODES = 4_000
"""Schemas and values together: some 1,000 arguments. A model with that many fields takes 50 ms to create."""

MAX_CHARS = 128 * 1024
"""All names and texts together: some 30,000 tokens in every request."""

MAX_ENUM = 1_000
"""A longer enum is dropped, its type stays."""

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

_BEYOND = 1e300
"""A larger number limits nothing, and most JSON parsers cannot represent it."""

_SCHEMA = frozenset({"additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not",
                     "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"})  # fmt: skip
_SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
"""Copied last, so that an excess of them does not displace arguments."""
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND


def _is_limit(value: Any) -> bool:
    return _is_flag(value) or _is_number(value)  # draft 4 has `exclusiveMinimum: true`


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_anything(_: Any) -> bool:
    return True


_DATA: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and 0 < len(value) <= MAX_ENUM,
    "const": _is_anything,
    "default": _is_anything,
    "examples": lambda value: isinstance(value, list),
    "required": _is_names,
    "$ref": lambda value: isinstance(value, str) and is_local(value),
    **dict.fromkeys(("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minimum", "maximum"), _is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _is_limit),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("nullable", "uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
}
"""The supported keywords, each with the check of its value; `nullable` is OpenAPI's."""


def bounded(schema: Any) -> dict[str, Any]:
    """Copy the known, well-formed keywords within MAX_DEPTH, MAX_NODES and MAX_CHARS."""
    copy = _Copy().schema(schema, depth=0)
    return copy if isinstance(copy, dict) else {}


class _TooMuchError(Exception):
    """The limits are reached."""


class _NoJSONError(Exception):
    """A value that cannot be copied."""


class _Copy:
    """One copy operation, with the remaining limits."""

    def __init__(self) -> None:
        self._nodes = MAX_NODES
        self._chars = MAX_CHARS

    def schema(self, node: Any, *, depth: int) -> dict[str, Any] | bool:
        """Copy a schema; `True` if it is malformed or too deep; the part that fits if the limits are reached."""
        if node is False:
            return False
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            return True
        kept: dict[str, Any] = {}
        try:
            self._take(1)
            for key, value in sorted(node.items(), key=lambda item: item[0] in _DEFINITIONS):
                self._keep(kept, key, value, depth=depth)
        except _TooMuchError:
            kept.pop("additionalProperties", None)  # it would apply to the dropped properties, too
        return kept

    def _keep(self, kept: dict[str, Any], key: str, value: Any, *, depth: int) -> None:
        if key in _SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            if isinstance(value, list) and value:
                self._take(len(value))
                kept[key] = [self.schema(item, depth=depth + 1) for item in value]
        elif key in _SCHEMA:
            kept[key] = self.schema(value, depth=depth + 1)
        elif key in _SCHEMA_MAPS:
            if isinstance(value, dict):
                self._keep_map(kept.setdefault(key, {}), value, depth=depth)
        elif key in _DATA and _DATA[key](value):
            with contextlib.suppress(_NoJSONError):
                kept[key] = self.data(value, depth=depth)

    def _keep_map(self, copied: dict[str, Any], value: dict[Any, Any], *, depth: int) -> None:
        """Copy into a map already attached to its parent: entries copied before the limits are reached stay."""
        for name, item in value.items():
            if isinstance(name, str) and is_encodable(name):
                self._take(1, len(name))
                copied[name] = self.schema(item, depth=depth + 1)

    def data(self, value: Any, *, depth: int) -> Any:
        """Copy a JSON value.

        Raises:
            _NoJSONError: it is nested too deep, or holds a value that is not JSON.
            _TooMuchError: the limits are reached.
        """
        if isinstance(value, str) and is_encodable(value):
            self._take(1, len(value))
            return value
        self._take(1)
        if depth <= MAX_DEPTH and isinstance(value, list):
            return [self.data(item, depth=depth + 1) for item in value]
        if depth <= MAX_DEPTH and isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {self.data(name, depth=depth): self.data(item, depth=depth + 1) for name, item in value.items()}
        if value is None or isinstance(value, bool) or _is_number(value):
            return value
        raise _NoJSONError

    def _take(self, nodes: int, chars: int = 0) -> None:
        self._nodes -= nodes
        self._chars -= chars
        if self._nodes < 0 or self._chars < 0:
            raise _TooMuchError


def is_encodable(text: str) -> bool:
    """Whether the text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_local(reference: str) -> bool:
    """Whether the reference is a JSON pointer into its own schema: `#` or `#/...`."""
    return reference == "#" or reference.startswith("#/")
