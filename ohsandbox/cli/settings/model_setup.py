"""The questions for a model and its key, which `ohsandbox init` asks, and a run that lacks them."""

# ruff: noqa: T201 - it talks to a person
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.options.per_command import InitOptions
from ohsandbox.cli.prompts.prompt import ask, ask_secret, ask_with_default_yes, person_present
from ohsandbox.cli.rendering.tables import print_message
from ohsandbox.cli.rendering.text import hide, safe_line
from ohsandbox.cli.settings.file import file_to_change, validated_settings
from ohsandbox.cli.settings.model import ADDRESS, is_offline, key_name, provider_variables
from ohsandbox.cli.settings.model_check import calls_tools, models_of, providers, try_model, with_suggestion
from ohsandbox.errors import ModelError, OhsandboxError, UsageError
from ohsandbox.key_store import is_reference, look_up_key, store_key
from ohsandbox.llm import ModelAuthenticationError, ModelNotFoundError
from ohsandbox.secrets import Secrets
from ohsandbox.settings import Settings
from ohsandbox.settings_file import write_object
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

USUAL_MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5.1",
    "gemini": "gemini-2.5-pro",
    "deepseek": "deepseek-chat",
    "mistral": "devstral-medium-latest",
    "groq": "openai/gpt-oss-120b",
    "xai": "grok-4.5",
}
"""Default model of each provider. All of them call tools well and are on litellm's list, which a test checks."""
_OWN_SERVER = "server"
"""The word, in place of a provider, for an OpenAI-compatible server whose address is asked for."""
MAX_NAMED = 40
"""Largest number of a provider's models that `?` lists."""


class Answers(NamedTuple):
    """The answers that init has so far; None means not asked yet."""

    provider: str | None = None
    base_url: str | None = None
    key: str | None = None
    """A key that was typed or piped in; it is stored at the end."""
    reference: str | None = None
    """Where the key is stored, if no key itself was given."""
    model: str | None = None
    """The model with its provider, as in openai/gpt-5.1."""
    native_tools: bool | None = None
    """Whether the model calls tools, if that had to be tried."""
    is_checked: bool = False
    """True if the model answered, or the person keeps it unchecked."""

    def settings(self, values: dict[str, Any]) -> Settings:
        """Return the settings that will be written, with the key itself for the check."""
        answered = {"model": self.model, "base_url": self.base_url, "api_key": self.key or self.reference}
        other_values = {name: value for name, value in values.items() if name not in answered}
        return validated_settings(
            other_values | {name: value for name, value in answered.items() if value is not None}, "The settings"
        )


def model_answers(how: InitOptions, values: dict[str, Any], *, person: bool) -> Answers:
    """Return provider, key and model that answered a request, or that the person keeps unchecked."""
    answers = _given(how)
    while True:
        if person:
            answers = _asked(answers, values)
        if not answers.model:
            raise UsageError("No model is named. Use --model NAME with --provider, or --model PROVIDER/NAME.")
        settings = answers.settings(values)
        if answers.key:
            hide(Secrets({}, hidden={"api_key": answers.key}).masker)
        if how.no_check or is_offline(answers.model):
            return answers
        answers = _checked(settings, answers, person=person)
        if answers.is_checked:
            return answers


def _checked(settings: Settings, answers: Answers, *, person: bool) -> Answers:
    """Check the answers; return them, without those that must be asked again."""
    if person:
        print(f"Asking {safe_line(answers.model)} for one word ...", end=" ", flush=True)
    try:
        try_model(settings)
    except OhsandboxError as error:
        explained: OhsandboxError = error
        if isinstance(error, ModelError) and settings.base_url is None:
            explained = with_suggestion(error, str(answers.model))
        if not person:
            raise explained from None
        print("no.")
        print_message(explained)
        if isinstance(error, ModelAuthenticationError):
            return answers._replace(key=None, reference=None)
        if isinstance(error, ModelNotFoundError) and answers.provider in providers() | {_OWN_SERVER}:
            return answers._replace(model=None)
        return _after_no_answer(answers)
    calls = calls_tools(settings)
    if person:
        more = {True: ", and calls tools", False: "; it takes no tools, so its calls are written as text"}
        print(f"it answers{'' if calls is None else more[calls]}.")
    return answers._replace(native_tools=calls, is_checked=True)


