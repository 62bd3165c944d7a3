"""OpenAI's chat completions API, as OpenAI and most self-hosted servers implement it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ohsandbox.llm.errors import ModelAuthenticationError
from ohsandbox.llm.model_list import listed_info, model_entry
from ohsandbox.llm.wire_format import InterruptedStreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ohsandbox.llm.config import LLMConfig

_ADDRESS = "https://api.openai.com/v1"
MAX_TOOLS = 128
"""Functions in a request to OpenAI or Azure (API reference, "Create chat completion"); for more they answer 400."""
_NO_KEY = "none"
"""The key for self-hosted servers, which need none."""
_LITELLM_ONLY = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION", "OPENAI_CUSTOM_HEADERS")
"""Variables from which OpenAI's client makes headers."""
_ORDINARY = re.compile(r"gpt-(?:3\.5|4|[56])(?!.*(?:audio|search|chat|cyber|instruct))")
"""Listed models whose parameters follow from the list's entry; a test compares each request with litellm's."""
_PECULIAR = re.compile(r"gpt-[5-9]|gpt-\d\d|^o\d|^ft:")
"""Names of unlisted models that accept other parameters than most, which litellm knows by the name."""
_BY_COMBINATION = frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"})
"""OpenAI's API refuses them at the top of a tool's schema; litellm rewrites those."""


class OpenAIFormat:
    """Satisfies `WireFormat`."""

    def __init__(self, config: LLMConfig, model: str) -> None:
        """Take the configuration and OpenAI's, or the server's, name of the model; see `openai_format`."""
        self._config, self._model = config, model
        self._base_url = _base_url(config)
        self.entry = model_entry(model, "openai")
        base = (self._base_url or _ADDRESS).rstrip("/")
        self.url, self.models_url = f"{base}/chat/completions", f"{base}/models"
        self._is_openais_own = is_openais_own(config)
        self.info = listed_info(self.entry, provider="openai")._replace(
            max_tools=MAX_TOOLS if self._is_openais_own else None
        )

    def headers(self) -> dict[str, str]:
        """See `WireFormat.headers`."""
        config = self._config
        api_key = config.api_key.get_secret_value() if config.api_key else os.environ.get("OPENAI_API_KEY")
        key = api_key or (_NO_KEY if config.base_url else None)
        if key is None:
            raise ModelAuthenticationError(
                f"Missing key for model {config.model!r}. Set `api_key`, or OPENAI_API_KEY in the environment."
            )
        return {"authorization": f"Bearer {key}"}

    def body(self, request: Mapping[str, Any], *, stream: bool) -> dict[str, Any] | None:
        """See `WireFormat.body`."""
        reasons = bool(self.entry.get("supports_reasoning"))
        if (reasons and "stop" in request) or not all(map(self._is_plain, request.get("tools", ()))):
            return None
        if self._is_openais_own and "cache_control" in str(request):
            return None
        config = self._config
        samples = not reasons or self.entry.get("default_reasoning_effort") == "none"
        settings = {
            "temperature": config.temperature if samples or config.temperature == 1 else None,
            "top_p": config.top_p if samples else None,
            "reasoning_effort": config.reasoning_effort,
            "max_completion_tokens" if reasons else "max_tokens": config.max_output_tokens,
            "top_k": config.top_k,
            "stream": stream or None,
            "stream_options": {"include_usage": True} if stream else None,
        }
        set_ = {name: value for name, value in settings.items() if value is not None}
        messages = [
            {name: value for name, value in message.items() if value is not None} for message in request["messages"]
        ]
        more = {name: request[name] for name in ("tools", "tool_choice", "stop") if name in request}
        return {"model": self._model, "messages": messages} | set_ | more | dict(request.get("extra_body", {}))

    def answer(self, body: Any) -> dict[str, Any]:
        """See `WireFormat.answer`; the HTTP client has repaired the body."""
        if not isinstance(body, dict) or not isinstance(body.get("choices"), list) or body.get("error"):
            raise ValueError("no answer in OpenAI's format")
        return body

    def chunks(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """See `WireFormat.chunks`."""
        for event in events:
            if error := event.get("error"):
                words = error.get("message") if isinstance(error, dict) else error
                raise InterruptedStreamError(str(words))
            yield event

    def _is_plain(self, tool: Mapping[str, Any]) -> bool:
        """Whether the tool is sent unchanged; litellm changes what validators are known to refuse."""
        schema = tool.get("function", {}).get("parameters", {})
        return not (self._is_openais_own and _BY_COMBINATION & schema.keys()) and _patterns_compile(schema)


def openai_format(config: LLMConfig, model: str) -> OpenAIFormat | None:
    """Return the format for a model at OpenAI or at `base_url`; None for one that litellm has to ask."""
    if any(os.environ.get(name) for name in _LITELLM_ONLY) or config.api_version is not None:
        return None
    entry = model_entry(model, "openai")
    if not entry:
        return None if _PECULIAR.search(model) else OpenAIFormat(config, model)
    is_ordinary = entry.get("mode") == "chat" and entry.get("supports_function_calling") and _ORDINARY.match(model)
    return OpenAIFormat(config, model) if is_ordinary and config.reasoning_effort is None else None


def is_openais_own(config: LLMConfig) -> bool:
    """Whether the API is that of OpenAI itself, and not of a server that speaks its format."""
    host = urlsplit(_base_url(config) or _ADDRESS).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")


def _base_url(config: LLMConfig) -> str | None:
    return config.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")


def _patterns_compile(schema: Any) -> bool:
    """Whether Python can compile each `pattern` in the schema: litellm drops others."""
    if isinstance(schema, list):
        return all(map(_patterns_compile, schema))
    if not isinstance(schema, dict):
        return True
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            return False
    return all(map(_patterns_compile, schema.values()))
