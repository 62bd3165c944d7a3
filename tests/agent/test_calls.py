"""From what a model wrote to actions: what is understood, and what the model is told where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from ohsandbox.agent.calls import (
    RISK_LEVELS,
    SECURITY_RISK_DESC,
    ActionEvent,
    ActionSecurityRisk,
    FunctionCallNotExistsError,
    FunctionCallValidationError,
    MessageAction,
    ToolCallMetadata,
    combine_thought,
    find_tool,
    response_to_actions,
    set_security_risk,
)
from ohsandbox.agent.parsing import MAX_ARGUMENTS_CHARS, parse_arguments
from ohsandbox.llm import ChatMessage, ChatResponse, Choice, FunctionCall, ToolCall
from ohsandbox.schema import Action
from ohsandbox.tool import ToolAnnotations, ToolDefinition
from tests.fakes import answer, call


class PourAction(Action):
    cups: int
    hot: bool = False
    sugar: float = 0.5
    note: str | None = None
    kinds: tuple[str, ...] = ()


class LookAction(Action):
    where: str = "here"


def tool(name: str, action: type[Action] = LookAction, **fields: Any) -> ToolDefinition[Any, Any]:
    return ToolDefinition(name=name, description="x", action_type=action, **fields)


TOOLS = {
    made.name: made
    for made in (
        tool("pour_tea", PourAction, aliases=("TeaTool",)),
        tool("look", annotations=ToolAnnotations(readOnlyHint=True)),
        tool("read_file"),
        tool("read-file"),
    )
}


def one(name: str | None, arguments: Any = None, **fields: Any) -> ActionEvent:
    [event] = response_to_actions(answer("", call(name, arguments), **fields), TOOLS)
    return event


def poured(arguments: Any) -> Any:
    event = one("pour_tea", arguments)
    assert event.refusal is None, event.refusal
    return event.action


def test_no_call_is_a_message_that_waits_for_the_user() -> None:
    [event] = response_to_actions(answer("Done.", id="r1", finish_reason="stop"), TOOLS)
    assert event.action == MessageAction(content="Done.", wait_for_response=True)
    assert (event.metadata, event.refusal) == (None, None)
    assert event.event.type == "assistant_message"
    assert event.event.data["content"] == "Done."
    assert (event.event.data["response_id"], event.event.data["cost_usd"]) == ("r1", 0.25)


def test_no_call_and_no_text_is_an_empty_message() -> None:
    [event] = response_to_actions(answer(""), TOOLS)
    assert event.action == MessageAction(content="")


@pytest.mark.parametrize("count", [0, 2])
def test_a_response_has_exactly_one_choice(count: int) -> None:
    choices = [Choice(message=ChatMessage())] * count
    with pytest.raises(ValidationError):
        ChatResponse(id="r", model="m", choices=choices)


def test_each_call_knows_its_place_and_the_thought_stands_on_the_first() -> None:
    calls = [call("look", call_id="a"), call("nope", call_id="b"), call("look", call_id="c")]
    response = answer("Because.", *calls, id="r1")
    planned = response_to_actions(response, TOOLS)
    assert [event.metadata for event in planned] == [
        ToolCallMetadata("a", "look", "r1", 0, 3, response),
        ToolCallMetadata("b", "nope", "r1", 1, 3, response),
        ToolCallMetadata("c", "look", "r1", 2, 3, response),
    ]
    assert [event.thought for event in planned] == ["Because.", "", ""]
    assert ["usage" in event.event.data for event in planned] == [True, False, False]
    assert [event.refusal is None for event in planned] == [True, False, True]


def test_ids_that_are_taken_repeated_or_missing_become_fresh() -> None:
    calls = [call("look", call_id=name) for name in ("a", "b", "b", "")]
    ids = [event.tool_call_id for event in response_to_actions(answer("", *calls), TOOLS, taken_ids={"a"})]
    assert ids[1] == "b"
    assert len({*ids, "a"}) == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"cups": "5"}, {"cups": 5}),
        ({"cups": "5.0"}, {"cups": 5}),
        ({"cups": 5.0}, {"cups": 5}),
        ({"cups": 1, "sugar": "1e-1"}, {"cups": 1, "sugar": 0.1}),
        ({"cups": 1, "hot": "True"}, {"cups": 1, "hot": True}),
        ({"cups": 1, "hot": "yes"}, {"cups": 1, "hot": True}),
        ({"cups": 1, "hot": "false"}, {"cups": 1, "hot": False}),
        ({"cups": 1, "hot": 0}, {"cups": 1, "hot": False}),
        ({"cups": 1, "kinds": '["a"]'}, {"cups": 1, "kinds": ("a",)}),
        ({"cups": 1, "hot": None, "sugar": None, "kinds": None, "note": None}, {"cups": 1}),
    ],
)
def test_values_in_another_spelling_are_understood(arguments: Any, expected: dict[str, Any]) -> None:
    assert poured(arguments) == PourAction(**expected)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({}, ['Missing required argument "cups"']),
        ({"cups": None}, ["'cups'", "None"]),
        ({"cups": "many"}, ["'cups'", "'many'", "integer"]),
        ({"cups": 1.5}, ["'cups'", "1.5"]),
        ({"cups": 1, "hot": "warm"}, ["'hot'", "'warm'", "boolean"]),
        ({"cups": 1, "milk": True}, ["Unexpected argument 'milk'", "cups, hot, sugar, note, kinds"]),
        ({"cups": 1, "security_risk": "none"}, ["'security_risk'", "'none'", "LOW, MEDIUM, HIGH"]),
        ({"cups": 1, "note": "\ud800"}, ["'note'", "lone surrogate"]),
    ],
)
def test_a_wrong_value_is_told_with_argument_value_and_what_is_allowed(arguments: Any, facts: list[str]) -> None:
    event = one("pour_tea", arguments)
    assert event.action is None
    assert event.refusal is not None
    assert all(fact in event.refusal for fact in [*facts, "pour_tea"]), event.refusal


@pytest.mark.parametrize("raw", ["", "null", "  \n", "{}"])
def test_no_arguments_are_none_where_none_are_required(raw: str) -> None:
    event = one("look", raw)
    assert event.action == LookAction()
    assert event.arguments == "{}"
    assert one("pour_tea", raw).refusal


WHOLE = '{"cups": 2}'


@pytest.mark.parametrize(
    "raw",
    [
        WHOLE,
        f" {WHOLE}\n",
        json.dumps(WHOLE),
        json.dumps(json.dumps(WHOLE)),
        json.dumps(['{"cu', 'ps": 2}']),
        f"```json\n{WHOLE}\n```",
        f"```\n{WHOLE}```",
        f"{WHOLE}\n```",
        f"{WHOLE}}}",
        f"{WHOLE}</tool_call>",
        f"{WHOLE}<|im_end|>\n",
        f"{WHOLE}{WHOLE}",
        "{}" + WHOLE,
        '{"cups": 2, "cups": 2}',
    ],
)
def test_arguments_with_one_reading_are_read_and_stored_strict(raw: str) -> None:
    event = one("pour_tea", raw)
    assert event.action == PourAction(cups=2)
    assert json.loads(event.event.data["arguments"]) == {"cups": 2}
    assert event.event.data.get("raw_arguments", event.arguments) == raw


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('{"cups": 2', "line 1 column"),
        ('{"cups": 2}{"cups": 3}', "more follows"),
        (WHOLE + "{}", "more follows"),
        (f"{WHOLE} and then some", "more follows"),
        (f"Here: {WHOLE}", "line 1 column"),
        ('{"cups": 2, "cups": 3}', "'cups' stands in it twice"),
        ('{"cups": NaN}', "NaN"),
        ('{"cups": 1e999}', "1e999"),
        ("[]", "not list"),
        ('["a"]', "not str"),
        ('"cups"', "not str"),
        ('"{"', "line 1 column"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 100_000, "nested too deep"),
        ("{" + " " * MAX_ARGUMENTS_CHARS + "}", f"at most {MAX_ARGUMENTS_CHARS}"),
        ('{"cups": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_arguments_with_no_reading_or_two_run_nothing(raw: str, why: str) -> None:
    event = one("pour_tea", raw)
    assert event.action is None
    assert why in (event.refusal or "")
    assert len(event.refusal or "") < 1200
    assert json.loads(event.event.data["arguments"]) is not None


@pytest.mark.parametrize(
    "raw",
    [WHOLE + "<|a|>" * 50_000 + "!", "```\n" + "\n" * 500_000, WHOLE + "}" * 500_000 + "!", "[" + '"",' * 300_000],
)
def test_hostile_arguments_are_refused_without_backtracking(raw: str) -> None:
    assert one("pour_tea", raw).refusal


def test_a_name_without_letters_is_no_tool() -> None:
    with pytest.raises(FunctionCallNotExistsError):
        find_tool({"tool": tool("tool")}, "_")


def test_a_call_that_could_not_be_read_from_text_tells_why() -> None:
    function = FunctionCall(name="look", arguments="<arg", parse_error="Close it.")
    [event] = response_to_actions(answer("", ToolCall(id="a", function=function)), TOOLS)
    assert event.refusal == "Close it."
    assert event.event.data["raw_arguments"] == "<arg"
    assert event.event.data["arguments"] == "{}"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("pour_tea", "pour_tea"),
        ("TeaTool", "pour_tea"),
        ("tea", "pour_tea"),
        ("PourTea", "pour_tea"),
        ("pour-tea", "pour_tea"),
        (" pour_tea\n", "pour_tea"),
        ("functions.pour_tea", "pour_tea"),
        ("functions.pour_tea:0", "pour_tea"),
        ("default_api.pour_tea", "pour_tea"),
        ("pour_tea<|channel|>commentary", "pour_tea"),
        ("read_file", "read_file"),
        ("read-file", "read-file"),
    ],
)
def test_a_name_in_another_spelling_is_the_tool_that_alone_has_it(name: str, found: str) -> None:
    event = one(name, {"cups": 1} if found == "pour_tea" else {})
    assert event.tool is not None
    assert (event.name, event.tool.name, event.refusal) == (found, found, None)
    assert event.event.data.get("raw_name", found) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pour_te", "Did you mean 'pour_tea'?"),
        ("ReadFile", "Did you mean"),
        ("github.look", "Did you mean 'look'?"),
        ("zzz", "Tools you can call: look, pour_tea, read-file, read_file."),
        ("", "Unknown tool: (no name given)."),
        ("x" * 5000, "Unknown tool: xxx"),
    ],
)
def test_a_name_of_no_tool_or_of_two_is_answered_with_the_closest(name: str, hint: str) -> None:
    with pytest.raises(FunctionCallNotExistsError) as caught:
        find_tool(TOOLS, name)
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 400
    assert (
        one(name, {"a": "b" * 500}).refusal
        == f"{caught.value} Nothing ran. You sent: {json.dumps({'a': 'b' * 500})[:200]}..."
    )


@pytest.mark.parametrize(
    ("name", "arguments", "risk"),
    [
        ("pour_tea", {"cups": 1}, ActionSecurityRisk.UNKNOWN),
        ("pour_tea", {"cups": 1, "security_risk": "low"}, ActionSecurityRisk.LOW),
        ("look", {}, None),
        ("look", {"security_risk": "HIGH"}, ActionSecurityRisk.HIGH),
        ("pour_tea", {}, None),
    ],
)
def test_the_risk_is_the_models_word_and_unknown_without_one(
    name: str, arguments: Any, risk: ActionSecurityRisk | None
) -> None:
    event = one(name, arguments)
    assert event.security_risk is risk
    assert event.event.data.get("security_risk") == (risk.value if risk else None)


def test_helpers_of_the_contract() -> None:
    assert RISK_LEVELS == ["LOW", "MEDIUM", "HIGH"]
    assert all(level in SECURITY_RISK_DESC for level in RISK_LEVELS)
    event = one("pour_tea", {"cups": 1})
    assert combine_thought(combine_thought(event, "b"), "a").thought == "a\nb"
    assert set_security_risk(event, {"security_risk": "HIGH"}).security_risk is ActionSecurityRisk.HIGH
    with pytest.raises(FunctionCallValidationError):
        set_security_risk(event, {"security_risk": "EXTREME"})
    with pytest.raises(FunctionCallValidationError):
        parse_arguments("[]")


@pytest.mark.parametrize(
    ("reason", "cut"), [("length", "at the output limit"), ("content_filter", "by the provider's content filter")]
)
def test_of_a_reply_that_was_cut_nothing_runs(reason: str, cut: str) -> None:
    planned = response_to_actions(answer("", call("look"), call("look"), finish_reason=reason), TOOLS)
    assert [f"was cut {cut}" in (event.refusal or "") for event in planned] == [True, True]


def test_of_very_many_calls_the_first_sixteen_run() -> None:
    planned = response_to_actions(answer("", *[call("look")] * 40), TOOLS)
    assert [event.refusal is None for event in planned] == [True] * 16 + [False] * 24


def test_the_log_tells_the_kind_of_a_call_also_where_it_has_none() -> None:
    assert one("pour_tea", {"cups": 1}).event.data["hint"]["kind"] == ""
