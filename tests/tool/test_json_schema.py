"""Foreign JSON Schemas become models; `jsonschema`, which litellm brings along, says what a schema accepts."""

from __future__ import annotations

import json
import string
import subprocess
import sys
import warnings
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ohsandbox.errors import ToolArgumentsError
from ohsandbox.schema import Action, Observation
from ohsandbox.tool import ToolDefinition
from ohsandbox.tools import CmdRunAction, FileReadAction

Json = Any

NAMES = st.sampled_from(
    [
        "a",
        "b",
        "class",
        "from",
        "schema",
        "model_config",
        "_x",
        "__y",
        "é",
        "a b",
        "a-b",
        "a_b",
        "arg_a_b",
        "copy",
        "1",
        "$",
    ]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(alphabet=string.ascii_letters + "0é\n", max_size=6),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(NAMES, part, max_size=3), max_leaves=6
)
COUNT = st.integers(0, 3)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _both(first: st.SearchStrategy[Any], second: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda one, other: {**one, **other}, first, second)


def _leaves() -> st.SearchStrategy[Any]:
    limits = _some(
        minimum=st.integers(-5, 5), exclusiveMaximum=st.integers(0, 99), multipleOf=st.sampled_from([1, 2, 0.5])
    )
    texts = _some(
        minLength=COUNT,
        maxLength=COUNT,
        format=st.just("date-time"),
        pattern=st.sampled_from(["^a", "[0-9]$", "(?!x)", r"^\w*$", r"\D"]),
    )
    types = st.sampled_from(
        ["string", "integer", "number", "boolean", "null", ["string", "null"], ["integer", "boolean"]]
    )
    return st.one_of(
        st.booleans(),
        st.just({}),
        _both(st.fixed_dictionaries({"type": types}), _both(limits, texts)),
        _both(limits, texts),
        st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=4)}),
        st.fixed_dictionaries({"const": VALUES}),
        st.just({"$ref": "#/$defs/shared"}),
        st.just({"$ref": "#/$defs/tree"}),
        st.just({"$ref": "https://example.org/elsewhere.json"}),
    )


