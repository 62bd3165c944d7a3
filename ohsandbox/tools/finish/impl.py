"""Implementation of `finish`: its message is the result."""

from __future__ import annotations

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.finish.definition import AgentFinishAction


class FinishExecutor(ToolExecutor[AgentFinishAction, TextObservation]):
    """Ends nothing itself: the agent sees the action and ends the run."""

    def __call__(self, action: AgentFinishAction) -> TextObservation:
        """Return the message."""
        return TextObservation(text=action.message)
