"""`CondensationTrigger`: when the history is condensed for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ohsandbox import events

if TYPE_CHECKING:
    from ohsandbox.agent import Agent
    from ohsandbox.agent.condenser import Ask
    from ohsandbox.conversation.log import ConversationLog

Reason = Literal["requested", "near the limit", "over the limit"]

NEAR = 0.8
"""Share of the model's context window: the rest holds its answer and the results of the calls in it."""


class CondensationTrigger:
    """Asks the agent's condenser when it is due, and stores the summary."""

    def __init__(self, agent: Agent, log: ConversationLog, ask: Ask) -> None:
        """For one run. ask sends a prompt to the model outside the history."""
        self._agent = agent
        self._log = log
        self._ask = ask
        self._was_too_long = False

    def before_request(self) -> None:
        """Condense where the model has asked for it, or where the last request came near the model's limit.

        Raises:
            ModelError: the model was asked for a summary and gave none.
        """
        history = self._log.history
        if history.condensation_requested:
            self._condense("requested")
        elif history.prompt_tokens and self._is_near(history.prompt_tokens):
            self._condense("near the limit")

    def after_refusal(self) -> bool:
        """Condense after the provider refused the request as too long; returns whether it may be sent again.

        Once: what is too long right after condensation stays too long.
        """
        if self._was_too_long:
            return False
        self._was_too_long = True
        return self._condense("over the limit")

    def after_answer(self) -> None:
        """Note that the model has answered: the next refusal is a new one."""
        self._was_too_long = False

    def _is_near(self, tokens: int) -> bool:
        window = None if self._agent.llm is None else self._agent.llm.context_tokens
        return window is not None and tokens >= NEAR * window

    def _condense(self, reason: Reason) -> bool:
        history = self._log.history
        [*messages] = history.messages(system=False)
        what = self._agent.condenser.condense(messages, self._ask)
        if what is None:
            history.condensation_requested = False
            return False
        self._log.emit(events.condensation(**what._asdict(), reason=reason))
        return True
