"""Which model is asked, and with which key: settings, environment, and the person at the terminal."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ohsandbox.cli.rendering.text import say
from ohsandbox.key_store import is_reference
from ohsandbox.private_files import write_atomically
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
"""Where litellm 1.106 looks for a provider's key. Known here too, so that a missing one is found before an image is
pulled and without the seconds that importing litellm takes; a provider that is not listed is left to litellm."""
_BARE_NAMES = {"gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "claude": "anthropic"}
ADDRESS = re.compile(r"https?://[^\s/?#]+\S*", re.IGNORECASE)
"""What a client can ask; anything else is tried for a minute, and then called unreachable."""
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_KEY_NAME_CHARS = 64
_OF_ONE_MODEL = ("price", "context_tokens", "native_tool_calling", "vision", "prompt_cache")
_OF_ONE_PROVIDER = ("api_key", "base_url", "api_version", "custom_llm_provider")
SERVER_NAME = "base_url"
"""Beside the log."""
_FLAG = "the command line"
"""What `Settings.sources` says of a flag."""
_FILE = "settings file"
"""How `Settings.sources` begins for a value of the file."""


def read_settings(file: Path | None, *, project: SettingsLayer | None = None, **flags: Any) -> Settings:
    """`Settings.load`, with what a person should be told of the file as lines on stderr."""
    settings = Settings.load(file, project=project, **flags)
    for warning in settings.warnings:
        say(f"warning: {warning}")
    return settings


def with_model_of(settings: Settings, model: str | None) -> Settings:
    """The settings with another model, as of a conversation that asked it before; None is that of the settings.

    What the settings say of their own model does not hold for another, and another provider is not given their key.
    """
    if model in {None, settings.model}:
        return settings
    if settings.model is None:
        return settings.model_copy(update={"model": model})
    others = settings_of_one(settings.model, other=str(model))
    return settings.model_copy(update={"model": model, **dict.fromkeys(others)})


def keep_server(directory: Path, settings: Settings) -> None:
    """Keep with a conversation the address that was given for it alone, for who resumes it."""
    if settings.base_url and settings.sources.get("base_url") == _FLAG:
        write_atomically(directory / SERVER_NAME, f"{settings.base_url}\n".encode())


def with_kept_server(settings: Settings, directory: Path) -> Settings:
    """The settings with the address that was kept, where they have none."""
    if settings.base_url is not None:
        return settings
    try:
        kept = (directory / SERVER_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return settings
    if ADDRESS.fullmatch(kept) is None:
        return settings
    say(f"The model is asked at {without_user(kept)}, as before; --base-url names another server.")
    return settings.with_flags(base_url=kept)


def without_key_of_another(settings: Settings, file: Path | None) -> Settings:
    """The settings without what the file says of its own model and provider, where a flag or variable names another.

    A base URL of a flag or variable is taken with any key.
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
    """The settings that were made for a model, or for its provider where the other one has another."""
    return [*_OF_ONE_MODEL, *(() if provider_of(model) == provider_of(other) else _OF_ONE_PROVIDER)]


def key_source(settings: Settings) -> str | None:
    """Where the key comes from, in words; None where the provider needs one and none was found."""
    model = settings.model or ""
    if is_offline(model):
        return "none needed"
    if settings.api_key is not None and (key := settings.api_key.get_secret_value()).strip():
        if key == os.environ.get(KEY_VARIABLE):
            return named_variable(KEY_VARIABLE)
        return f"{key}, by the settings" if is_reference(key) else "settings"
    variables = provider_variables(model)
    if found := next((name for name in (KEY_VARIABLE, *variables) if os.environ.get(name)), None):
        return named_variable(found)
    return "none given; the server may need none" if settings.base_url or not variables else None


def key_name(model: str | None, base_url: str | None = None) -> str:
    """The name under which the key of a model's provider is kept, or of the server that base_url names."""
    if base_url:
        return _NOT_OF_A_NAME.sub("_", urlsplit(base_url).netloc.rpartition("@")[2])[:_MAX_KEY_NAME_CHARS].strip("_.-")
    return provider_of(model or "") or "default"


def named_variable(variable: str) -> str:
    """How an environment variable is told."""
    return f"environment variable {variable}"


def provider_variables(model: str) -> tuple[str, ...]:
    """The environment variables that hold the key for the model's provider; none where that is not known."""
    return _PROVIDER_VARIABLES.get(provider_of(model), ())


def is_offline(model: str) -> bool:
    """Whether no server is asked: it follows a script, or a recording."""
    return model.startswith(("scripted:", "replay:"))


def provider_of(model: str) -> str:
    """The provider that a model's name says; "" where it says none."""
    provider, slash, _ = model.partition("/")
    return provider if slash else next((owner for start, owner in _BARE_NAMES.items() if model.startswith(start)), "")
