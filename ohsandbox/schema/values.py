"""JSON Schemas as pydantic-core validators: what a schema accepts comes out equal to what went in.

pydantic-core does the work: it is fast, its regular expressions take linear time, and recursion in the data ends at
a fixed depth. A keyword that is not understood is not checked. A wrong type that is right in spirit is mended, as
models need it: numbers and booleans may come as text.
"""

from __future__ import annotations

import json
import math
import re
import threading
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

from ohsandbox.schema.pointer import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import CoreSchema

MAX_PATTERN_CHARS = 1_000
MAX_PATTERN_WORK = 20_000
"""Of all patterns of one schema: characters, and counted repetitions multiplied (`(a{9}){9}` has 81). So much compiles
in some 50 ms; the worst that we found in 200."""

MAX_LEVELS = 64
"""Schemas within each other, those behind references included: pydantic-core compiles by recursion and has no bound of
its own. On a stack of 512 KiB it overflowed between 100 and 190 levels."""

MAX_FOLLOWED = 2_000
"""References in one validation. Past it nothing is checked: the tool does so, too."""

MAX_SHOWN = 20
"""Of a long enum, so many values are named in the message."""

_ASCII_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]", "b": r"(?-u:\b)"}
"""ECMA 262, whose patterns JSON Schema has, means ASCII by these; Rust means Unicode, at 50 times the size."""

