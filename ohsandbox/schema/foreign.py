"""Models from foreign JSON Schemas, cached; jsonschema-rs checks, near misses are repaired, faults become pydantic's.

jsonschema-rs has no bound on the work behind references (28 definitions that lead to the next one twice keep it busy
for 15 s and more) and overflows small stacks on deep schemas. It gets a schema with references inlined, within limits.
A keyword that cannot be checked exactly is dropped, and any value passes there: the server checks too.
"""

from __future__ import annotations

import copy
import hashlib
import json
import keyword
import re
import types
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from jsonschema_rs import Draft202012Validator, RegexOptions
from jsonschema_rs import ValidationError as Fault
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from ohsandbox.schema.models import Schema
from ohsandbox.schema.provider_schema import MAX_NODES, object_schema, resolve_reference
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

_SchemaT = TypeVar("_SchemaT", bound=Schema)

CACHED = 128
"""Cached models: more tools than an agent should have. With `provider_schema.MAX_CHARS` they use at most some 50 MB."""

_MAX_LEVELS = 60
"""Nesting depth. jsonschema-rs 0.60 ends the process at 120 levels on a stack of 256 KiB, and not at 64."""

_MAX_RECURSION = 3
"""Levels to which a recursive definition is checked."""

_MAX_PATTERNS = 50
"""Limit of patterns per schema. The slowest pattern within the next limit compiles in 10 ms."""

_MAX_PATTERN_BYTES = 256 * 1024
"""Limit of a compiled pattern; a larger one is not checked. Matching takes linear time: no backtracking."""

MAX_WORK = 50_000
"""Values checked times schemas. Each may be a fault, and jsonschema-rs takes some 20 us to describe one. Past it, only
the argument at fault is named, and nothing is repaired. Whether a value fits takes a thousandth of that."""

MAX_FAULTS = 50
"""Limit of reported faults per value."""

_MAX_SHOWN = 20
"""Limit of enum values listed in a message."""

_EXACT = ("enum", "const", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties",
          "maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")  # fmt: skip
"""Keywords whose meaning does not depend on their sibling keywords."""

_WHOLE = "x-whole-number"
"""Our keyword beside `type: integer`: 2.0 is an integer in JSON Schema, but many servers reject it."""

_NOT_ECMA = re.compile(r"&&|--|~~|\(\?(?!:)")
"""Syntax that Rust's regular expressions read differently from ECMA 262, which JSON Schema uses."""

_REGEX = RegexOptions(size_limit=_MAX_PATTERN_BYTES, dfa_size_limit=_MAX_PATTERN_BYTES)
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_HINTS: dict[Any, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any],
}  # fmt: skip
_FROM_TEXT: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(_HINTS[kind]) for kind in ("integer", "number", "boolean")}