def _after_no_answer(answers: Answers) -> Answers:
    while True:
        choice = ask("Enter tries again, k keeps it unchecked, b begins with the provider again: ").lower()
        if choice in {"", "k", "b"}:
            return {"": answers, "k": answers._replace(is_checked=True), "b": Answers()}[choice]


def _given(options: InitOptions) -> Answers:
    """Return the answers that the options give."""
    provider, base_url = options.provider, options.base_url
    if provider is not None:
        provider, base_url = _provider(provider, base_url)
    model = options.model
    if model and provider and not (model.startswith(f"{provider}/") or is_offline(model)):
        model = _with_provider(model, provider)
    if model is None and provider is not None and options.yes and provider in USUAL_MODELS and not base_url:
        model = _with_provider(USUAL_MODELS[provider], provider)
    if provider is None and model:
        provider = _OWN_SERVER if base_url else model.partition("/")[0] if "/" in model else None
    key = reference = None
    if options.key_from == "-":
        key = sys.stdin.readline().strip()
        if not key:
            raise UsageError("--key-from is '-' and stdin is empty. Pipe the key in.")
    elif options.key_from is not None:
        if not is_reference(options.key_from):
            raise UsageError("--key-from says where the key is: env:NAME, file:PATH, keyring:NAME, or - for stdin.")
        look_up_key(options.key_from)
        reference = options.key_from
    elif options.yes and model:
        reference = _reference_of_environment(model)
    return Answers(provider, base_url, key, reference, model)


def _asked(answers: Answers, values: dict[str, Any]) -> Answers:
    """Ask the person for the missing answers."""
    if answers.provider is None:
        provider, base_url = _ask_provider(values)
        answers = answers._replace(provider=provider, base_url=answers.base_url or base_url)
    provider = str(answers.provider)
    if answers.key is None and answers.reference is None:
        key_answer = _ask_key(provider, has_server=bool(answers.base_url))
        answers = answers._replace(key=key_answer.get("key"), reference=key_answer.get("reference"))
    if answers.model is None:
        answers = answers._replace(model=_ask_model(provider, has_server=bool(answers.base_url)))
    return answers


def _ask_provider(values: dict[str, Any]) -> tuple[str, str | None]:
    usual = [*USUAL_MODELS, "openrouter", "ollama", _OWN_SERVER]
    provider_before = str(values.get("model") or "").partition("/")[0]
    with_key = next((name for name in USUAL_MODELS if _reference_of_environment(f"{name}/")), "")
    default = provider_before if provider_before in providers() else with_key or usual[0]
    print_message(f"Providers: {', '.join(usual)} (OpenAI-compatible, of your own), and all others that litellm knows.")
    while True:
        try:
            return _provider(ask(f"Provider [{default}]: ") or default, None)
        except UsageError as error:
            print_message(error)


def _provider(word: str, base_url: str | None) -> tuple[str, str | None]:
    """Return provider and address for the given word; for `server`, ask for the address."""
    if ADDRESS.fullmatch(word):
        return _OWN_SERVER, word
    if word == _OWN_SERVER:
        while not base_url or ADDRESS.fullmatch(base_url) is None:
            if not person_present():
                raise UsageError("--provider server needs --base-url URL, as in http://localhost:8000/v1.")
            base_url = ask("Its address, as in http://localhost:8000/v1: ")
        return _OWN_SERVER, base_url
    if word not in providers():
        raise UsageError(f"Unknown provider {word!r}.{did_you_mean(word, providers())}")
    return word, base_url


def _ask_key(provider: str, *, has_server: bool) -> dict[str, str | None]:
    """Return `key` or `reference`; neither if the provider needs no key or takes its credentials from elsewhere."""
    reference = None if has_server else _reference_of_environment(f"{provider}/")
    if reference and ask_with_default_yes(f"Use the key in the environment variable {reference.removeprefix('env:')}?"):
        return {"reference": reference}
    needs = bool(provider_variables(f"{provider}/")) and not has_server
    while True:
        key = ask_secret(f"Key for {provider} (not shown{'' if needs else '; empty for none'}): ")
        if key or not needs:
            return {"key": key or None}
        print("The key is empty. Ctrl-C leaves.")


