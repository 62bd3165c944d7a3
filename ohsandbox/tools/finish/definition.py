"""What the model is told of `finish`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition

TOOL_NAME = "finish"

HINT = CallHint(subject="message", writes=False, answers=True, needs_agent=True)

DESCRIPTION = """\
End the task and hand the result to the user. Call it alone, as the last call, when the task is done and checked, or
when it cannot be done. `message` (required) says what was done, how it was checked, and what is left or uncertain.
The conversation stops until the user writes again."""


class AgentFinishAction(Action):
    """The end of the task."""

    message: str = Field(description="What the user should know.")

    @model_validator(mode="before")
    @classmethod
    def _absent_is_empty(cls, given: Any) -> Any:
        """Asked for, and not insisted on: a call without it is clear enough."""
        return {"message": "", **given} if isinstance(given, dict) else given

    @property
    def final_thought(self) -> str:
        """The message, by its second name `final_thought`."""
        return self.message


FinishTool = ToolDefinition[AgentFinishAction, TextObservation]


def make_finish_tool() -> FinishTool:
    """The tool; it holds nothing, so one serves every conversation."""
    from ohsandbox.tools.finish.impl import FinishExecutor  # noqa: PLC0415 - impl is for running only

    return FinishTool(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=AgentFinishAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Finish"),
        executor=FinishExecutor(),
    )