class _FromJSON:
    """Mixin of models from a foreign schema: holds the schema itself."""

    source_schema: ClassVar[dict[str, Any]] = {}
    validator: ClassVar[_ArgumentsValidator]

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """The original schema, limited; pydantic's options have no effect."""
        return copy.deepcopy(cls.source_schema)

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe it as an object inside another model's schema: its references would not resolve there."""
        return {"type": "object"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let fields accept any value: the schema was checked before."""

        def checked(arguments: Any) -> Any:
            return cls.validator.check(arguments) if isinstance(arguments, dict) else arguments

        return core_schema.no_info_before_validator_function(checked, handler(source))


class _AnyValue:
    """Annotation beside a type hint: any value is valid, and is stored without a warning about its type."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


def model_from_json(base: type[_SchemaT], name: str, schema: Any, *, description: str = "") -> type[_SchemaT]:
    """See `Schema.from_mcp_schema`."""
    model: type[_SchemaT] = _model(base, name, json.dumps(object_schema(schema)), description)
    return model


@lru_cache(maxsize=CACHED)
def _model(base: Any, name: str, schema: str, description: str) -> Any:
    source = load_json(schema)
    body: dict[str, Any] = {"__module__": __name__, "__doc__": description or source.get("description", "")}
    body["model_config"] = ConfigDict(extra="allow", protected_namespaces=())
    body["__annotations__"] = hints = {}
    for argument, part in {**dict.fromkeys(source["required"], True), **source["properties"]}.items():
        property_schema = part if isinstance(part, dict) else {}
        default = ... if argument in source["required"] else property_schema.get("default")
        attribute = _attribute(argument, base)
        body[attribute] = Field(default, alias=argument, description=property_schema.get("description"))
        kind = property_schema.get("type")
        hint = _HINTS.get(kind, Any) if isinstance(kind, str) else Any  # for readers of the class
        hints[attribute] = Annotated[hint, _AnyValue]
    parents = (type("Facts", (_FromJSON,), {"source_schema": source, "validator": _ArgumentsValidator(source)}), base)
    return types.new_class(class_name(name), parents, exec_body=lambda namespace: namespace.update(body))


def class_name(name: str) -> str:
    """Convert to a class name: `fetch-url` becomes `FetchUrl`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words) or "FromJSON"
    return joined if joined[0].isalpha() else f"_{joined}"


def _attribute(argument: str, base: type[Schema]) -> str:
    """The argument's own name; if Python, pydantic or base reserves it, one with a hash that no argument has."""
    is_name = _ATTRIBUTE.match(argument) is not None and not keyword.iskeyword(argument)
    if is_name and not hasattr(base, argument) and not hasattr(_FromJSON, argument):
        return argument
    readable = re.sub(r"\W", "_", argument, flags=re.ASCII)[:60]
    return f"arg_{readable}_{hashlib.sha256(argument.encode()).hexdigest()[:12]}"


class _ArgumentsValidator:
    """Checks arguments against one schema of `object_schema`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._optional = {*schema["properties"]} - {*schema["required"]}
        checkable = _Checkable(schema)
        check_schema = checkable.of(schema)
        self._schema = check_schema if isinstance(check_schema, dict) else {}
        self._nodes = MAX_NODES - checkable.nodes_left
        try:
            self._validator = _validator(self._schema)
        except ValueError:  # Fault is a ValueError: the server checks whatever jsonschema-rs refuses
            self._validator = _validator({})

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the repaired arguments: numbers and booleans sent as text converted, nulls for optional ones dropped.

        Raises:
            ValidationError: they are invalid; at most MAX_FAULTS faults, each with its place.
            ValueError: they hold a value that is not JSON, or nest too deep.
        """
        if self._validator.is_valid(arguments):
            return arguments
        if self._nodes * _count(arguments) > MAX_WORK:
            faults = [self._argument_at_fault(arguments)]
        else:
            arguments = copy.deepcopy(arguments)
            for fault in self._validator.iter_errors(arguments):
                self._repair(arguments, fault)
            remaining = islice(self._validator.iter_errors(arguments), MAX_FAULTS)
            faults = [detail for fault in remaining for detail in _details(arguments, fault)]
        if faults:
            raise ValidationError.from_exception_data("arguments", faults[:MAX_FAULTS])
        return arguments

    def _argument_at_fault(self, arguments: dict[str, Any]) -> InitErrorDetails:
        error = PydanticCustomError("json_schema", "Input does not fit the schema of this argument")
        for name, schema in self._schema.get("properties", {}).items():
            if not _validator({"properties": {name: schema}}).is_valid(arguments):
                return InitErrorDetails(type=error, loc=(name,), input=arguments.get(name))
        return InitErrorDetails(type=error, loc=(), input=arguments)

    def _repair(self, arguments: dict[str, Any], fault: Fault) -> None:
        details = fault.kind.as_dict()
        for part in (part for branch in details.get("context", ()) for part in branch):
            self._repair(arguments, part)
        holder: Any = {"": arguments}
        last: str | int = ""
        for step in _place(arguments, fault):
            holder, last = holder[last], step
        given = holder[last] if not isinstance(holder, dict) or last in holder else None
        if holder is arguments and given is None and last in self._optional:
            arguments.pop(str(last), None)
        elif fault.kind.name == _WHOLE and isinstance(given, float):
            holder[last] = int(given)
        elif fault.kind.name == "type" and isinstance(given, str):
            holder[last] = _parsed(given, details["types"])


def _place(arguments: Any, fault: Fault) -> tuple[str | int, ...]:
    """The fault's place. jsonschema-rs gives a property whose name looks like a number, also `"01"`, as that number."""
    place: list[str | int] = []
    holder: Any = arguments
    for step in fault.instance_path:
        name: Any = step
        if isinstance(holder, dict) and isinstance(step, int):
            named = (key for key in holder if key.removeprefix("+").isdecimal() and int(key) == step)
            name = str(step) if str(step) in holder else next(named, str(step))
        place.append(name)
        holder = holder.get(name) if isinstance(holder, dict) else holder[name] if isinstance(holder, list) else None
    return tuple(place)


class _WholeNumber:
    def __init__(self, *_: Any) -> None:
        pass

    def validate(self, instance: Any) -> None:
        if isinstance(instance, float) and instance.is_integer():
            raise ValueError("It has a fraction")


def _validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema, pattern_options=_REGEX, keywords={_WHOLE: _WholeNumber}, mask="The value")


def _count(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, parts))


def _parsed(text: str, types: list[str]) -> Any:
    """Parse the text as one of the types, a number or boolean; else return the text."""
    for kind in types:
        try:
            if kind in _FROM_TEXT:
                return _FROM_TEXT[kind].validate_python(text)
        except ValidationError:
            continue
    return text


