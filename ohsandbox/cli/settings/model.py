"""The model and the key of a command: from settings, environment, and the person at the terminal."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ohsandbox.cli.rendering.text import say
from ohsandbox.key_store import is_reference
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.settings import Settings, without_user

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.settings import SettingsLayer


MODEL_VARIABLE = Settings.variables()["model"]
KEY_VARIABLE = Settings.variables()["api_key"]

_PROVIDER_VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "cohere": ("COHERE_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"),
    "xai": ("XAI_API_KEY",),
}
"""Where litellm 1.106 looks for a provider's key. Listed here so that a missing key is found before an image is
pulled and without the seconds that importing litellm takes; a provider that is not listed is left to litellm."""
_BARE_NAMES = {"gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "claude": "anthropic"}
ADDRESS = re.compile(r"https?://[^\s/?#]+\S*", re.IGNORECASE)
"""An address that a client can use; any other would be retried for a minute and then reported as unreachable."""
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_KEY_NAME_CHARS = 64
_OF_ONE_MODEL = ("price", "context_tokens", "native_tool_calling", "vision", "prompt_cache")
_OF_ONE_PROVIDER = ("api_key", "base_url", "api_version", "custom_llm_provider")
SERVER_NAME = "base_url"
"""Name of the file, beside the log, with the address of the model's server."""
_FLAG = "the command line"
"""The source that `Settings.sources` gives for a flag."""
_FILE = "settings file"
"""How the source of a value of the file begins in `Settings.sources`."""


def read_settings(file: Path | None, *, project: SettingsLayer | None = None, **flags: Any) -> Settings:
    """Call `Settings.load`, and print its remarks about the file on stderr."""
    settings = Settings.load(file, project=project, **flags)
    for warning in settings.warnings:
        say(f"warning: {warning}")
    return settings


def with_model_of(settings: Settings, model: str | None) -> Settings:
    """Return the settings with another model, such as a resumed conversation's; None keeps the settings' model.

    Options of the settings' own model are dropped, and another provider does not get its key.
    """
    if model in {None, settings.model}:
        return settings
    if settings.model is None:
        return settings.model_copy(update={"model": model})
    others = settings_of_one(settings.model, other=str(model))
    return settings.model_copy(update={"model": model, **dict.fromkeys(others)})


def keep_server(directory: Path, settings: Settings) -> None:
    """Save the address that was given for one conversation with it, for a resume."""
    if settings.base_url and settings.sources.get("base_url") == _FLAG:
        write_atomically(directory / SERVER_NAME, f"{settings.base_url}\n".encode())


def with_kept_server(settings: Settings, directory: Path) -> Settings:
    """Return the settings with the saved address, if they have none."""
    if settings.base_url is not None:
        return settings
    try:
        address = read_regular(directory / SERVER_NAME).decode("utf-8", "replace").strip()
    except OSError:
        return settings
    if ADDRESS.fullmatch(address) is None:
        return settings
    say(f"The model is asked at {without_user(address)}, as before; --base-url names another server.")
    return settings.with_flags(base_url=address)


def without_key_of_another(settings: Settings, file: Path | None) -> Settings:
    """Drop the file's options for its own model and provider if a flag or variable names another model.

    A base URL from a flag or variable is used with any key.
    """
    own = Settings.of_file(file).model
    sources = settings.sources
    if own is None or settings.model in {None, own} or not _is_of_file(sources.get("base_url", _FILE)):
        return settings
    names = settings_of_one(own, other=str(settings.model))
    return settings.model_copy(update={name: None for name in names if _is_of_file(sources.get(name, ""))})


def _is_of_file(source: str) -> bool:
    return source.startswith(_FILE)


def settings_of_one(model: str, *, other: str) -> list[str]:
    """Return the settings that belong to a model; those of its provider only if the other model's provider differs."""
    return [*_OF_ONE_MODEL, *(() if provider_of(model) == provider_of(other) else _OF_ONE_PROVIDER)]


def key_source(settings: Settings) -> str | None:
    """Describe where the key comes from; None if the provider needs one and none was found."""
    model = settings.model or ""
    if is_offline(model):
        return "none needed"
    if settings.api_key is not None and (key := settings.api_key.get_secret_value()).strip():
        if key == os.environ.get(KEY_VARIABLE):
            return named_variable(KEY_VARIABLE)
        return f"{key}, by the settings" if is_reference(key) else "settings"
    variables = provider_variables(model)
    if variable := next((name for name in (KEY_VARIABLE, *variables) if os.environ.get(name)), None):
        return named_variable(variable)
    return "none given; the server may need none" if settings.base_url or not variables else None


def key_name(model: str | None, base_url: str | None = None) -> str:
    """Return the name under which the key of a model's provider, or of the server at base_url, is stored."""
    if base_url:
        return _NOT_OF_A_NAME.sub("_", urlsplit(base_url).netloc.rpartition("@")[2])[:_MAX_KEY_NAME_CHARS].strip("_.-")
    return provider_of(model or "") or "default"


def named_variable(variable: str) -> str:
    """Return how messages name an environment variable."""
    return f"environment variable {variable}"


def provider_variables(model: str) -> tuple[str, ...]:
    """Return the environment variables that hold the key for the model's provider; none if unknown."""
    return _PROVIDER_VARIABLES.get(provider_of(model), ())


def is_offline(model: str) -> bool:
    """Return whether the model needs no server: it follows a script or a recording."""
    return model.startswith(("scripted:", "replay:"))


def provider_of(model: str) -> str:
    """Return the provider in a model's name; "" if it has none."""
    provider, slash, _ = model.partition("/")
    return provider if slash else next((owner for start, owner in _BARE_NAMES.items() if model.startswith(start)), "")
