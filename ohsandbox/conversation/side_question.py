"""`SideQuestion`: a question to a conversation's model, beside the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.conversation.subagents.context import SubagentContext
    from ohsandbox.llm.chat import LLMEvent, OnEvent


class SideQuestion:
    """One question to the model, outside the history; satisfies `AskModel`. What it costs is in a notice event."""

    def __init__(self, parent: SubagentContext, *, hear: OnEvent) -> None:
        """Hear is told of retries and warnings, not of the answer's text, which is no word of the agent's."""
        self._parent = parent
        self._hear = hear

    def __call__(self, prompt: str, *, system: str = "") -> str:
        """The answer's text; "" where the model said nothing.

        Raises:
            ModelError: there is no answer to be had, or the conversation was stopped.
            ToolError: no more requests may be made.
        """
        from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - only a run needs the model's package

        llm = self._parent.agent.llm
        if llm is None:
            raise UsageError("The agent has no model. Give it one, or name one in the settings.")
        self._parent.remaining()
        if self._parent.canceled.is_set():
            raise ModelCanceledError(f"Model {llm.name!r} was not asked: the conversation was stopped.")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self._parent.log.masker.mask_cut(prompt)})
        response = llm.send(messages, on_event=self._pass_on)
        message = "A tool asked the model a question of its own."
        facts = {"requests": 1, "usage": response.usage.model_dump(), "cost_usd": response.cost_usd}
        self._parent.log.emit(events.notice(code="SideQuestion", message=message, **facts))
        return response.message.content

    def _pass_on(self, event: LLMEvent) -> None:
        if event.type != "delta":
            self._hear(event)
