"""`finish`: the model reports that the task is done. The agent sees the action and ends the run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition

HINT = CallHint(kind="answer", subject="message", writes=False, answers=True, needs_agent=True)

DESCRIPTION = """\
End the task and hand the result to the user. Call it alone, as the last call, when the task is done and checked, or
when it cannot be done. `message` (required) says what was done, how it was checked, and what is left or uncertain.
The conversation stops until the user writes again."""


class AgentFinishAction(Action):
    """The end of the task."""

    call_kind: ClassVar[str] = "answer"
    message: str = Field(description="What the user should know.")

    @model_validator(mode="before")
    @classmethod
    def _absent_is_empty(cls, given: Any) -> Any:
        """Accept a call without the argument: it is requested, but not required."""
        return {"message": "", **given} if isinstance(given, dict) else given

    @property
    def final_thought(self) -> str:
        """The message, under its second name `final_thought`."""
        return self.message


def make_finish_tool() -> ToolDefinition[AgentFinishAction, TextObservation]:
    """Create the tool. It has no state, so one instance serves every conversation."""
    return ToolDefinition(
        name="finish",
        description=DESCRIPTION,
        action_type=AgentFinishAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Finish"),
        executor=FunctionExecutor(lambda action: TextObservation(text=action.message)),
    )


BUILT_IN = BuiltInTool(make_finish_tool(), HINT)
