"""What a model answers: the shape of a provider's chat completion, in our own values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FunctionCall(_Value):
    """What the model wants called."""

    name: str
    """Empty where the model gave none."""
    arguments: str
    """The text the model wrote: not parsed, and not necessarily JSON."""
    fault: str | None = Field(default=None, exclude=True)
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
    """US dollars by litellm's price list; None where the model is not on it."""

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
