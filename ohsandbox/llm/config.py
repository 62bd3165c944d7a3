"""`LLMConfig`: which model is asked, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator

from ohsandbox.arguments import ConfigModel
from ohsandbox.price import GivenPrice  # noqa: TC001 - pydantic reads it

ReasoningEffort = Literal["low", "medium", "high", "none"]


class LLMConfig(ConfigModel):
    """The settings of a model; what is None is not sent, so the provider's own default holds."""

    model: Annotated[str, Field(min_length=1, max_length=1000)]
    """The model as litellm names it ("anthropic/claude-sonnet-4-5"), or "scripted:demo", "scripted:PATH",
    "replay:PATH"."""
    api_key: SecretStr | None = None
    """The provider's key; None uses the provider's environment variable. Never printed."""
    base_url: str | None = None
    """The address of the provider; None is its public address. The key goes to this host only."""
    api_version: str | None = None
    """The version of the API, if the provider needs one (Azure)."""
    custom_llm_provider: str | None = None
    """The provider whose wire format is used, if the model's name does not tell ("openai" for a local server)."""
    model_client: Literal["auto", "litellm"] = "auto"
    """auto asks OpenAI-compatible servers and Anthropic directly, which is ready 3 s sooner, and all others through
    litellm; litellm asks all of them through litellm."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = 0.0
    """Randomness; omitted for models that are known to refuse it. None never sends it."""
    reasoning_effort: ReasoningEffort | None = None
    """How long a reasoning model may think; "none" asks it not to."""
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    """Limit of one answer, in tokens."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Sample from the k likeliest tokens, if the provider supports it."""
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    """Limit of one request, in tokens; None uses litellm's list. Near the limit a conversation is condensed."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Sample from the likeliest tokens whose probabilities add up to this."""
    price: GivenPrice | None = None
    """US dollars for a million tokens of input and of output, as in "3,15"; None uses litellm's list."""
    native_tool_calling: bool | None = None
    """Whether tool calls go through the provider's API (true) or are written as text (false). None begins with the API,
    unless litellm's list says that the model does not support tools, and changes to text when the provider refuses
    them."""
    vision: bool | None = None
    """Whether the model is shown images. None shows them, unless litellm's list or the provider says that it cannot."""
    prompt_cache: bool | None = None
    """Whether to mark what the provider should cache, as Anthropic's API requires. None does so for Claude models."""
    extra_body: dict[str, Any] | None = None
    """More fields for the body of each request, sent unchanged: `{"metadata": {"trace_id": "..."}}` for a proxy that
    keeps accounts. For servers that speak OpenAI's format, and Gemini; Anthropic's API refuses them. Not for
    secrets."""
    stream: bool = False
    """Receive the answer as it is written; `on_event` then gets its text piece by piece."""
    timeout_s: Annotated[float, Field(gt=0.0, le=86400.0)] = 600.0
    """Seconds without a byte before a request is given up; reasoning models are silent for minutes."""
    total_timeout_s: Annotated[float, Field(gt=0.0, le=86400.0)] = 3600.0
    """Limit of one `send` with its retries and waits, in seconds; then no request starts and the current one is cut."""
    num_retries: Annotated[int, Field(ge=0, le=6)] = 6
    """How often a request is repeated after a transient failure: 429, 5xx, a lost connection, ..."""

    @field_validator("api_key", mode="after")
    @classmethod
    def _no_empty_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Convert an empty or blank key to None; strip blanks around a key, which pasting leaves."""
        stripped = value.get_secret_value().strip() if value else ""
        return SecretStr(stripped) if stripped else None