def _branches(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(part, min_size=1, max_size=3)
    return st.one_of(
        _both(
            st.just({"type": "array"}),
            _some(items=part, minItems=COUNT, maxItems=COUNT, uniqueItems=st.booleans(), prefixItems=parts),
        ),
        _objects(part),
        *(
            st.fixed_dictionaries({kind: parts}, optional={"type": st.just("object")})
            for kind in ("anyOf", "oneOf", "allOf")
        ),
        st.fixed_dictionaries({"not": part}),
        st.fixed_dictionaries({"if": part, "then": part}),
    )


def _objects(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _both(
        st.just({"type": "object"}),
        _some(
            properties=st.dictionaries(NAMES, part, max_size=4),
            required=st.lists(NAMES, max_size=2, unique=True),
            additionalProperties=part,
            patternProperties=st.just({"^a": {}}),
            maxProperties=COUNT,
            description=st.just("What it is."),
        ),
    )


SCHEMAS = st.recursive(_leaves(), _branches, max_leaves=5)
SHARED = {
    "shared": {"type": "integer", "minimum": 0},
    "tree": {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": "boolean"}}},
}
ROOTS = _objects(SCHEMAS).map(lambda root: {**root, "$defs": SHARED})


def fitting(draw: st.DrawFn, schema: Json, *, depth: int = 0) -> Json:  # noqa: PLR0911 - one a kind
    """A value made for the schema, as far as one branch at a time shows the way; the reference decides if it fits."""
    if not isinstance(schema, dict) or depth > 4:
        return draw(VALUES)
    if "$ref" in schema:
        return fitting(draw, SHARED.get(schema["$ref"].rsplit("/", 1)[-1], {}), depth=depth + 1)
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from([schema["const"]] if "const" in schema else schema["enum"]))
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return fitting(draw, draw(st.sampled_from(schema[choice])), depth=depth + 1)
    kind: Any = schema.get("type")
    kind = draw(st.sampled_from(kind)) if isinstance(kind, list) else kind
    if kind == "object":
        return fitting_object(draw, schema, depth=depth)
    if kind == "array":
        length = draw(st.integers(schema.get("minItems", 0), max(schema.get("maxItems", 3), schema.get("minItems", 0))))
        return [fitting(draw, schema.get("items", {}), depth=depth + 1) for _ in range(length)]
    return draw(OF_TYPE.get(kind, VALUES))


def fitting_object(draw: st.DrawFn, schema: Json, *, depth: int = 0) -> dict[str, Json]:
    properties = schema.get("properties", {})
    chosen = draw(st.sets(st.sampled_from(sorted(properties)))) if properties else set()
    names = chosen.union(schema.get("required", []))
    value = {name: fitting(draw, properties.get(name, {}), depth=depth + 1) for name in sorted(names)}
    if draw(st.booleans()):
        value.setdefault(draw(NAMES), fitting(draw, schema.get("additionalProperties", {}), depth=depth + 1))
    return value


OF_TYPE = {
    "string": st.text(alphabet="ab0é\n", max_size=3),
    "integer": st.integers(-6, 100) | st.just(2.0),
    "number": st.integers(-6, 100) | st.sampled_from([0.5, 1.5, 2.0]),
    "boolean": st.booleans(),
    "null": st.none(),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Json, Json]:
    """A schema and a value that it accepts."""
    schema = draw(ROOTS)
    value = fitting_object(draw, schema)
    assume(accepts(schema, value))
    return schema, value


def accepts(schema: Json, value: Json) -> bool:
    """What the reference implementation says; a reference to elsewhere refuses nothing."""
    elsewhere = '"$ref": "https://example.org/elsewhere.json"'
    local = json.loads(json.dumps(schema).replace(elsewhere, '"title": "elsewhere"'))
    return bool(jsonschema.Draft202012Validator(local).is_valid(value))


def passed(model: type[Action], value: Json) -> Json:
    return model.model_validate(value).to_arguments()


@pytest.mark.slow
@given(case=cases())
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_what_the_schema_accepts_the_model_accepts_and_gives_back(case: tuple[Json, Json]) -> None:
    schema, value = case
    model = Action.from_mcp_schema("Any", schema)
    assert same(passed(model, value), value)
    again = Action.from_mcp_schema("Again", model.model_json_schema())
    assert same(passed(again, value), value)
    assert again.model_json_schema() == model.model_json_schema()


def same(one: Json, other: Json) -> bool:
    """Equal as JSON: 1 is 1.0 and is not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def only(schema: Json, *, name: str = "x") -> type[Action]:
    """A model with one property."""
    return Action.from_mcp_schema("Only", {"type": "object", "properties": {name: schema}})


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "string"}, 5),
        ({"type": "string", "minLength": 2}, "a"),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "string", "pattern": "^a+$"}, "ab"),
        ({"type": "integer"}, 1.5),
        ({"type": "integer"}, True),
        ({"type": "number", "minimum": 3}, 2),
        ({"type": "number", "exclusiveMaximum": 3}, 3.0),
        ({"type": "number", "multipleOf": 0.1}, 0.25),
        ({"type": "boolean"}, 1),
        ({"type": "null"}, 0),
        ({"type": ["string", "null"]}, 5),
        ({"enum": ["a", 1]}, True),
        ({"const": {"a": [1]}}, {"a": [2]}),
        ({"type": "array", "items": {"type": "string"}}, [1]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, []),
        ({"type": "array", "uniqueItems": True}, [{"a": 1}, {"a": 1.0}]),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, []),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, 1),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3),
        ({"minimum": 1}, 0),
        ({"type": "object", "required": ["a b"]}, {}),
        ({"type": "object", "properties": {"class": {"type": "integer"}}}, {"class": "x"}),
        ({"type": "object", "additionalProperties": False}, {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "x"}),
        ({"type": "object", "maxProperties": 1}, {"a": 1, "b": 2}),
        ({"$ref": "#/properties/x/$defs/n", "$defs": {"n": {"type": "integer"}}}, "x"),
        (False, 1),
    ],
)
def test_what_the_schema_forbids_is_refused(schema: Json, wrong: Json) -> None:
    assert not accepts({"properties": {"x": schema}}, {"x": wrong})
    with pytest.raises(ValidationError):
        only(schema).model_validate({"x": wrong})


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        ({"type": "string", "pattern": r"^\w\b$"}, "é", "e"),  # ECMA 262: ASCII
        ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, 3, 3.5),  # draft 4
        ({"type": "string", "nullable": True}, 5, None),  # OpenAPI
    ],
)
def test_other_dialects_are_understood(schema: Json, wrong: Json, right: Json) -> None:
    assert passed(only(schema), {"x": right}) == {"x": right}
    with pytest.raises(ValidationError):
        only(schema).model_validate({"x": wrong})


def test_recursive_definitions_are_checked_at_every_level() -> None:
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/definitions/node"}}}
    model = Action.from_mcp_schema("List", {"$ref": "#/definitions/node", "definitions": {"node": node}})
    assert passed(model, {"value": 1, "next": {"next": {"value": 3}}}) == {"value": 1, "next": {"next": {"value": 3}}}
    with pytest.raises(ValidationError, match=r"next\.next\.value"):
        model.model_validate({"next": {"next": {"value": "three"}}})


@pytest.mark.parametrize(
    "root",
    [True, False, {}, None, [], "x", {"type": "string"}, {"type": "bogus"}, {"properties": [1], "required": "x"},
     {"properties": {"a": "bogus"}, "required": [None]}, {"$ref": "https://example.org/x.json"}, {"$ref": "#/nowhere"},
     {"$ref": "#"}, {"anyOf": []}, {"patternProperties": {"(": 1}},
     {"properties": {"a": {"pattern": "(["}, "b": {"type": "string", "pattern": 5}}},
     {"type": "object", "maximum": "x", "enum": 3}],
)  # fmt: skip
def test_malformed_schema_takes_any_arguments(root: Json) -> None:
    model = Action.from_mcp_schema("Odd", root)
    assert passed(model, {"a": 1, "schema": [2]}) == {"a": 1, "schema": [2]}
    assert model.to_mcp_schema()["type"] == "object"


def test_only_what_was_given_goes_out_and_null_for_an_optional_argument_is_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 4},
                                               "c": {"type": ["string", "null"]}}}  # fmt: skip
    action = Action.from_mcp_schema("Given", schema).model_validate({"a": None, "c": None})
    assert action.to_arguments() == {"c": None}
    assert action.b == 4  # type: ignore[attr-defined]


def test_numbers_booleans_and_json_texts_are_mended_as_in_every_tool() -> None:
    properties = {
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "number"}},
    }
    tool = tool_of({"type": "object", "properties": properties})
    action = tool.action_from_arguments({"n": "5", "b": "true", "l": "[1, 2.5]"})
    assert action.to_arguments() == {"n": 5, "b": True, "l": [1, 2.5]}


def tool_of(schema: Json) -> ToolDefinition[Action, Observation]:
    return ToolDefinition(name="t", description="T.", action_type=Action.from_mcp_schema("T", schema))


def test_wrong_argument_is_named_by_its_own_name() -> None:
    schema = {"type": "object", "properties": {"model_config": {"type": "integer"}}, "required": ["model_config"]}
    with pytest.raises(
        ToolArgumentsError, match=r"'model_config' in tool call t.*Allowed arguments are: model_config, security_risk\."
    ):
        tool_of(schema).action_from_arguments({"model_config": "x"})


def test_choices_at_the_root_are_offered_as_one_object() -> None:
    branch = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    other = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    offered = Action.from_mcp_schema("Choice", {"oneOf": [branch, other]}).to_mcp_schema()
    assert offered["properties"] == {"a": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "b": {"type": "string"}}
    assert (offered["type"], offered["required"]) == ("object", ["a"])
    assert "oneOf" not in offered


@pytest.mark.parametrize("kind", ["anyOf", "oneOf"])
@pytest.mark.parametrize("branches", [[{"type": "string"}], [False], [False, {"type": ["null"]}]])
def test_choices_at_the_root_none_of_which_is_an_object_take_any_arguments(kind: str, branches: list[Json]) -> None:
    model = Action.from_mcp_schema("t", {"type": "object", kind: branches})
    assert passed(model, {"a": 1}) == {"a": 1}


def test_a_default_of_another_type_is_stored_without_a_word() -> None:
    model = Action.from_mcp_schema("t", {"type": "object", "properties": {"a": {"type": "string", "default": 3}}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (model().model_dump(), model().model_dump_json()) == ({"a": 3}, '{"a":3}')


def test_model_has_the_names_descriptions_and_hints_of_the_schema() -> None:
    url = {"type": "string", "format": "uri", "description": "Where."}
    schema = {"type": "object", "description": "Fetch.", "properties": {"url": url}, "required": ["url"]}
    model = Action.from_mcp_schema("fetch-url", schema)
    field = model.model_fields["url"]
    assert (model.__name__, model.__doc__, field.annotation, field.description) == ("FetchUrl", "Fetch.", str, "Where.")
    assert field.is_required()
    assert model.to_mcp_schema()["properties"]["url"]["format"] == "uri"


TAKEN = "schema model_config class from _x __y json dict copy validate construct visualize is_error to_llm_content "
TAKEN += "to_arguments droppable source_schema definitions self cls __class__ __init__ __pydantic_extra__ model_fields"


def test_any_name_can_be_that_of_an_argument() -> None:
    names = [*TAKEN.split(), "é", "a b", "a-b", "a_b", "", "1", "None", "x" * 300, "\n", "security_risk"]
    model = Action.from_mcp_schema("Names", {"properties": {name: {"type": "integer"} for name in names}})
    assert passed(model, dict.fromkeys(names, 1)) == dict.fromkeys(names, 1)
    for name in names:
        with pytest.raises(ValidationError):
            model.model_validate({name: "x"})


def test_models_are_made_once() -> None:
    assert only({"type": "string"}) is only({"type": "string"})
    assert only({"type": "string"}) is not only({"type": "integer"})
    assert issubclass(Observation.from_mcp_schema("Only", {}), Observation)


@pytest.mark.parametrize("native", [CmdRunAction, FileReadAction])
def test_schema_of_a_native_action_makes_an_action_that_takes_the_same(native: type[Action]) -> None:
    foreign = Action.from_mcp_schema(native.__name__, native.model_json_schema())
    arguments = {"command": "ls", "timeout": 5.0} if native is CmdRunAction else {"path": "a", "view_range": [1, 2]}
    assert passed(foreign, arguments) == native.model_validate(arguments).model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ValidationError):
        foreign.model_validate({**arguments, "nonsense": 1})


# --- hostile schemas ----------------------------------------------------------------------------------


def nested(levels: int, *, inside: str) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}} if inside == "properties" else {inside: [schema]}
    return schema


def doubling(keyword: str) -> Json:
    """Sixty definitions, each of which leads to the next one twice."""
    return leading_to({f"d{i}": _twice(keyword, ref(f"d{i + 1}")) for i in range(60)})


def _twice(keyword: str, part: Json) -> Json:
    return (
        {"type": "object", "properties": {"l": part, "r": part}} if keyword == "properties" else {keyword: [part, part]}
    )


def doubling_to_an_end(keyword: str) -> Json:
    definitions = {f"d{i}": _twice(keyword, ref(f"d{i + 1}")) for i in range(40)}
    return leading_to({**definitions, "d40": {"type": "object"}})


def leading_to(definitions: dict[str, Json]) -> Json:
    """A property that starts at the first of the definitions."""
    return {"properties": {"a": ref(next(iter(definitions)))}, "$defs": definitions}


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


TEN_THOUSAND = {f"p{i}": {"type": "integer"} for i in range(10_000)}
MANY = {"type": "object", "additionalProperties": False, "properties": TEN_THOUSAND}
HOSTILE = {
    "ten thousand properties": MANY,
    "ten thousand levels of objects": nested(10_000, inside="properties"),
    "ten thousand levels of choices": {"type": "object", "properties": {"a": nested(10_000, inside="anyOf")}},
    "a circle of references": leading_to({"a": ref("b"), "b": ref("a")}),
    "a circle through allOf": leading_to({"a": {"allOf": [ref("a")]}}),
    "references that double as properties": doubling("properties"),
    "references that double as choices": doubling("anyOf"),
    "references that double as demands": doubling("allOf"),
    "references that double as choices, to an end": doubling_to_an_end("anyOf"),
    "references that double as demands, to an end": doubling_to_an_end("allOf"),
    "levels that add a choice and a demand each": leading_to(
        {f"d{i}": {"nullable": True, "minLength": 1, "anyOf": [{"items": ref(f"d{i + 1}")}]} for i in range(80)}
    ),
    "a long way of references": leading_to({f"d{i}": {"items": ref(f"d{i + 1}")} for i in range(3_000)}),
    "a long and deep way": leading_to({f"d{i}": {"items": {"items": {"items": ref(f"d{i + 1}")}}} for i in range(900)}),
    "an enormous enum": {"properties": {"a": {"enum": list(range(200_000))}}},
    "enormous texts": {"properties": {f"p{i}": {"description": "x" * 100_000} for i in range(100)}},
    "patterns to compile": {"properties": {f"p{i}": {"pattern": f"[^a]{{900}}{i}"} for i in range(3_000)}},
    "a pattern that backtracks": {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
    "numbers beyond all bounds": {"properties": {"a": {"type": "integer", "minimum": -(10**400), "maxItems": 10**400}}},
    "numbers that cannot be written": {"properties": {"a": {"maximum": 10**5000, "enum": [10**5000]}}},
    "no numbers": {"properties": {"a": {"minimum": float("nan"), "default": float("inf"), "maximum": "5"}}},
    "what is no JSON": {"properties": {"a": {"default": {1, 2}, "enum": [object()]}, 5: {}}},
    "lone surrogates": {"properties": {"a": {"description": "\ud800"}, "\udfff": {}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_costs_little_and_stays_usable(name: str) -> None:
    model = Action.from_mcp_schema("Hostile", HOSTILE[name])
    offered = json.dumps(model.to_mcp_schema())
    assert len(offered) < 400_000
    assert "$ref" not in offered
    assert passed(model, {"z": 1}) == {"z": 1}
    probes: list[Json] = ["a" * 50_000 + "b", 1, {"l": {"r": {}}}, [[[]]]]
    for value in probes:
        try:
            passed(model, {"a": value})
        except ValidationError as error:
            assert error.error_count() < 10_000  # noqa: PT017 - some may be refused; all come to an end


def test_properties_past_the_bound_are_not_checked_and_not_refused() -> None:
    model = Action.from_mcp_schema("Many", MANY)
    assert passed(model, {"p1": 1, "p9999": "x"}) == {"p1": 1, "p9999": "x"}
    with pytest.raises(ValidationError):
        model.model_validate({"p1": "x"})


def test_arguments_are_checked_though_there_are_too_many_definitions() -> None:
    definitions = {f"d{i}": {"type": "object", "properties": {"a": {"type": "string"}}} for i in range(5_000)}
    model = Action.from_mcp_schema("Big", {"$defs": definitions, "properties": {"n": {"type": "integer"}}})
    with pytest.raises(ValidationError):
        model.model_validate({"n": "x"})


def test_data_that_doubles_the_work_at_every_level_comes_to_an_end() -> None:
    branch = {"type": "object", "properties": {"p": {"$ref": "#/$defs/t"}}}
    tree = {"anyOf": [{**branch, "required": ["y"]}, {**branch, "required": ["z"]}]}
    tool = tool_of({"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": tree}})
    value: Json = {}
    for _ in range(60):
        value = {"p": value}
    with pytest.raises(ToolArgumentsError) as caught:
        tool.action_from_arguments({"a": value})
    assert len(str(caught.value)) < 2_500


def test_arguments_that_nest_too_deep_are_refused() -> None:
    value: Json = []
    for _ in range(5_000):
        value = [value]
    with pytest.raises(ToolArgumentsError, match="nests more than 100"):
        tool_of({}).action_from_arguments({"a": value})
    with pytest.raises(ToolArgumentsError, match="surrogate"):
        tool_of({}).action_from_arguments({"a": {"b": ["\ud800"]}})


def test_circle_of_demands_demands_nothing() -> None:
    model = Action.from_mcp_schema("Circle", leading_to({"a": {"allOf": [ref("a")]}}))
    assert passed(model, {"a": 1}) == {"a": 1}


def test_enum_that_is_too_long_leaves_its_type_and_its_neighbours() -> None:
    properties = {"a": {"type": "integer", "enum": list(range(100_000))}, "b": {"type": "integer"}}
    model = Action.from_mcp_schema("Long", {"properties": properties})
    assert passed(model, {"a": -1}) == {"a": -1}
    for name in properties:
        with pytest.raises(ValidationError):
            model.model_validate({name: "x"})


def test_names_by_pattern_are_no_unknown_names() -> None:
    model = only({"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False})
    assert passed(model, {"x": {"x-y": 1}}) == {"x": {"x-y": 1}}


def test_names_that_look_like_numbers_are_told_apart_from_places_in_a_list() -> None:
    model = Action.from_mcp_schema(
        "Numbered", {"properties": {name: {"type": "integer"} for name in ("01", "7", "+2")}}
    )
    assert passed(model, {"01": "5", "7": 2.0, "+2": "3"}) == {"01": 5, "7": 2, "+2": 3}
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"01": "x"})
    assert caught.value.errors()[0]["loc"] == ("01",)


def test_one_of_several_types_is_told_in_one_sentence() -> None:
    tool = tool_of({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}}})
    with pytest.raises(ToolArgumentsError, match=r"'a' in tool call t: \[\]\. .*of type string or integer or null\."):
        tool.action_from_arguments({"a": []})
    assert tool.action_from_arguments({"a": "5"}).to_arguments() == {"a": "5"}


def test_integer_that_comes_with_a_point_goes_out_without() -> None:
    assert repr(passed(only({"type": "integer"}), {"x": 2.0})) == "{'x': 2}"
    assert repr(passed(only({"type": "number"}), {"x": 2.0})) == "{'x': 2.0}"


def test_ten_thousand_faults_are_told_by_the_argument() -> None:
    model = only({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}})
    with pytest.raises(ValidationError, match="does not fit the schema of this argument") as caught:
        model.model_validate({"x": [[]] * 30_000})
    assert caught.value.errors()[0]["loc"] == ("x",)


def test_deep_schemas_are_checked_on_the_smallest_stack() -> None:
    """256 KiB: half of what macOS gives a thread."""
    program = (
        "import threading\n"
        "from ohsandbox.schema import Action\n"
        "def level(inner): return {'type': 'object', 'properties': {'a': inner}, 'nullable': True, 'allOf': [inner]}\n"
        "schema = {'type': 'string'}\n"
        "for _ in range(7): schema = level(schema)\n"
        "for _ in range(90): schema = {'properties': {'a': schema}}\n"
        "value = {}\n"
        "for _ in range(90): value = {'a': value}\n"
        "work = lambda: print(Action.from_mcp_schema('Deep', schema).model_validate(value).to_arguments() == value)\n"
        "threading.stack_size(256 * 1024)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
