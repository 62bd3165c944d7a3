from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ToolArgumentsError
from ohsandbox.schema import text_of
from ohsandbox.tools.finish import AgentFinishAction, make_finish_tool
from ohsandbox.tools.think import make_think_tool

if TYPE_CHECKING:
    from ohsandbox.tool import ToolDefinition

TOOLS = [(make_think_tool(), "thought"), (make_finish_tool(), "message")]


@pytest.mark.parametrize(("tool", "argument"), TOOLS)
def test_both_are_plain_read_only_instances_with_one_argument(tool: ToolDefinition[Any, Any], argument: str) -> None:
    hints = tool.annotations
    assert hints is not None
    assert (hints.readOnlyHint, hints.destructiveHint, hints.idempotentHint, hints.openWorldHint) == (
        True,
        False,
        True,
        False,
    )
    parameters = tool.to_openai_tool()["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == ([argument], [argument])


@pytest.mark.parametrize(("tool", "argument"), TOOLS)
def test_the_argument_may_be_left_out_and_be_nothing_but_text(tool: ToolDefinition[Any, Any], argument: str) -> None:
    assert getattr(tool.action_from_arguments({}), argument) == ""
    assert getattr(tool.action_from_arguments({argument: "x", "security_risk": "low"}), argument) == "x"
    with pytest.raises(ToolArgumentsError, match=f"argument '{argument}'"):
        tool.action_from_arguments({argument: ["x"]})
    with pytest.raises(ToolArgumentsError, match="Unexpected argument 'more'"):
        tool.action_from_arguments({argument: "x", "more": 1})


def test_a_thought_is_confirmed_and_changes_nothing() -> None:
    tool = make_think_tool()
    assert text_of(tool(tool.action_from_arguments({"thought": "abc"}))) == "Noted (3 characters)."


def test_the_last_word_is_the_message() -> None:
    tool = make_finish_tool()
    action = tool.action_from_arguments({"message": "All done."})
    assert isinstance(action, AgentFinishAction)
    assert action.final_thought == "All done."
    assert text_of(tool(action)) == "All done."
    assert "All done." in action.visualize.plain
