"""Checks whether a model exists: by litellm's list, read as a file, by its server's list, and by one tiny request."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.prompts.remembered import is_remembered_model, remember_model
from ohsandbox.cli.settings.model import is_offline
from ohsandbox.errors import OhsandboxError
from ohsandbox.llm import LLM, ModelAuthenticationError, ModelNotFoundError, ModelRequestError, open_model
from ohsandbox.llm.model_list import model_entry, model_list
from ohsandbox.strict_json import load_json
from ohsandbox.text import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.errors import ModelError
    from ohsandbox.llm import ChatResponse
    from ohsandbox.settings import Settings

_CHECK_TIMEOUT_S = 30.0
"""A model answers one word in seconds, but a server at home may have to load the model first."""
_MAX_ANSWER_TOKENS = 64
"""Limit of the answer's tokens. Thinking may use them up, but a truncated answer also proves key and model."""
LIKENESS = 0.75
"""Smallest similarity of a name to a listed one to count as a typo, as `claude-sonet-4-5`."""
_PROVIDERS_FILE = "provider_endpoints_support_backup.json"
"""The table of providers in litellm 1.106."""
_KINDS = ("chat", "responses", "completion")


def try_model(settings: Settings) -> None:
    """Ask the model for one word, once; success is remembered.

    Raises:
        ModelError: no answer; the subclass says why.
        UsageError: no model is named, or its key is missing.
    """
    _ask(settings, "Answer with one word: ready.")
    remember_model(str(settings.model), settings.base_url)


_READY_TOOL = {
    "type": "function",
    "function": {
        "name": "ready",
        "description": "Says that you can call tools.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def _ask(settings: Settings, words: str, *tools: dict[str, Any], **parameters: Any) -> ChatResponse:
    changes = {
        "num_retries": 0,
        "timeout_s": _CHECK_TIMEOUT_S,
        "total_timeout_s": _CHECK_TIMEOUT_S,
        "stream": False,
        **parameters,
    }
    config = settings.llm_config()
    tokens = min(config.max_output_tokens or _MAX_ANSWER_TOKENS, _MAX_ANSWER_TOKENS)
    model = open_model(config.model_copy(update={**changes, "max_output_tokens": tokens}))
    try:
        return model.send([{"role": "user", "content": words}], tools)
    finally:
        if isinstance(model, LLM):
            model.close()


def calls_tools(settings: Settings) -> bool | None:
    """Return whether the model supports the provider's tool calls, tried once if litellm's list does not say.

    False if its server refuses tools. None if the list knows, or the model gave another answer; its abilities are
    then determined during the run.
    """
    model = settings.model or ""
    provider, _, name = model.partition("/")
    entry = {} if is_offline(model) else model_list().get(model) or model_entry(name, provider) or {}
    if is_offline(model) or entry.get("supports_function_calling") is not None:
        return None
    try:
        answer = _ask(settings, "Call the tool `ready`.", _READY_TOOL, native_tool_calling=True)
    except OhsandboxError as error:
        return False if isinstance(error, ModelRequestError) and "tool" in str(error).lower() else None
    return True if answer.message.tool_calls else None


def check_model_name(settings: Settings) -> str:
    """Raise if the model is unknown; called before a sandbox is started.

    A name on litellm's list, or one that passed before, needs no request. For any other the provider's own
    list is requested; if that lacks the name, the model is asked for one word. Returns a warning for the person if
    nothing could be determined, else "".

    Raises:
        ModelNotFoundError: there is no such model or provider; the message suggests the nearest name.
        ModelAuthenticationError: the provider that was asked refuses the key.
    """
    model = settings.model or ""
    provider, _, name = model.partition("/")
    if is_offline(model) or settings.custom_llm_provider or _is_known(settings):
        return ""
    config = settings.llm_config()
    from ohsandbox.llm.direct_provider import served_models  # noqa: PLC0415 - slow: loads httpx and the model's client

    served = None
    try:
        served = served_models(config, provider)
        if name not in (served or ()):
            try_model(settings)
    except (ModelNotFoundError, ModelAuthenticationError) as error:
        raise with_suggestion(error, model, [f"{provider}/{name}" for name in served or ()]) from None
    except ModelRequestError:  # it knows the model, and does not take so small a request
        pass
    except OhsandboxError:  # whatever else it is, the run meets it and has its retries
        suggestion = likely_typo(settings)
        return f"Model {model!r} is not on litellm's list. {suggestion}" if suggestion else ""
    remember_model(model, settings.base_url)
    return ""


def _is_known(settings: Settings) -> bool:
    model = str(settings.model)
    return (settings.base_url is None and is_listed(model)) or is_remembered_model(model, settings.base_url)


def likely_typo(settings: Settings) -> str:
    """Return the listed name that the settings' model may be a typo of; "" if the name looks right."""
    model = settings.model or ""
    if is_offline(model) or settings.base_url or settings.custom_llm_provider or is_listed(model):
        return ""
    provider, slash, _ = model.partition("/")
    if slash and provider not in providers():
        return _meant(model).strip() or f"Provider {provider!r} is unknown."
    near = nearest(model, _models_like(model), likeness=LIKENESS)
    return f"Did you mean {near!r}?" if near else ""


def with_suggestion(error: ModelError, model: str, served: Sequence[str] = ()) -> ModelError:
    """Add the nearest name, of those its server lists or else of all, to the error of a model that was not found.

    Any other error is returned unchanged.
    """
    if not isinstance(error, ModelNotFoundError):
        return error
    return type(error)(f"{error}{did_you_mean(model, served) or _meant(model)}")


def _meant(model: str) -> str:
    provider, slash, name = model.partition("/")
    if not slash or provider in providers():
        return did_you_mean(model, _models_like(model))
    near = nearest(provider, providers())
    return f" Did you mean '{near}/{name}'?" if near else ""


def is_listed(model: str) -> bool:
    """Return whether litellm's list has the model."""
    provider, slash, name = model.partition("/")
    return model in model_list() or bool(slash and model_entry(name, provider))


def _models_like(model: str) -> list[str]:
    """Return the listed models of the same provider, with our names; all of them for a name without a provider."""
    provider, slash, _ = model.partition("/")
    return models_of(provider) if slash else [name for name in model_list() if "/" not in name]


def models_of(provider: str) -> list[str]:
    """Return a provider's chat models as provider/name, in the list's order."""
    return [
        name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        for name, entry in model_list().items()
        if entry.get("litellm_provider") == provider and entry.get("mode") in _KINDS
    ]


@functools.cache
def providers() -> frozenset[str]:
    """Return the providers in litellm's tables."""
    names = {str(entry.get("litellm_provider")) for entry in model_list().values()}
    names |= {name.partition("/")[0] for name in model_list() if "/" in name}
    spec = importlib.util.find_spec("litellm")  # of a top-level package this imports nothing
    if spec is not None and spec.origin is not None:
        try:
            table = load_json(Path(spec.origin).with_name(_PROVIDERS_FILE).read_bytes())
            names |= set(table["providers"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
    return frozenset(names)
