"""Asks a provider through litellm. Imports litellm: import this module at first use only (it takes 2-4 s)."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
"""Without it `import litellm` fetches its price list from GitHub, and retries without a network."""
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
"""Without it `import litellm` loads the nearest `.env`, by which a repository could set a provider's address."""

import httpx  # noqa: E402 - after the environment is set
import litellm  # noqa: E402
import openai  # noqa: E402
from litellm.llms.custom_httpx.http_handler import HTTPHandler, get_ssl_configuration  # noqa: E402

from ohsandbox.llm import error_mapping  # noqa: E402
from ohsandbox.llm.errors import ModelAuthenticationError  # noqa: E402
from ohsandbox.llm.http_client import LITELLM_TLS, BoundedClient, record_failure  # noqa: E402
from ohsandbox.llm.model_list import is_priced, listed_info  # noqa: E402
from ohsandbox.llm.openai_format import MAX_TOOLS, is_openais_own  # noqa: E402
from ohsandbox.llm.provider import Answer, ModelInfo, Unfinished, current_attempt  # noqa: E402
from ohsandbox.llm.response_parsing import StreamedAnswer, token_count  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from ohsandbox.llm.config import LLMConfig

litellm.suppress_debug_info = True
"""Without it litellm prints advice to stdout with each error."""
logging.getLogger("LiteLLM").setLevel(logging.ERROR)
"""litellm warns on stderr, by a handler of its own, of things that we handle."""

_CONNECT_TIMEOUT_S = 20.0
"""A host that does not accept a connection within this time is unreachable; timeout_s is for one that thinks."""
_NO_KEY = "none"
"""The key for local servers, which need none, while the client requires one."""
_HTTP_PROVIDERS = {"anthropic", "azure_ai", "deepseek", "fireworks_ai", "gemini", "groq", "hosted_vllm", "mistral"} | {
    *("ollama", "ollama_chat", "openrouter", "together_ai", "xai")
}
"""Providers that litellm 1.106 asks by its HTTPHandler, for which it accepts our client; a test asks each."""


_MAX_TOOLS = {"openai": MAX_TOOLS, "azure": MAX_TOOLS, "groq": 128, "xai": 200, "gemini": 512}
"""Functions in a request: xAI's guide to function calling; what the APIs of Groq and Gemini answer with 400."""


