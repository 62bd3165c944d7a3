"""Models from foreign JSON Schemas, cached."""

from __future__ import annotations

import copy
import hashlib
import json
import keyword
import re
import types
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from ohsandbox.schema.models import Schema
from ohsandbox.schema.provider_schema import object_schema
from ohsandbox.schema.validation import ArgumentsValidator

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

SchemaT = TypeVar("SchemaT", bound=Schema)

CACHED = 128
"""Cached models: more tools than an agent should have. With `bounded.MAX_CHARS` they use at most some 50 MB."""

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_HINTS: dict[Any, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any],
}  # fmt: skip


class FromJSON:
    """Mixin of models from a foreign schema: holds the schema itself."""

    source_schema: ClassVar[dict[str, Any]] = {}
    validator: ClassVar[ArgumentsValidator]

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """The original schema, limited; pydantic's options have no effect."""
        return copy.deepcopy(cls.source_schema)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """An object inside another model's schema: its references would not resolve there."""
        del schema, handler
        return {"type": "object"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Fields accept any value: the schema was checked before."""
        return core_schema.no_info_before_validator_function(cls._checked, handler(source))

    @classmethod
    def _checked(cls, arguments: Any) -> Any:
        return cls.validator.check(arguments) if isinstance(arguments, dict) else arguments


class _AnyValue:
    """Gives a field its schema's type hint and the validator of `Any`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source, handler
        return core_schema.any_schema()


def model_from_json(base: type[SchemaT], name: str, schema: Any) -> type[SchemaT]:
    """See `Schema.from_mcp_schema`."""
    made: type[SchemaT] = _model(base, name, json.dumps(object_schema(schema)))
    return made


@lru_cache(maxsize=CACHED)
def _model(base: Any, name: str, schema: str) -> Any:
    return _make(base, name, json.loads(schema))


def _make(base: type[SchemaT], name: str, source: dict[str, Any]) -> type[SchemaT]:
    properties: dict[str, Any] = {**dict.fromkeys(source["required"], True), **source["properties"]}
    fields: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for given_name, attribute in _attributes(base, properties).items():
        schema = properties[given_name]
        hints[attribute] = Annotated[_hint(schema), _AnyValue()]
        fields[attribute] = _field(schema, alias=given_name, required=given_name in source["required"])
    body = {
        "__module__": __name__,
        "__doc__": source.get("description", ""),
        "__annotations__": hints,
        "model_config": ConfigDict(extra="allow", protected_namespaces=()),
        **fields,
    }
    facts = {"source_schema": source, "validator": ArgumentsValidator(source)}
    parents = (type("Facts", (FromJSON,), facts), base)
    return types.new_class(class_name(name), parents, exec_body=lambda namespace: namespace.update(body))


def class_name(name: str) -> str:
    """Convert to a class name: `fetch-url` becomes `FetchUrl`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words) or "FromJSON"
    return joined if joined[0].isalpha() else f"_{joined}"


def _attributes(base: type[Schema], properties: dict[str, Any]) -> dict[str, str]:
    """Map property -> attribute: its own name, unless Python, pydantic or base reserves it."""
    return {name: name if _can_be_attribute(name, base) else _substitute(name) for name in properties}


def _can_be_attribute(name: str, base: type[Schema]) -> bool:
    is_name = _ATTRIBUTE.match(name) is not None and not keyword.iskeyword(name)
    return is_name and not hasattr(base, name) and not hasattr(FromJSON, name)


def _substitute(name: str) -> str:
    """A name with a hash suffix, so that it equals no argument outside the schema."""
    readable = re.sub(r"\W", "_", name, flags=re.ASCII)[:60]
    return f"arg_{readable}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _field(schema: Any, *, alias: str, required: bool) -> Any:
    known = schema if isinstance(schema, dict) else {}
    default = ... if required else known.get("default")
    return Field(default, alias=alias, description=known.get("description"))


def _hint(schema: Any) -> Any:
    """The type hint for readers of the class; validation uses the schema."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _HINTS.get(kind, Any) if isinstance(kind, str) else Any