def _ask_model(provider: str, *, has_server: bool) -> str:
    usual = "" if has_server else USUAL_MODELS.get(provider, "")
    hint = f" [{usual}]" if usual else ""
    while True:
        answer = ask(f"Model{hint}, ? lists what is known: ") or usual
        if answer == "?":
            models = [] if has_server else models_of(provider)
            more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
            print_message(
                (", ".join(name.partition("/")[2] for name in models[:MAX_NAMED]) or "No list has them.") + more
            )
        elif answer:
            return _with_provider(answer, provider)


def _with_provider(model: str, provider: str) -> str:
    """Return the model's name as litellm expects it; the user's own server uses OpenAI's format."""
    prefix = "openai" if provider == _OWN_SERVER else provider
    return model if model.startswith(f"{prefix}/") and provider != "openrouter" else f"{prefix}/{model}"


def _reference_of_environment(model: str) -> str | None:
    return next((f"env:{name}" for name in provider_variables(model) if os.environ.get(name)), None)


def values_to_write(values: dict[str, Any], answers: Answers, image: str | None, network: str | None) -> dict[str, Any]:
    """Return the file's new values without the key's place. A default is written only if the file had that key."""
    defaults = Settings()
    written = {name: value for name, value in values.items() if name not in {"api_key", "base_url"}}
    written["model"] = answers.model
    if answers.model != values.get("model"):
        written.pop("native_tool_calling", None)
    if answers.native_tools is not None:
        written["native_tool_calling"] = answers.native_tools
    if answers.base_url is not None:
        written["base_url"] = answers.base_url
    if answers.reference is not None:
        written["api_key"] = answers.reference
    new_values = {"image": image, "network": None if network == "allowlist" and "network" not in values else network}
    written |= {
        name: value
        for name, value in new_values.items()
        if value is not None and (name in values or value != getattr(defaults, name))
    }
    validated_settings(written, "The settings")
    return written


def write_settings(path: Path, written: dict[str, Any], answers: Answers) -> None:
    """Write the settings file, and the typed key, if there is one, to the key store."""
    if answers.key is not None:
        stored = store_key(key_name(answers.model, written.get("base_url")), answers.key)
        written = {**written, "api_key": stored.reference}
        print_message(f"The key is in {stored.place}.")
    write_object(path, written)
    print_message(f"{path} is written.")


def ask_for_model(settings: Settings, file: Path | None) -> Settings:
    """Ask for a model and its key as `init` does; save them if the person agrees. Return the new settings."""
    path, values = file_to_change(file)
    print_message("No model is set up yet. Ctrl-C leaves; `ohsandbox demo` shows a run that needs none.")
    answers = model_answers(InitOptions(settings=file), values, person=True)
    if ask_with_default_yes(f"Save this in {safe_line(path)}?"):
        write_settings(path, values_to_write(values, answers, None, None), answers)
    answered = {"model": answers.model, "base_url": answers.base_url, "api_key": answers.key or answers.reference}
    return settings.with_flags(**answered, native_tool_calling=answers.native_tools)


def ask_for_key(settings: Settings, file: Path | None) -> Settings:
    """Ask for a key, which the model must accept; save it if the person agrees. Return the new settings.

    Raises:
        UsageError: none was typed.
    """
    while True:
        key = ask_secret(f"Key for {settings.model} (not shown): ")
        if not key:
            raise UsageError(f"No key was given for model {settings.model!r}. Type one, or use --key-from.")
        keyed = settings.with_flags(api_key=key)
        hide(Secrets({}, hidden={"api_key": key}).masker)
        print(f"Asking {safe_line(settings.model)} for one word ...", flush=True)
        try:
            try_model(keyed)
        except ModelAuthenticationError as error:
            print_message(error)
            continue
        except OhsandboxError as error:
            print_message(f"{error} The key is not saved.")
            return keyed
        _offer_to_save(settings, key, file)
        return keyed


def _offer_to_save(settings: Settings, key: str, file: Path | None) -> None:
    """Ask whether to save the key; if the file names no model yet, the model is saved as well.

    The file's model may be another provider's: then the file stays, and the key is found by its provider's name.
    """
    path, values = file_to_change(file)
    model = str(settings.model)
    is_first = values.get("model") is None
    if not ask_with_default_yes(
        f"The model answers. Save the key{f', and {model} as your model' if is_first else ''}?"
    ):
        return
    if is_first or (key_name(values["model"]) == key_name(model) and not values.get("base_url")):
        write_settings(path, {**values, "model": values.get("model") or model}, Answers(key=key, model=model))
    else:
        print_message(f"The key is in {store_key(key_name(model), key).place}.")
