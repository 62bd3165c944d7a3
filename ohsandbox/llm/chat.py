"""`ChatModel`: what an agent needs from a model, with the values of a response and the events of a request."""

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
        """The model's name in logs and metadata."""

    @property
    def note(self) -> str | None:
        """A note for the user on where the answers come from; None for a real model."""

    @property
    def context_tokens(self) -> int | None:
        """Limit of a request, in tokens; None if unknown. May wait for `preload`."""

    def preload(self) -> None:
        """Begin slow work, such as imports, in the background; returns at once. Calling it is never required."""

    def cancel(self) -> None:
        """End every running `send`, from any thread; they raise ModelCanceledError. Later ones are not affected."""

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),
        tool_choice: ToolChoice = "auto",
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """Return the model's next message.

        Args:
            messages: the conversation in OpenAI form, oldest first; not changed.
            tools: OpenAI function tools; none are offered when empty.
            tool_choice: "auto", "required", "none", or a function by name in OpenAI form.
            on_event: called in this thread with the events of the request.

        Raises:
            ModelError: no answer; the subclass says why.
        """


class _Value(BaseModel):
    """Its fields are attributes, and can be read as those of a dict: `response["choices"][0]["message"]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __getitem__(self, name: str) -> Any:
        """Return the field of that name; raises KeyError if there is none."""
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        """Whether there is a field of that name."""
        return name in type(self).model_fields

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field of that name, else default."""
        return getattr(self, name) if name in self else default


class FunctionCall(_Value):
    """What the model wants called."""

    name: str
    """Empty if the model gave none."""
    arguments: str
    """The text that the model wrote: not parsed, and not necessarily JSON."""
    parse_error: str | None = Field(default=None, exclude=True)
    """Why a call written as text cannot be read; the model gets this instead of a result."""


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
    """The message's text; parts are joined, and "" if there is none."""
    tool_calls: tuple[ToolCall, ...] = ()

    def to_llm_dict(self) -> dict[str, Any]:
        """Return the message in OpenAI form, as it is sent back to the model; `tool_calls` only if there are any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message


class Choice(_Value):
    """The one alternative that is asked for."""

    message: ChatMessage
    finish_reason: str | None = None
    """Why the model stopped: "stop", "tool_calls", "length" (cut by max_output_tokens) or another word of the
    provider."""


class Usage(_Value):
    """Tokens of one request; never negative, 0 where the provider says nothing."""

    prompt_tokens: int = 0
    """All tokens that were read, `cached_tokens` included."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Number of the prompt's tokens that came from the provider's cache."""


class ChatResponse(_Value):
    """One answer. `choices` has exactly one element, also when the provider sent none."""

    id: str
    """The provider's id of the answer, or a generated one if it gave none."""
    model: str
    """The model that answered, under the provider's name for it."""
    choices: tuple[Choice]
    usage: Usage = Usage()
    cost_usd: float | None = None
    """US dollars by the price of the settings, else by litellm's list; None if neither has a price, or if the provider
    reported no tokens."""

    @property
    def message(self) -> ChatMessage:
        """The assistant's message."""
        return self.choices[0].message

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a tool call."""
        return not self.message.content.strip() and not self.message.tool_calls

    @property
    def cut(self) -> str:
        """Where the answer was cut, to follow "was cut": its end, or its last tool call, is missing; "" if it is whole.

        Some servers lose a call that they cannot parse, and say `tool_calls` all the same.
        """
        reason = self.choices[0].finish_reason
        if reason in {"tool_calls", "function_call"} and not self.message.tool_calls:
            return "before the tool call that it announces"
        return {"length": "at the output limit", "content_filter": "by the provider's content filter"}.get(
            reason or "", ""
        )


class RetryEvent(_Value):
    """A request failed and is made again after a wait. What was streamed of it is void."""

    type: Literal["retry"] = "retry"
    attempt: int
    """The number of the attempt that failed, from 1."""
    attempts: int | None = None
    """Limit of attempts, the first one included."""
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
