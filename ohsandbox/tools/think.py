"""`think`: records reasoning; has no effect."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition

HINT = CallHint(sign="*", kind="thought", subject="thought", writes=False, needs_agent=True)

DESCRIPTION = """\
Write down a thought: weigh designs, work out the cause of a failure, plan the next steps. Nothing runs and nothing
changes; the thought stays in the conversation. `thought` (required) is plain text. Returns a short confirmation."""


class AgentThinkAction(Action):
    """A thought to keep."""

    thought: str = Field(description="The thought.")

    @model_validator(mode="before")
    @classmethod
    def _absent_is_empty(cls, given: Any) -> Any:
        """Accept a call without the argument: it is requested, but not required."""
        return {"thought": "", **given} if isinstance(given, dict) else given


def make_think_tool() -> ToolDefinition[AgentThinkAction, TextObservation]:
    """Create the tool. It has no state, so one instance serves every conversation."""
    return ToolDefinition(
        name="think",
        description=DESCRIPTION,
        action_type=AgentThinkAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Think"),
        executor=FunctionExecutor(lambda action: TextObservation(text=f"Noted ({len(action.thought)} characters).")),
    )


BUILT_IN = BuiltInTool(make_think_tool(), HINT)