_KEYWORDS_OF = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Each speaks of values of one type only; without `type` all other values pass."""


class Converter:
    """Converts the schemas of one root."""

    def __init__(self, root: Mapping[str, Any], *, prefix: str) -> None:
        """Prefix makes the names of definitions unique among all models of the process."""
        self._root = root
        self._prefix = prefix
        self._pattern_work = MAX_PATTERN_WORK
        self._names: dict[str, str] = {}
        """Reference -> name of its definition."""
        self._references: list[str] = []
        self._level = 0
        self._level_of: dict[str, int] = {}

    def validator(self, node: Any) -> CoreSchema:
        """What the (bounded) schema accepts."""
        if node is False:
            return core_schema.no_info_plain_validator_function(_refuse)
        if not isinstance(node, dict) or self._level > MAX_LEVELS:
            return core_schema.any_schema()
        self._level += 1
        made = self._made(node)
        self._level -= 1
        return made

    def _made(self, node: dict[str, Any]) -> CoreSchema:
        steps = [*self._reference(node), *self._typed(node), *_listed(node)]
        steps += [part for kind in ("anyOf", "oneOf") for part in self._choice(node.get(kind))]
        steps += [self.validator(part) for part in node.get("allOf", ())]
        steps = [step for step in steps if step["type"] != "any"]
        made = _chain(steps)
        return core_schema.nullable_schema(made) if node.get("nullable") is True and steps else made

    def definitions(self) -> list[CoreSchema]:
        """The validators that references lead to, those that are found on the way included; call it last."""
        made: list[CoreSchema] = []
        while len(made) < len(self._references):
            reference = self._references[len(made)]
            self._level = self._level_of[reference]
            target = self.validator(target_of(self._root, reference))
            made.append(core_schema.no_info_after_validator_function(_same, target, ref=self._names[reference]))
        return made

    def _reference(self, node: dict[str, Any]) -> list[CoreSchema]:
        reference = node.get("$ref")
        if reference is None:
            return []
        if reference not in self._names:
            self._names[reference] = f"{self._prefix}:{len(self._names)}"
            self._references.append(reference)
            self._level_of[reference] = self._level
        name = self._names[reference]

        def follow(value: Any, check: Callable[[Any], Any]) -> Any:
            return _walk.follow(name, value, check)

        return [core_schema.no_info_wrap_validator_function(follow, core_schema.definition_reference_schema(name))]

    def _choice(self, options: Any) -> list[CoreSchema]:
        """One of several; a value of which more than one holds passes, though `oneOf` forbids it."""
        if not options:
            return []
        made = [self.validator(option) for option in options if option is not False]
        rest = [option for option in made if option["type"] != "none"]
        if any(option["type"] == "any" for option in made) or not made:
            return []
        chosen = rest[0] if len(rest) == 1 else core_schema.union_schema([(one, _label(one)) for one in rest or made])
        return [core_schema.nullable_schema(chosen) if 0 < len(rest) < len(made) else chosen]

    def _typed(self, node: dict[str, Any]) -> list[CoreSchema]:
        kinds = node.get("type")
        if isinstance(kinds, str):
            return [self._of_type(kinds, node)]
        if kinds is not None:
            return self._choice([{**_plain_keywords(node), "type": kind} for kind in dict.fromkeys(kinds)])
        spoken_of = [kind for kind, keywords in _KEYWORDS_OF.items() if any(keyword in node for keyword in keywords)]
        if not spoken_of:
            return []
        choices: dict[Any, CoreSchema] = {kind: self._of_type(kind, node) for kind in spoken_of}
        choices["other"] = core_schema.any_schema()

        def kind_of(value: Any) -> str:
            kind = _kind(value)
            return kind if kind in choices else "other"

        return [core_schema.tagged_union_schema(choices, kind_of)]

    def _of_type(self, kind: str, node: dict[str, Any]) -> CoreSchema:
        makers: dict[str, Callable[[dict[str, Any]], CoreSchema]] = {
            "string": self._string,
            "integer": _integer,
            "number": _number,
            "boolean": _boolean,
            "null": lambda _: core_schema.none_schema(),
            "array": self._array,
            "object": self._object,
        }
        return makers[kind](node)

    def _string(self, node: dict[str, Any]) -> CoreSchema:
        return core_schema.str_schema(
            min_length=_count(node, "minLength"),
            max_length=_count(node, "maxLength"),
            pattern=self._pattern(node.get("pattern")),
        )

    def _pattern(self, pattern: str | None) -> str | None:
        """The pattern for Rust; None where it would mean something else, or is too large."""
        if pattern is None or len(pattern) > MAX_PATTERN_CHARS or re.search(r"&&|--|~~|\(\?(?!:)", pattern):
            return None
        self._pattern_work -= len(pattern) + _repetitions(pattern)
        if self._pattern_work < 0:
            return None
        ascii_only = re.sub(r"\\(.)", lambda found: _ASCII_CLASSES.get(found[1], found[0]), pattern, flags=re.DOTALL)
        try:
            SchemaValidator(core_schema.str_schema(pattern=ascii_only))
        except SchemaError:
            return None
        return ascii_only

    def _array(self, node: dict[str, Any]) -> CoreSchema:
        items = node.get("items", True)
        any_item = isinstance(items, list) or "prefixItems" in node
        made = core_schema.list_schema(
            None if any_item else self.validator(items),
            min_length=_count(node, "minItems"),
            max_length=_count(node, "maxItems"),
        )
        return core_schema.no_info_after_validator_function(_unique, made) if node.get("uniqueItems") is True else made

    def _object(self, node: dict[str, Any]) -> CoreSchema:
        required = set(node.get("required", ()))
        properties = {**dict.fromkeys(node.get("required", ()), True), **node.get("properties", {})}
        fields = {
            name: core_schema.typed_dict_field(self.validator(schema), required=name in required)
            for name, schema in properties.items()
        }
        rest = True if "patternProperties" in node else node.get("additionalProperties", True)
        made: CoreSchema = core_schema.typed_dict_schema(
            fields,
            extra_behavior="forbid" if rest is False else "allow",
            extras_schema=self.validator(rest) if isinstance(rest, dict) else None,
        )
        return _of_size(made, _count(node, "minProperties") or 0, _count(node, "maxProperties"))


class _Walk(threading.local):
    """References followed in one validation. `anyOf: [{"$ref": x}, {"$ref": x}]` can double them at every level."""

    def __init__(self) -> None:
        self._left = 0
        self._followed: set[tuple[str, int]] = set()

    def begin(self) -> None:
        """Another validation."""
        self._left = MAX_FOLLOWED
        self._followed = set()

    def follow(self, name: str, value: Any, check: Callable[[Any], Any]) -> Any:
        """Check the value by what the reference leads to; past the bound, or in a circle, it passes."""
        step = (name, id(value))
        if self._left <= 0 or step in self._followed:
            return value
        self._left -= 1
        self._followed.add(step)
        try:
            return check(value)
        finally:
            self._followed.discard(step)


_walk = _Walk()
begin_validation = _walk.begin


def _plain_keywords(node: dict[str, Any]) -> dict[str, Any]:
    """Only what belongs to one type: the rest is checked once, beside the choice of types."""
    keywords = [keyword for names in _KEYWORDS_OF.values() for keyword in names]
    return {keyword: node[keyword] for keyword in [*keywords, "patternProperties"] if keyword in node}


def _chain(steps: list[CoreSchema]) -> CoreSchema:
    if not steps:
        return core_schema.any_schema()
    return steps[0] if len(steps) == 1 else core_schema.chain_schema(steps)


# --- numbers and booleans: a number is no boolean, though Python says so -----------------------------


def _integer(node: dict[str, Any]) -> CoreSchema:
    limits = _limits(node)
    step = node.get("multipleOf")
    made = core_schema.int_schema(
        ge=None if limits.least is None else math.ceil(limits.least),
        gt=None if limits.above is None else math.floor(limits.above),
        le=None if limits.most is None else math.floor(limits.most),
        lt=None if limits.below is None else math.ceil(limits.below),
        multiple_of=int(step) if step is not None and step == int(step) else None,
    )
    return core_schema.no_info_before_validator_function(_no_boolean, made)


def _number(node: dict[str, Any]) -> CoreSchema:
    limits = _limits(node)
    made = core_schema.float_schema(
        ge=limits.least, gt=limits.above, le=limits.most, lt=limits.below, multiple_of=node.get("multipleOf"),
        allow_inf_nan=False,
    )  # fmt: skip
    return core_schema.no_info_wrap_validator_function(_kept_number, made)


def _boolean(_: dict[str, Any]) -> CoreSchema:
    return core_schema.no_info_before_validator_function(_no_number, core_schema.bool_schema())


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number, not a boolean")
    return value


def _no_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("boolean_type", "Input should be true or false")
    return value


def _kept_number(value: Any, check: Callable[[Any], float]) -> float:
    """Integers stay integers."""
    checked = check(_no_boolean(value))
    return value if isinstance(value, int) else checked


class _Limits:
    """Bounds of a number; a draft 4 `exclusiveMinimum: true` moves `minimum` there."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.least, self.above = _bound(node, "minimum", "exclusiveMinimum")
        self.most, self.below = _bound(node, "maximum", "exclusiveMaximum")


