"""What works beside a conversation: the context of its sub-agents, and requests to its model outside the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ohsandbox import events
from ohsandbox.errors import LimitReachedError, ToolError

if TYPE_CHECKING:
    import threading

    from ohsandbox.agent import Agent
    from ohsandbox.conversation.config import ConversationConfig, Limits
    from ohsandbox.conversation.conversation import Conversation
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.llm.chat import LLMEvent, OnEvent
    from ohsandbox.runtime.base import Runtime


class Converse(Protocol):
    """Makes the conversation of a sub-agent: below its parent's directory, with its parent's secrets and policy."""

    def __call__(self, agent: Agent, runtime: Runtime, *, conversation_id: str, limits: Limits) -> Conversation:
        """Make it without starting it."""


@dataclass(frozen=True, kw_only=True)
class SubagentContext:
    """What a conversation shares with its sub-agents."""

    agent: Agent
    """With the MCP servers that are running."""
    runtime: Runtime
    config: ConversationConfig
    log: ConversationLog
    canceled: threading.Event
    """Set while the conversation is being stopped."""

    @property
    def depth(self) -> int:
        """How many agents stand above the conversation."""
        return self.config.depth

    def remaining(self) -> Limits:
        """What is left of the conversation's limits.

        Raises:
            ToolError: nothing. The call is answered so, and then the conversation's own next request ends it.
        """
        return _remaining(self.log, self.config)


class AuxiliaryCompletion:
    """A request to the conversation's model outside its history; satisfies `AskModel`. A notice event has its cost."""

    def __init__(
        self, config: ConversationConfig, log: ConversationLog, *, canceled: threading.Event, hear: OnEvent
    ) -> None:
        """Ask nothing yet.

        Args:
            config: has the agent and its limits, as they are at each request.
            log: gets a notice for each request; its masker takes secrets out of the prompt.
            canceled: set while the conversation is being stopped.
            hear: gets retries and warnings, not the answer's text, which is not the agent's.
        """
        self._config = config
        self._log = log
        self._canceled = canceled
        self._hear = hear

    def __call__(self, prompt: str, *, system: str = "") -> str:
        """The answer's text; "" where the model said nothing.

        Raises:
            ModelError: there is no answer to be had, or the conversation was stopped.
            ToolError: no more requests may be made.
            UsageError: the agent has no model.
        """
        from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - only a run needs the model's package

        llm = self._config.llm
        _remaining(self._log, self._config)
        if self._canceled.is_set():
            raise ModelCanceledError(f"Model {llm.name!r} was not asked: the conversation was stopped.")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self._log.masker.mask_cut(prompt)})
        response = llm.send(messages, on_event=self._pass_on)
        message = "A tool asked the model a question of its own."
        facts = {"requests": 1, "usage": response.usage.model_dump(), "cost_usd": response.cost_usd}
        self._log.emit(events.notice(code="SideQuestion", message=message, **facts))
        return response.message.content

    def _pass_on(self, event: LLMEvent) -> None:
        if event.type != "delta":
            self._hear(event)


def _remaining(log: ConversationLog, config: ConversationConfig) -> Limits:
    try:
        return log.spending.remaining(config.limits)
    except LimitReachedError as error:
        raise ToolError(f"{error} Nothing was done.") from error
