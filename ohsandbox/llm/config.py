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
    """As litellm names it ("anthropic/claude-sonnet-4-5"), or "scripted:demo", "scripted:PATH", "replay:PATH"."""
    api_key: SecretStr | None = None
    """The provider's key; None leaves it to the provider's environment variable. Never printed."""
    base_url: str | None = None
    """Where the provider answers; None is its public address. The key goes to this host only."""
    api_version: str | None = None
    """The version of the API, where the provider asks for one (Azure)."""
    custom_llm_provider: str | None = None
    """Whose wire format to speak, where the name of the model does not say it ("openai" for a local server)."""
    model_client: Literal["auto", "litellm"] = "auto"
    """auto asks OpenAI-compatible servers and Anthropic directly, which is ready 3 s sooner, and all others through
    litellm; litellm asks all of them through it."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = 0.0
    """Randomness; left out for models that are known to refuse it. None never sends it."""
    reasoning_effort: ReasoningEffort | None = None
    """How long a reasoning model may think; "none" asks it not to."""
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    """Most tokens of one answer."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Sample from the k likeliest tokens, where the provider has it."""
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    """The most tokens of one request; None is what litellm's list says. Near it a conversation is condensed."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Sample from the likeliest tokens that hold this much probability."""
    price: GivenPrice | None = None
    """US dollars for a million tokens of input and of output, as in "3,15"; None is what litellm's list says."""
    native_tool_calling: bool | None = None
    """Whether tool calls go through the provider's API (true), or are written as text (false). None begins with the
    API, unless litellm's list says that the model has none, and goes over to text when the provider refuses tools."""
    vision: bool | None = None
    """Whether the model is shown images. None shows them, unless litellm's list or the provider says that it cannot."""
    prompt_cache: bool | None = None
    """Whether to mark what the provider should cache, as Anthropic's API asks for it. None does for Claude models."""
    extra_body: dict[str, Any] | None = None
    """More fields for the body of each request, as they are: `{"metadata": {"trace_id": "..."}}` for a proxy that keeps
    accounts. For servers that speak OpenAI's format, and Gemini; Anthropic's API refuses it. No place for secrets."""
    stream: bool = False
    """Receive the answer as it is written; `on_event` then gets its text piece by piece."""
    timeout_s: Annotated[float, Field(gt=0.0, le=86400.0)] = 600.0
    """Seconds without a byte before a request is given up; reasoning models are silent for minutes."""
    total_timeout_s: Annotated[float, Field(gt=0.0, le=86400.0)] = 3600.0
    """Seconds for one `send` with its retries and waits; past it no request starts and the one under way is cut."""
    num_retries: Annotated[int, Field(ge=0, le=6)] = 6
    """How often a request is made again after a transient failure: 429, 5xx, a lost connection, ..."""

    @field_validator("api_key", mode="after")
    @classmethod
    def _no_empty_key(cls, value: SecretStr | None) -> SecretStr | None:
        """An empty or blank key counts as none; blanks around a key are what pasting leaves."""
        stripped = value.get_secret_value().strip() if value else ""
        return SecretStr(stripped) if stripped else None
