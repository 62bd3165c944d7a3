"""Implementation of `think`: returns a confirmation."""

from __future__ import annotations

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.think.definition import AgentThinkAction


class ThinkExecutor(ToolExecutor[AgentThinkAction, TextObservation]):
    """Stores nothing: the conversation holds the call itself."""

    def __call__(self, action: AgentThinkAction) -> TextObservation:
        """Return the confirmation."""
        return TextObservation(text=f"Noted ({len(action.thought)} characters).")
