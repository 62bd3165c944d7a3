"""Implementation of `request_condensation`: reports the request's effect."""

from __future__ import annotations

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.request_condensation.definition import CondensationRequestAction

WILL_CONDENSE = "Condensation is requested: the older part of the conversation is summarised before your next turn."
CANNOT_CONDENSE = (
    "Condensation is requested, but this agent has no condenser: the conversation stays as it is. Go on with the task."
)
MAY_CONDENSE = (
    "Condensation is requested. An agent with a condenser summarises the older part of the conversation before your "
    "next turn; if nothing is summarised, this agent has none. Go on with the task."
)


class RequestCondensationExecutor(ToolExecutor[CondensationRequestAction, TextObservation]):
    """Condenses nothing itself: the agent sees the action."""

    def __init__(self, *, has_condenser: bool | None) -> None:
        known = WILL_CONDENSE if has_condenser else CANNOT_CONDENSE
        self._answer = TextObservation(text=MAY_CONDENSE if has_condenser is None else known)

    def __call__(self, action: CondensationRequestAction) -> TextObservation:  # noqa: ARG002 - it holds nothing
        """Return the confirmation."""
        return self._answer
