"""`request_condensation`: the model asks for a shorter history. The agent sees the action and condenses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

TOOL_NAME = "request_condensation"

HINT = CallHint(writes=False, needs_agent=True)

DESCRIPTION = """\
Ask for the older part of this conversation to be replaced by a summary, and return whether that will happen. Takes no
arguments. Use it when the conversation has grown long and its early details no longer matter; write down first what
you still need: facts, file names, decisions."""

ANSWERS = {
    True: "Condensation is requested: the older part of the conversation is summarised before your next turn.",
    False: "Condensation is requested, but this agent has no condenser: the conversation stays as it is. Go on with "
    "the task.",
    None: "Condensation is requested. An agent with a condenser summarises the older part of the conversation before "
    "your next turn; if nothing is summarised, this agent has none. Go on with the task.",
}
"""The answer by whether the agent has a condenser; None: not known."""


class CondensationRequestAction(Action):
    """The wish for a shorter history."""


def make_request_condensation_tool(
    *,
    conv_state: ConversationState,  # noqa: ARG001 - every tool is made with it
    has_condenser: bool | None = None,
) -> ToolDefinition[CondensationRequestAction, TextObservation]:
    """Create the tool of an agent that may ask for a summary; only useful with a condenser.

    has_condenser says whether the agent has one; None leaves it open, and the answer says so.
    """
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=CondensationRequestAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Ask for a summary"),
        executor=FunctionExecutor(lambda _: TextObservation(text=ANSWERS[has_condenser])),
    )


BUILT_IN = BuiltInTool(make_request_condensation_tool, HINT)