class _Checkable:
    """The part of a bounded schema that can be checked exactly, without references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.nodes_left = MAX_NODES
        self._patterns_left = _MAX_PATTERNS

    def of(self, node: Any, *, seen: tuple[str, ...] = ()) -> dict[str, Any] | bool:
        """Convert a schema; `True` past MAX_LEVELS; seen holds the references and levels on the path."""
        self.nodes_left -= 1
        if not isinstance(node, dict) or len(seen) > _MAX_LEVELS:
            return node is not False
        made, inside = self._own(node, inside=(*seen, "")), (*seen, "")
        demands = [self.of(part, seen=inside) for part in node.get("allOf", ())]
        demands += [{"anyOf": [self.of(part, seen=inside) for part in node[key]]} for key in ("anyOf", "oneOf")
                    if key in node]  # fmt: skip
        reference = node.get("$ref")
        if reference is not None and seen.count(reference) < _MAX_RECURSION and self.nodes_left > 0:
            demands.append(self.of(resolve_reference(self._root, reference), seen=(*seen, reference)))
        demands = [demand for demand in demands if demand is not True and demand != {}]
        if demands:
            made = {**made, "allOf": demands} if made or len(demands) > 1 else demands[0]
        return {"anyOf": [{"type": "null"}, made]} if node.get("nullable") is True else made

    def _own(self, node: dict[str, Any], *, inside: tuple[str, ...]) -> Any:
        """Convert all keywords except the combinations and the reference."""
        made = _without_draft_4({key: node[key] for key in _EXACT if key in node})
        if "type" in node:
            made["type"] = [*dict.fromkeys(node["type"] if isinstance(node["type"], list) else [node["type"]])]
            if "integer" in made["type"] and "number" not in made["type"]:
                made[_WHOLE] = True
        if "required" in node:
            made["required"] = [*dict.fromkeys(node["required"])]
        if "pattern" in node and self._is_checkable(node["pattern"]):
            made["pattern"] = node["pattern"]
        if "properties" in node:
            made["properties"] = {name: self.of(part, seen=inside) for name, part in node["properties"].items()}
        if "additionalProperties" in node and "patternProperties" not in node:
            made["additionalProperties"] = self.of(node["additionalProperties"], seen=inside)
        if isinstance(node.get("items"), dict | bool) and "prefixItems" not in node:
            made["items"] = self.of(node["items"], seen=inside)
        return made

    def _is_checkable(self, pattern: str) -> bool:
        if _NOT_ECMA.search(pattern) or self._patterns_left <= 0:
            return False
        self._patterns_left -= 1
        try:
            Draft202012Validator({"pattern": pattern}, pattern_options=_REGEX)
        except ValueError:
            return False
        return True


def _without_draft_4(made: dict[str, Any]) -> dict[str, Any]:
    """Convert draft 4's `exclusiveMinimum: true` beside `minimum: 3` to `exclusiveMinimum: 3`."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and limit in made:
            made[exclusive] = made.pop(limit)
    return made


def _details(arguments: Any, fault: Fault) -> Iterator[InitErrorDetails]:
    """Convert a fault to pydantic's form, so that all tools' messages look alike."""
    place, facts, kind = _place(arguments, fault), fault.kind.as_dict(), fault.kind.name
    given: Any = fault.instance
    parts: list[Fault] = _most_telling(facts["context"], place) if kind == "anyOf" else []
    if parts and all(part.kind.name == "type" and len(part.instance_path) == len(place) for part in parts):
        wanted = dict.fromkeys(name for part in parts for name in part.kind.as_dict()["types"])
        parts, kind, facts = [], "type", {"types": [*wanted]}
    if kind == "anyOf":
        for part in parts:
            yield from _details(arguments, part)
    elif kind == "required":
        yield InitErrorDetails(type="missing", loc=(*place, facts["property"]), input=given)
    elif kind == "additionalProperties":
        for name in facts["unexpected"]:
            yield InitErrorDetails(type="extra_forbidden", loc=(*place, name), input=given.get(name))
    elif kind == "type" and isinstance(given, str) and {"array", "object"}.intersection(facts["types"]):
        name = "list_type" if "array" in facts["types"] else "dict_type"  # perhaps JSON text, see `parse_action`
        yield InitErrorDetails(type=name, loc=place, input=given)
    else:
        error = PydanticCustomError("json_schema", "{message}", {"message": _message(kind, facts, fault.message)})
        yield InitErrorDetails(type=error, loc=place, input=given)


def _most_telling(branches: list[list[Fault]], place: tuple[str | int, ...]) -> list[Fault]:
    """The faults of the intended branch: one whose type fits; all branches' faults if none does."""
    near = [branch for branch in branches if not any(
        fault.kind.name in ("type", "enum", "const") and len(fault.instance_path) == len(place) for fault in branch
    )]  # fmt: skip
    return min(near, key=len) if near else [fault for branch in branches for fault in branch]


def _message(kind: str, facts: Mapping[str, Any], said: str) -> str:
    if kind == "type":
        return f"Input should be of type {' or '.join(facts['types'])}"
    if kind in ("enum", "const"):
        values = facts["options"] if kind == "enum" else [facts["expected_value"]]
        shown = ", ".join(json.dumps(value, ensure_ascii=False)[:100] for value in values[:_MAX_SHOWN])
        return f"Allowed are: {shown}" + (f", ... ({len(values)} in all)" if len(values) > _MAX_SHOWN else "")
    return "No value is allowed here" if kind == "falseSchema" else said
