"""Implementation of `ask_human`: reports that the user answers next."""

from __future__ import annotations

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.ask_human.definition import AskHumanAction

ASKED = "The question was put to the user. Their next message is the answer."


class AskHumanExecutor(ToolExecutor[AskHumanAction, TextObservation]):
    """Asks nobody itself: the agent sees the action and ends the run."""

    def __call__(self, action: AskHumanAction) -> TextObservation:  # noqa: ARG002 - the call itself is the question
        """Return the confirmation."""
        return TextObservation(text=ASKED)
