from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import Field, ValidationError, model_validator

from ohsandbox.errors import ToolArgumentsError, ToolError, UsageError
from ohsandbox.schema import Action, Observation, TextObservation
from ohsandbox.schema.execution import parse_action
from ohsandbox.state import ConversationState
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, ToolExecutor, take_security_risk

if TYPE_CHECKING:
    from collections.abc import Sequence


class Part(Action):
    name: str
    parts: list[Part] = Field(default_factory=list)


class PourAction(Action):
    """Not for the model."""

    cups: int = Field(gt=0, le=4, description="How many.")
    hot: bool = False
    strength: float | None = None
    extras: list[str] = Field(default_factory=list)


class TripAction(Action):
    range: tuple[int, int] | None = None
    stops: list[str] = Field(default=["home"], min_length=1)
    seats: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _not_turned_round(self) -> TripAction:
        if self.range and self.range[0] > self.range[1]:
            raise ValueError("The range is turned round.")
        return self


class Pour(ToolExecutor[PourAction, TextObservation]):
    def __call__(self, action: PourAction) -> TextObservation:
        return TextObservation(text=f"{action.cups} {action.hot} {action.extras}")


def pour(**fields: Any) -> ToolDefinition[PourAction, TextObservation]:
    return ToolDefinition(**{"name": "pour", "description": "Pour tea.", "action_type": PourAction, **fields})


def test_definition_can_be_made_directly_and_called() -> None:
    tool = pour(executor=Pour(), observation_type=TextObservation)
    assert tool(tool.action_from_arguments({"cups": 2})).text == "2 False []"


def test_hint_says_what_the_annotations_say_and_a_tool_without_any_writes() -> None:
    assert pour().call_hint({}) == CallHint(writes=True)
    assert not pour(annotations=ToolAnnotations.reading("Look")).call_hint({}).writes
    assert pour(annotations=ToolAnnotations(destructiveHint=True)).call_hint({}).destructive
    assert not pour(annotations=ToolAnnotations()).call_hint({}).destructive


def test_hint_may_depend_on_the_arguments_and_a_reading_tool_never_writes() -> None:
    by_cups = pour(hint=lambda arguments: CallHint(sign="+", note=f"({arguments['cups']})"))
    assert by_cups.call_hint({"cups": 2}) == CallHint(sign="+", note="(2)")
    reads = pour(hint=CallHint(writes=True), annotations=ToolAnnotations.reading("Look"))
    assert not reads.call_hint({}).writes


def test_definition_can_be_subclassed_with_create() -> None:
    class PourTool(ToolDefinition[PourAction, TextObservation]):
        @classmethod
        def create(cls, *, conv_state: ConversationState, name: str = "pour") -> Sequence[PourTool]:
            return [cls(name=name, description=conv_state.conversation_id, action_type=PourAction, executor=Pour())]

    [tool] = PourTool.create(conv_state=ConversationState(conversation_id="c"), name="tea")
    assert (tool.name, tool.description) == ("tea", "c")


def test_plain_definition_has_nothing_to_create() -> None:
    with pytest.raises(UsageError, match="no create"):
        ToolDefinition.create(conv_state=ConversationState(conversation_id="c"))


def test_numbers_booleans_and_lists_may_come_as_text() -> None:
    action = pour().action_from_arguments({"cups": "3", "hot": "true", "strength": "0.5", "extras": '["milk"]'})
    assert action == PourAction(cups=3, hot=True, strength=0.5, extras=["milk"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, 'Missing required argument "cups" in tool call pour.'),
        ({"cups": 1, "sugar": 2}, "Unexpected argument 'sugar' in tool call pour."),
        (
            {"cups": 9},
            "Invalid value for argument 'cups' in tool call pour: 9. Input should be less than or equal to 4.",
        ),
        ({"cups": 1, "extras": "[1"}, "argument 'extras' in tool call pour: '[1'"),
        ({"cups": 1, "extras": ["ok", 5]}, "argument 'extras.1' in tool call pour: 5"),
        ({"cups": "x" * 5000}, "(5002 characters)"),
        ({"cups": 1, "extras": 5}, "argument 'extras' in tool call pour: 5. A list is needed."),
    ],
)
def test_wrong_argument_is_named_with_what_was_given_and_what_is_allowed(arguments: Any, message: str) -> None:
    with pytest.raises(ToolArgumentsError, match=re.escape(message)) as caught:
        pour().action_from_arguments(arguments)
    assert "Allowed arguments are: cups, hot, strength, extras, security_risk." in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"range": [1]}, "argument 'range.1' in tool call trip: [1]. An item is missing."),
        ({"range": [1, 2, 3]}, "argument 'range' in tool call trip: [1, 2, 3]. At most 2 items are needed, not 3."),
        ({"range": [2, 1]}, "Invalid value for the arguments in tool call trip. The range is turned round."),
        ({"stops": "a"}, "argument 'stops' in tool call trip: 'a'. A list is needed."),
        ({"stops": []}, "argument 'stops' in tool call trip: []. At least 1 items are needed, not 0."),
        ({"seats": [1]}, "argument 'seats' in tool call trip: [1]. An object is needed."),
    ],
)
def test_wrong_shape_is_told_in_the_words_of_json(arguments: Any, message: str) -> None:
    with pytest.raises(ToolArgumentsError, match=re.escape(message)):
        parse_action("trip", TripAction, arguments)


