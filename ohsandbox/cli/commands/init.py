"""`ohsandbox init`: ask once for provider, key, model, image and network; check, show and write the answers."""

# ruff: noqa: T201 - it talks to a person
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

from ohsandbox.cli.prompts.prompt import ask, ask_with_default_yes, person_present
from ohsandbox.cli.rendering.tables import print_message
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.cli.settings.file import file_to_change, warn_if_overridden
from ohsandbox.cli.settings.model import key_name
from ohsandbox.cli.settings.model_setup import Answers, model_answers, values_to_write, write_settings
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.key_store import is_reference, planned_reference
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.runtime_settings import NetworkMode
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from ohsandbox.cli.options.per_command import InitOptions


def init(how: InitOptions) -> int:
    """Ask for what no option says, check it, and write the settings; nothing is written before all is known.

    Raises:
        UsageError: without a terminal an option is missing, or a value is wrong.
        ModelError: without a terminal, the model does not answer.
    """
    person = person_present() and not how.yes
    path, values = file_to_change(how.settings)
    if person:
        print_message(f"ohsandbox keeps its settings in {path}. Ctrl-C leaves all as it is.")
    answers = model_answers(how, values, person=person)
    image = how.image or (_ask_image(values) if person else None)
    network = how.network or (_ask_network(values) if person else None)
    written = values_to_write(values, answers, image, network)
    print(f"{safe_line(path)}:\n{_shown(written, answers)}")
    if person and not ask_with_default_yes("Write it?"):
        print("Nothing is written.")
        return 1
    if not person and not how.yes:
        raise UsageError("This question needs a terminal. Use --yes to write this.")
    write_settings(path, written, answers)
    _warn_without_engine()
    for name in ("model", "api_key", "base_url", "image", "network"):
        warn_if_overridden(name)
    print('Try it: ohsandbox run --workspace . "Explain what this project does"')
    return 0


def _ask_image(values: dict[str, Any]) -> str:
    default = values.get("image") or Settings().image
    return ask(f"Image of the sandbox, any with a POSIX shell [{default}]: ") or str(default)


def _ask_network(values: dict[str, Any]) -> NetworkMode:
    modes: dict[object, NetworkMode] = {mode: mode for mode in get_args(NetworkMode)}
    default = modes.get(values.get("network"), "allowlist")
    print_message(
        "It may reach nothing (none), package registries and hosts that you allow (allowlist), or all (open)."
    )
    while True:
        answer = ask(f"Network of the sandbox, none, allowlist or open [{default}]: ").lower()
        if (mode := modes.get(answer or default)) is not None:
            return mode
        print_message(f"{answer!r} is neither none nor allowlist nor open.")


def _warn_without_engine() -> None:
    try:
        with open_inventory():
            pass
    except OhsandboxError as error:
        say(f"{error} `ohsandbox doctor` looks at it.")


def _shown(written: dict[str, Any], answers: Answers) -> str:
    """Return the file as JSON that is safe to print, with the place of the key and never the key."""
    shown = {"model": written["model"], **written}
    literal = shown.get("api_key")
    if isinstance(literal, str) and not is_reference(literal):
        shown["api_key"] = "***"
    if answers.key is not None:
        shown["api_key"] = planned_reference(key_name(answers.model, written.get("base_url")))
    return "\n".join(safe_line(line, limit_chars=500) for line in json.dumps(shown, indent=2).splitlines())
