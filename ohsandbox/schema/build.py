"""Models from foreign JSON Schemas, made once each."""

from __future__ import annotations

import copy
import hashlib
import json
import keyword
import re
import threading
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from ohsandbox.schema.models import Schema
from ohsandbox.schema.root import object_schema
from ohsandbox.schema.values import Converter, begin_validation

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

SchemaT = TypeVar("SchemaT", bound=Schema)

CACHED = 128
"""Models kept: more tools than an agent should have. With `bounded.MAX_CHARS` they hold some 50 MB at the very most."""

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_HINTS: dict[Any, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any],
}  # fmt: skip


class FromJSON:
    """What a model from a foreign schema has beside its fields: the schema itself."""

    source_schema: ClassVar[dict[str, Any]] = {}
    definitions: ClassVar[list[CoreSchema]] = []
    """What references lead to."""
    droppable: ClassVar[frozenset[str]] = frozenset()
    """Optional properties that may not be null: models say null where they mean to leave one out."""

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """The schema that it came from, bounded; pydantic's options change nothing."""
        return copy.deepcopy(cls.source_schema)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """As a part of another model it is an object: its references would lead nowhere there."""
        del schema, handler
        return {"type": "object"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The fields' validators, after the nulls that mean nothing are dropped."""
        made = core_schema.no_info_before_validator_function(cls._without_nulls, handler(source))
        return core_schema.definitions_schema(made, cls.definitions) if cls.definitions else made

    @classmethod
    def _without_nulls(cls, arguments: Any) -> Any:
        begin_validation()
        if not isinstance(arguments, dict) or not any(arguments.get(name, 0) is None for name in cls.droppable):
            return arguments
        return {name: value for name, value in arguments.items() if value is not None or name not in cls.droppable}


class _Checked:
    """Gives a field the validator that its schema stands for; what it let in goes out as it is."""

    def __init__(self, validator: CoreSchema) -> None:
        self._validator = validator

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source, handler
        as_it_is = core_schema.simple_ser_schema("any")
        return core_schema.no_info_after_validator_function(_same, self._validator, serialization=as_it_is)


def _same(value: Any) -> Any:
    return value


def model_from_json(base: type[SchemaT], name: str, schema: Any) -> type[SchemaT]:
    """See `Schema.from_mcp_schema`."""
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError):  # no JSON, or too deep for the encoder
        schema = object_schema(schema)
        text = json.dumps(schema)
    key = (base, name, hashlib.sha256(text.encode()).hexdigest())
    model: type[SchemaT] | None = _cache.get(key)
    return model or _cache.put(key, _make(base, name, object_schema(schema), digest=key[2]))


class _Cache:
    """The models used last, by base, name and schema."""

    def __init__(self) -> None:
        self._models: OrderedDict[Any, Any] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Any) -> Any:
        with self._guard:
            if key in self._models:
                self._models.move_to_end(key)
            return self._models.get(key)

    def put(self, key: Any, model: type[SchemaT]) -> type[SchemaT]:
        with self._guard:
            self._models[key] = model
            if len(self._models) > CACHED:
                self._models.popitem(last=False)
            return model


_cache = _Cache()


def _make(base: type[SchemaT], name: str, source: dict[str, Any], *, digest: str) -> type[SchemaT]:
    converter = Converter(source, prefix=digest)
    required, rest = set(source["required"]), source.get("additionalProperties", True)
    properties: dict[str, Any] = {**dict.fromkeys(source["required"], True), **source["properties"]}
    fields: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for given_name, attribute in _attributes(base, properties).items():
        schema = properties[given_name]
        hints[attribute] = Annotated[_hint(schema), _Checked(converter.validator(schema))]
        fields[attribute] = _field(schema, alias=given_name, required=given_name in required)
    if isinstance(rest, dict):
        hints["__pydantic_extra__"] = dict[str, Annotated[Any, _Checked(converter.validator(rest))]]
    droppable = frozenset(name for name in properties if name not in required and not _may_be_null(properties[name]))
    facts = {"source_schema": source, "definitions": converter.definitions(), "droppable": droppable}
    body = {
        "__module__": __name__,
        "__doc__": source.get("description", ""),
        "__annotations__": hints,
        "model_config": ConfigDict(extra="forbid" if rest is False else "allow", protected_namespaces=()),
        **fields,
    }
    parents = (type("Facts", (FromJSON,), facts), base)
    return types.new_class(class_name(name), parents, exec_body=lambda namespace: namespace.update(body))


def class_name(name: str) -> str:
    """The name as a class's: `fetch-url` becomes `FetchUrl`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words) or "FromJSON"
    return joined if joined[0].isalpha() else f"_{joined}"


def _attributes(base: type[Schema], properties: dict[str, Any]) -> dict[str, str]:
    """Property -> attribute: its own name, unless Python, pydantic or base has a use for that."""
    return {name: name if _can_be_attribute(name, base) else _substitute(name) for name in properties}


def _can_be_attribute(name: str, base: type[Schema]) -> bool:
    is_name = _ATTRIBUTE.match(name) is not None and not keyword.iskeyword(name)
    return is_name and not hasattr(base, name) and not hasattr(FromJSON, name)


def _substitute(name: str) -> str:
    """Ends in a hash, so that no argument that the schema does not name is called the same."""
    readable = re.sub(r"\W", "_", name, flags=re.ASCII)[:60]
    return f"arg_{readable}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _field(schema: Any, *, alias: str, required: bool) -> Any:
    known = schema if isinstance(schema, dict) else {}
    default = ... if required else known.get("default")
    return Field(default, alias=alias, description=known.get("description"))


def _hint(schema: Any) -> Any:
    """What a reader of the class is shown; what is checked is the schema."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _HINTS.get(kind, Any) if isinstance(kind, str) else Any


def _may_be_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if schema.get("nullable") is True or "type" not in schema:
        return True
    return schema["type"] == "null" or "null" in schema["type"]
