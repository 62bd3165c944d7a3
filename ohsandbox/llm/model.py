"""`ChatModel`: what an agent needs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ohsandbox.llm.events import OnEvent
    from ohsandbox.llm.response import ChatResponse

Message = Mapping[str, Any]
ToolParam = Mapping[str, Any]
ToolChoice = str | Mapping[str, Any]


class ChatModel(Protocol):
    """Something that answers conversations. One object may serve several threads."""

    @property
    def name(self) -> str:
        """What the model is called in logs and metadata."""

    @property
    def note(self) -> str | None:
        """What a person should know about where the answers come from; None for a real model."""

    @property
    def context_tokens(self) -> int | None:
        """The most tokens that a request may have; None where nobody knows. May wait for `preload`."""

    def preload(self) -> None:
        """Begin whatever is slow, in the background; returns at once. Calling it is never required."""

    def cancel(self) -> None:
        """End every `send` under way, from any thread; they raise ModelCanceledError. Later ones are not affected."""

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),
        tool_choice: ToolChoice = "auto",
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """The model's next message.

        Args:
            messages: the conversation in OpenAI form, oldest first; not changed.
            tools: OpenAI function tools; none are offered when empty.
            tool_choice: "auto", "required", "none", or a function by name in OpenAI form.
            on_event: called in this thread with what happens meanwhile.

        Raises:
            ModelError: there is no answer to be had.
        """