class Nested(Action):
    parts: dict[str, PourAction] = Field(default_factory=dict)
    sizes: tuple[float, ...] = ()
    any: Any = None
    either: bool | int = 0


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"sizes": [1, True]}, "'sizes.1' in tool call n: True. A number is needed."),
        ({"sizes": "[false]"}, "'sizes.0' in tool call n: False. A number is needed."),
        ({"parts": {"a": {"cups": True}}}, "'parts.a.cups' in tool call n: True. A number is needed."),
    ],
)
def test_boolean_is_no_number_at_any_depth(arguments: Any, place: str) -> None:
    with pytest.raises(ToolArgumentsError, match=re.escape(place)):
        parse_action("n", Nested, arguments)


def test_boolean_stays_where_one_is_allowed() -> None:
    action = parse_action("n", Nested, {"any": True, "either": True, "parts": {"a": {"cups": 1, "hot": True}}})
    assert (action.any, action.either, action.parts["a"].hot) == (True, True, True)
    with pytest.raises(ValidationError, match="A number is needed"):
        PourAction(cups=True)


@pytest.mark.parametrize(("given", "risk"), [("LOW", "LOW"), ("high", "HIGH"), ("UNKNOWN", "UNKNOWN"), (None, None)])
def test_security_risk_is_taken_out(given: Any, risk: Any) -> None:
    assert take_security_risk("pour", {"cups": 1, "security_risk": given}) == ({"cups": 1}, risk)


def test_security_risk_is_checked_and_never_reaches_the_action() -> None:
    assert pour().action_from_arguments({"cups": 1, "security_risk": "LOW"}) == PourAction(cups=1)
    with pytest.raises(ToolArgumentsError, match="Allowed are: LOW, MEDIUM, HIGH"):
        pour().action_from_arguments({"cups": 1, "security_risk": "EXTREME"})


def test_security_risk_is_offered_unless_the_tool_only_reads() -> None:
    def offered(annotations: ToolAnnotations | None) -> bool:
        schema = pour(annotations=annotations).to_openai_tool()["function"]["parameters"]
        assert "security_risk" not in schema["required"]
        return "security_risk" in schema["properties"]

    assert offered(None)
    assert offered(ToolAnnotations())
    assert not offered(ToolAnnotations(readOnlyHint=True))


def test_security_risk_is_the_first_argument_and_has_three_levels() -> None:
    properties = pour().to_openai_tool()["function"]["parameters"]["properties"]
    assert list(properties)[:2] == ["security_risk", "cups"]
    assert properties["security_risk"]["enum"] == ["LOW", "MEDIUM", "HIGH"]


@pytest.mark.parametrize("name", ["", "a b", "tea.pot", "x" * 65, "tea\n"])
def test_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        pour(name=name)


def test_interrupt_and_close_reach_the_executor() -> None:
    heard: list[str] = []

    class Slow(Pour):
        def interrupt(self) -> None:
            heard.append("interrupt")

        def close(self) -> None:
            heard.append("close")

    for tool in (pour(executor=Slow()), pour(executor=Pour()), pour()):
        tool.interrupt()
        tool.close()
    assert heard == ["interrupt", "close"]


def test_tool_with_a_security_risk_of_its_own_keeps_it() -> None:
    class Own(Action):
        security_risk: str

    tool: ToolDefinition[Own, Observation] = ToolDefinition(name="own", description="Own.", action_type=Own)
    assert tool.action_from_arguments({"security_risk": "any"}).security_risk == "any"


def test_schema_is_plain() -> None:
    schema = pour(annotations=ToolAnnotations(readOnlyHint=True)).to_openai_tool()["function"]["parameters"]
    assert schema == {
        "type": "object",
        "properties": {
            "cups": {"type": "integer", "exclusiveMinimum": 0, "maximum": 4, "description": "How many."},
            "hot": {"type": "boolean", "default": False},
            "strength": {"type": "number"},
            "extras": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["cups"],
        "additionalProperties": False,
    }


def test_recursive_schema_has_an_end() -> None:
    tool: ToolDefinition[Part, Observation] = ToolDefinition(name="part", description="Part.", action_type=Part)
    assert "$ref" not in str(tool.to_openai_tool())


def test_mcp_shape_has_input_output_and_hints() -> None:
    tool = pour(observation_type=TextObservation, annotations=ToolAnnotations(title="Tea")).to_mcp_tool()
    assert set(tool) == {"name", "description", "inputSchema", "outputSchema", "annotations"}
    assert tool["annotations"]["destructiveHint"] is True
    assert "security_risk" not in tool["inputSchema"]["properties"]


def test_tool_without_executor_cannot_be_called() -> None:
    with pytest.raises(ToolError, match="no executor"):
        pour()(PourAction(cups=1))


def test_wrong_action_and_wrong_observation_are_refused() -> None:
    class Wrong(ToolExecutor[PourAction, Any]):
        def __call__(self, action: PourAction) -> Any:
            return action.cups

    with pytest.raises(ToolError, match="takes a PourAction, not a Part"):
        pour(executor=Pour())(Part(name="x"))  # type: ignore[arg-type]
    with pytest.raises(ToolError, match="returned a int"):
        pour(executor=Wrong())(PourAction(cups=1))


def test_definition_is_frozen_and_can_get_another_executor() -> None:
    tool = pour()
    with pytest.raises(AttributeError):
        tool.name = "x"  # type: ignore[misc]
    assert tool.with_executor(Pour())(PourAction(cups=1)).text == "1 False []"