def _limits(node: dict[str, Any]) -> _Limits:
    return _Limits(node)


def _bound(node: dict[str, Any], inclusive: str, exclusive: str) -> tuple[float | None, float | None]:
    with_it, without_it = node.get(inclusive), node.get(exclusive)
    if without_it is True:
        return None, with_it
    return with_it, None if without_it is False else without_it


# --- everything else ---------------------------------------------------------------------------------


def _count(node: dict[str, Any], keyword: str) -> int | None:
    """The keyword as an integer that pydantic-core takes; a larger one is no length of anything."""
    return min(int(node[keyword]), 2**31) if keyword in node else None


def _repetitions(pattern: str) -> int:
    product = 1
    for low, high in re.findall(r"\{(\d{1,9})(?:,(\d{0,9}))?\}", pattern):
        product = min(product * max(int(high or low), 1), MAX_PATTERN_WORK + 1)
    return product


def _listed(node: dict[str, Any]) -> list[CoreSchema]:
    """`enum` and `const`, compared as JSON: 1 is 1.0 and is not true."""
    return [_one_of(values) for values in (node.get("enum"), [node["const"]] if "const" in node else None) if values]


def _one_of(values: list[Any]) -> CoreSchema:
    allowed = {_key(value) for value in values}
    shown = ", ".join(json.dumps(value, ensure_ascii=False)[:100] for value in values[:MAX_SHOWN])
    more = f", ... ({len(values)} in all)" if len(values) > MAX_SHOWN else ""

    def check(value: Any) -> Any:
        if _key(value) not in allowed:
            raise PydanticCustomError("enum", "Allowed are: {allowed}", {"allowed": shown + more})
        return value

    return core_schema.no_info_plain_validator_function(check)


def _unique(items: list[Any]) -> list[Any]:
    if len({_key(item) for item in items}) < len(items):
        raise PydanticCustomError("unique", "Items should be unique")
    return items


def _key(value: Any) -> Any:
    """Hashable, and equal for equal JSON."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(_key(item) for item in value)
    return _kind(value), value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (int | float, "number"), (dict, "object"), (list, "array"))
    return next((kind for python, kind in kinds if isinstance(value, python)), "other")


def _of_size(made: CoreSchema, least: int, most: int | None) -> CoreSchema:
    if not least and most is None:
        return made

    def check(value: dict[str, Any]) -> dict[str, Any]:
        if len(value) < least or (most is not None and len(value) > most):
            facts = {"least": least, "most": "any number of" if most is None else most}
            raise PydanticCustomError("size", "Between {least} and {most} properties are allowed", facts)
        return value

    return core_schema.no_info_after_validator_function(check, made)


def _same(value: Any) -> Any:
    return value


def _refuse(_: Any) -> Any:
    raise PydanticCustomError("never", "No value is allowed here")


_LABELS = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "typed-dict": "object",
           "list": "array", "none": "null"}  # fmt: skip


def _label(schema: Any) -> str:
    """What a choice is called in a message."""
    kind = (schema["schema"] if schema["type"].startswith("function-") and "schema" in schema else schema)["type"]
    return _LABELS.get(kind, "value")
