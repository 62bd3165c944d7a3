"""How `think` runs: it answers."""

from __future__ import annotations

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.think.definition import AgentThinkAction


class ThinkExecutor(ToolExecutor[AgentThinkAction, TextObservation]):
    """Keeps nothing: the call itself is in the conversation."""

    def __call__(self, action: AgentThinkAction) -> TextObservation:
        """Confirm."""
        return TextObservation(text=f"Noted ({len(action.thought)} characters).")
