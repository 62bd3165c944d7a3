"""`ChatModel`: what an agent needs of a model, with the values of a response and the events of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

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
        """The most tokens that a request may have; None if that is not known. May wait for `preload`."""

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
            ModelError: no answer; the subclass says why.
        """


class _Value(BaseModel):
    """Its fields are attributes, and can be read as those of a dict: `response["choices"][0]["message"]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __getitem__(self, name: str) -> Any:
        """The field of that name; KeyError where there is none."""
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        """Whether it has a field of that name."""
        return name in type(self).model_fields

    def get(self, name: str, default: Any = None) -> Any:
        """The field of that name, else default."""
        return getattr(self, name) if name in self else default


class FunctionCall(_Value):
    """What the model wants called."""

    name: str
    """Empty where the model gave none."""
    arguments: str
    """The text the model wrote: not parsed, and not necessarily JSON."""
    parse_error: str | None = Field(default=None, exclude=True)
    """Why a call written as text cannot be read; told to the model in place of a result."""


class ToolCall(_Value):
    """One call of an answer."""

    id: str
    """Unique in the conversation."""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Value):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    """Its text; parts are joined, and "" where there is none."""
    tool_calls: tuple[ToolCall, ...] = ()

    def to_llm_dict(self) -> dict[str, Any]:
        """The OpenAI-shaped message, as it goes back to the model; `tool_calls` only where there are any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message


class Choice(_Value):
    """The one alternative that is asked for."""

    message: ChatMessage
    finish_reason: str | None = None
    """Why the model stopped: "stop", "tool_calls", "length" (cut by max_output_tokens), ... as the provider says."""


class Usage(_Value):
    """Tokens of one request; never negative, 0 where the provider says nothing."""

    prompt_tokens: int = 0
    """All that was read, `cached_tokens` included."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    """How many of the prompt's tokens came from the provider's cache."""


class ChatResponse(_Value):
    """One answer. `choices` has exactly one element, also when the provider sent none."""

    id: str
    """The provider's id of the answer, or one of ours where it gave none."""
    model: str
    """The model that answered, as the provider names it."""
    choices: tuple[Choice]
    usage: Usage = Usage()
    cost_usd: float | None = None
    """US dollars by the price of the settings, else by litellm's list; None where neither has one, or no tokens were
    told."""

    @property
    def message(self) -> ChatMessage:
        """The assistant's message."""
        return self.choices[0].message

    @property
    def is_empty(self) -> bool:
        """Neither text nor a tool call: there is nothing to act on."""
        return not self.message.content.strip() and not self.message.tool_calls

    @property
    def is_truncated(self) -> bool:
        """Cut off by the limit on output: its last tool call may be incomplete."""
        return self.choices[0].finish_reason == "length"


class RetryEvent(_Value):
    """A request failed and is made again after a wait. What was streamed of it is void."""

    type: Literal["retry"] = "retry"
    attempt: int
    """The number of the attempt that failed, from 1."""
    attempts: int | None = None
    """How many are made at most, the first one included."""
    wait_s: float
    reason: str
    """One line."""


class DeltaEvent(_Value):
    """A piece of the answer's text, as it is written."""

    type: Literal["delta"] = "delta"
    text: str


class WarningEvent(_Value):
    """Something the person should know; the work goes on."""

    type: Literal["warning"] = "warning"
    text: str


LLMEvent = RetryEvent | DeltaEvent | WarningEvent
OnEvent = Callable[[LLMEvent], None]
