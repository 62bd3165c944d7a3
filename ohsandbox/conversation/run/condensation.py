"""`CondensationTrigger`: when the model's input is condensed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox import events

if TYPE_CHECKING:
    from ohsandbox.agent import Agent
    from ohsandbox.agent.condenser import Ask
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import CondensationReason

NEAR = 0.8
"""Share of the model's context window that a request may fill; the rest is for its answer and the calls' results."""


class CondensationTrigger:
    """Asks the agent's condenser when a condensation is due, and stores the summary."""

    def __init__(self, agent: Agent, log: ConversationLog, ask: Ask) -> None:
        """Create it for one run. ask sends a prompt to the model outside of the history."""
        self._agent = agent
        self._log = log
        self._ask = ask
        self._was_too_long = False

    def before_request(self) -> None:
        """Condense if the model has requested it, or if the last request came near the model's limit.

        Raises:
            ModelError: the model gave no summary.
        """
        history, llm = self._log.history, self._agent.llm
        window = None if llm is None else llm.context_tokens
        if history.condensation_requested:
            self._condense("requested")
        elif history.prompt_tokens and window is not None and history.prompt_tokens >= NEAR * window:
            self._condense("near the limit")

    def now(self) -> bool:
        """Condense because a person asks for it; return whether there was anything to leave out.

        Raises:
            ModelError: the model gave no summary.
        """
        return self._condense("by the user")

    def after_refusal(self) -> bool:
        """Condense after the provider refused the request as too long; return whether to send it again.

        This happens once: a request that is too long after condensation stays too long.
        """
        if self._was_too_long:
            return False
        self._was_too_long = True
        return self._condense("over the limit")

    def after_answer(self) -> None:
        """Allow the next condensation after a refusal, since the model has answered."""
        self._was_too_long = False

    def _condense(self, reason: CondensationReason) -> bool:
        history = self._log.history
        [*messages] = history.messages(system=False)
        condensation = self._agent.condenser.condense(messages, self._ask)
        if condensation is None:
            history.condensation_requested = False
            return False
        self._log.emit(events.condensation(**condensation._asdict(), reason=reason))
        return True