class LiteLLMProvider:
    """Satisfies `Provider` for every model that litellm knows."""

    def __init__(self, config: LLMConfig) -> None:
        self._config = config
        self._key = config.api_key.get_secret_value() if config.api_key else None
        self._lock = threading.Lock()
        self._http: BoundedClient | None = None

    def abort(self) -> None:
        """See `Provider.abort`. A request that litellm does not make through our client continues."""
        if self._http:
            self._http.abort()

    def close(self) -> None:
        """See `Provider.close`."""
        if self._http:
            self._http.client.close()

    def model_info(self) -> ModelInfo:
        """Return what litellm knows about the model; nothing if the model is not on its list."""
        try:
            model, provider, _, _ = litellm.get_llm_provider(self._config.model, self._config.custom_llm_provider)
            forwarded = litellm.get_supported_openai_params(model, provider)
        except Exception:  # noqa: BLE001 - a failed look-up tells nothing
            return ModelInfo()
        entry = _entry(model, provider)
        return listed_info(entry, provider=provider)._replace(
            forwards_tools=forwarded is None or "tools" in forwarded,
            priced=is_priced(litellm.model_cost.get(entry.get("key", ""), entry)),
            max_tools=self._max_tools(provider),
        )

    def _max_tools(self, provider: str) -> int | None:
        """Return the provider's limit; a server that is only asked in its form (base_url) has none that is known."""
        is_own = is_openais_own(self._config) if provider == "openai" else not self._config.base_url
        return _MAX_TOOLS.get(provider) if is_own or provider == "azure" else None

    def ask(self, request: Mapping[str, Any], *, stream: bool) -> Generator[str, None, Answer]:
        """See `Provider.ask`.

        Raises:
            Unfinished: the stream ended early.
            Exception: any error of litellm, openai or httpx.
        """
        config = self._config
        model, provider, key, base_url = litellm.get_llm_provider(
            config.model, config.custom_llm_provider, config.base_url, self._key
        )
        settings = self._settings(stream=stream) | dict(request)
        if config.native_tool_calling and "tools" in request:
            settings["allowed_openai_params"] = [
                "tools",
                "tool_choice",
            ]  # litellm drops parameters that its list does not support
        client = self._client(provider, key=key, base_url=base_url)
        try:
            received = litellm.completion(**settings, client=client)
            answer = (yield from _read(received)) if stream else received.model_dump()
        except Exception as error:
            record_failure(error)  # of a client that is not ours
            raise
        return Answer(answer, _cost_usd(answer, model=model, provider=provider))

    def _settings(self, *, stream: bool) -> dict[str, Any]:
        """Return the arguments for litellm, without the settings that are None."""
        config = self._config
        settings = {
            "model": config.model,
            "custom_llm_provider": config.custom_llm_provider,
            "api_key": self._key,
            "api_base": config.base_url,
            "api_version": config.api_version,
            "temperature": config.temperature,
            "reasoning_effort": config.reasoning_effort,
            "max_tokens": config.max_output_tokens,
            "top_k": config.top_k,
            "top_p": config.top_p,
            "stream": stream or None,
            "stream_options": {"include_usage": True} if stream else None,
            "timeout": httpx.Timeout(config.timeout_s, connect=min(config.timeout_s, _CONNECT_TIMEOUT_S)),
        }
        ours = {"drop_params": True, "num_retries": 0, "max_retries": 0}
        return {name: value for name, value in settings.items() if value is not None} | ours

    def _client(self, provider: str, *, key: str | None, base_url: str | None) -> Any:
        """Return our client in the wrapper that litellm expects for the provider; None if it does not accept ours."""
        config, http = self._config, self._bounded_client().client
        if provider in _HTTP_PROVIDERS:
            return HTTPHandler(client=http)
        if provider == "azure":
            if self._key is None or config.base_url is None or config.api_version is None:
                return None  # litellm completes the settings from the environment
            return openai.AzureOpenAI(
                api_key=self._key,
                azure_endpoint=config.base_url,
                api_version=config.api_version,
                max_retries=0,
                http_client=http,
            )
        if provider != "openai" and provider not in litellm.openai_compatible_providers:
            return None
        key = key or os.environ.get("OPENAI_API_KEY") or (_NO_KEY if config.base_url else None)
        if key is None:
            raise ModelAuthenticationError(
                f"Missing key for model {config.model!r}. Set `api_key`, or OPENAI_API_KEY in the environment."
            )
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
        return openai.OpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http)

    def _bounded_client(self) -> BoundedClient:
        """Create the client for all requests, with litellm's certificates if a variable of its own is set."""
        with self._lock:
            if self._http is None:
                self._http = BoundedClient(get_ssl_configuration() if any(map(os.environ.get, LITELLM_TLS)) else None)
                weakref.finalize(self, self._http.client.close)
            return self._http


def _entry(model: str, provider: str) -> Mapping[str, Any]:
    """Return the model's entry in litellm's list, or {}. For Ollama, litellm would ask a server on this machine."""
    if provider.startswith("ollama"):
        entry = litellm.model_cost.get(f"ollama/{model}")
        return entry if isinstance(entry, dict) else {}
    try:
        return dict(litellm.get_model_info(model, provider))
    except Exception:  # noqa: BLE001 - litellm raises a plain Exception for a model it does not know
        return {}


def _read(received: Any) -> Generator[str, None, dict[str, Any]]:
    answer = StreamedAnswer()
    for chunk in received:
        if text := answer.add(chunk.model_dump()):
            yield text
    # litellm invents a final "stop" for a stream that just ends; these two hold what the provider said
    if not (received.received_finish_reason or received.intermittent_finish_reason):
        attempt = current_attempt()
        is_stream = not ("html" in attempt.content_type or attempt.content_type.startswith("application/json"))
        attempt.refusal = attempt.refusal or (error_mapping.CUT if is_stream else error_mapping.UNREADABLE)
        raise Unfinished
    return answer.to_dict()


def _cost_usd(answer: Mapping[str, Any], *, model: str, provider: str) -> float | None:
    """Return the cost; None if the provider reported no usage, or litellm has no price."""
    counts = answer.get("usage") or {}
    if not token_count(counts.get("prompt_tokens")):
        return None
    try:
        usage = litellm.Usage(**counts)
        return float(sum(litellm.cost_per_token(model=model, custom_llm_provider=provider, usage_object=usage)))
    except Exception:  # noqa: BLE001 - an unknown price does not fail the answer
        return None
