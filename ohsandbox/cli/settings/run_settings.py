"""The settings of a run: file, project, environment and command-line options combined."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import hide, say
from ohsandbox.cli.settings.model import (
    ADDRESS,
    KEY_VARIABLE,
    MODEL_VARIABLE,
    key_name,
    key_source,
    named_variable,
    provider_of,
    provider_variables,
    read_settings,
    without_key_of_another,
)
from ohsandbox.errors import UsageError
from ohsandbox.key_store import stored_reference
from ohsandbox.secrets import Secrets, host_keys, parse_flags
from ohsandbox.settings import Settings, addresses_of_provider, without_user

if TYPE_CHECKING:
    from ohsandbox.cli.options.per_command import RunOptions
    from ohsandbox.cli.settings.project import UsedProject

_ASKED = ("api_key", "base_url", "native_tool_calling")
"""Settings that a person may have been asked for, besides the model."""
_MAX_INSTRUCTIONS_BYTES = 64 * 1024
"""Largest size of the instructions: about 16,000 tokens, which every request carries."""


def settings_of(what: RunOptions, project: UsedProject | None = None) -> Settings:
    """Return the settings combined with the project and the options; warn of a key among these."""
    if what.api_key:
        advice = "Prefer the settings or the environment."
        say(f"warning: --api-key is visible to every user of this machine (`ps`). {advice}")
    names = "model", "api_key", "base_url", "max_iterations", "max_time_s", "max_tokens", "max_cost_usd", "price"
    asking = "confirm", "skill_servers"
    flag_values = {name: getattr(what, name) for name in (*names, *asking)}
    settings = read_settings(what.settings, project=project.layer if project else None, **flag_values)
    settings = without_key_of_another(settings, what.settings)
    if what.mcp_config is not None or settings.mcp_config:
        settings = with_mcp_file(settings, what.mcp_config)
    return settings.with_flags(
        tools=settings.tools.switched(on=what.enable or (), off=what.disable or ()),
        secrets=settings.secrets | parse_flags(what.secrets or ()) or None,
        instructions=None if what.instructions is None else str(what.instructions),
    )


def with_mcp_file(settings: Settings, file: Path | None) -> Settings:
    """Add the servers of a file to the settings; a server of the same name replaces the settings' own.

    Raises:
        MCPConfigError: the settings' servers or the file's are invalid; the message names the file.
    """
    from ohsandbox.mcp import MCPConfig, MCPConfigError, read_mcp_config  # noqa: PLC0415 - few runs have servers
    from ohsandbox.mcp.config import check_server_names, merged_configs  # noqa: PLC0415 - few runs have servers

    try:
        config = MCPConfig.parse(settings.mcp_config or {})
    except MCPConfigError as error:
        source = settings.sources["mcpServers" if settings.mcpServers else "mcp"]
        raise MCPConfigError(f"{source[0].upper()}{source[1:]}: {error} Correct the file.") from error
    if file is None:
        return settings
    try:
        added = read_mcp_config(file)
    except MCPConfigError as error:
        remedy = "" if "--mcp-config" in str(error) else " Correct the file, or name another with --mcp-config."
        raise type(error)(f"{error}{remedy}") from error
    for name in config.servers.keys() & added.servers.keys():
        say(f"MCP server {name!r} of the settings is replaced by the one in {file}.")
    merged = merged_configs(config, added)
    try:
        check_server_names(merged.servers)
    except MCPConfigError as error:
        raise MCPConfigError(f"The settings' servers and those of {str(file)!r}: {error}") from None
    return settings.with_flags(mcp={}, mcpServers=merged.to_dict()["mcpServers"])


def settings_elsewhere(what: RunOptions, project: UsedProject | None, *, given: Settings) -> Settings:
    """Return the settings for a session's next conversation in another directory, with the project there.

    given are the settings at the session's start: answers given then are not asked for again.
    """
    settings = settings_of(what, project)
    if settings.model not in {None, given.model}:
        return settings
    flag_values = {name: getattr(given, name) for name in _ASKED if getattr(settings, name) is None}
    return settings.model_copy(update={"model": given.model, **flag_values})


def complete_settings(settings: Settings, *, person: bool, file: Path | None = None) -> Settings:
    """Complete the settings with a model and, if the provider needs one, a key. A person is asked for missing ones.

    file is where a key can be saved; None is the default settings file.

    Raises:
        UsageError: something is missing and nobody can be asked, or the setting's variable is not set.
    """
    model = settings.model or os.environ.get(MODEL_VARIABLE) or ""
    if not model and person:
        from ohsandbox.cli.settings.model_setup import ask_for_model  # noqa: PLC0415 - it imports the model's client

        settings = ask_for_model(settings, file)
        model = str(settings.model)
    if not model:
        raise UsageError(
            "No model is named. Run `ohsandbox init`, use --model PROVIDER/MODEL, put "
            f'"model" into {str(file or Settings.default_path())!r}, or set {MODEL_VARIABLE}. `ohsandbox demo` '
            "needs none."
        )
    settings = settings.with_flags(model=model)
    if settings.base_url is not None and ADDRESS.fullmatch(settings.base_url) is None:
        raise UsageError(
            f"Invalid base URL {settings.base_url!r}: expected an address, as in http://localhost:8000/v1."
        )
    source = key_source(settings)
    if source == named_variable(KEY_VARIABLE):
        return settings.with_flags(api_key=os.environ[KEY_VARIABLE])
    if source is not None:
        return settings
    if (stored := stored_reference(key_name(model))) is not None:
        for name, value in addresses_of_provider(provider_of(model)).items():
            where = f"{named_variable(name)}, {without_user(value)!r}"
            say(f"warning: {where}, says where the stored key is sent. `unset {name}`.")
        return settings.with_flags(api_key=stored)
    if person:
        from ohsandbox.cli.settings.model_setup import ask_for_key  # noqa: PLC0415 - it imports the model's client

        return ask_for_key(settings, file)
    variable = provider_variables(model)[0]
    raise UsageError(
        f"No API key for model {model!r}. Set {variable}, run `ohsandbox init`, "
        f'put "api_key": "env:{variable}" into {str(file or Settings.default_path())!r}, or use --api-key.'
    )


def hide_secrets(settings: Settings, secrets: Secrets) -> None:
    """Mask these secrets and keys in all output from now on."""
    key = settings.resolved_api_key()
    hide(secrets.hiding(host_keys() | ({"api_key": key} if key else {})).masker)


def instructions_of(file: str | None) -> list[str]:
    """Return the file's text, labelled; nothing if no file is named."""
    if file is None:
        return []
    subject = f"Instructions file {file!r}"
    try:
        data = Path(file).expanduser().read_bytes()
        text = data.decode().strip()
    except OSError as error:
        raise UsageError(f"{subject} cannot be read: {error.strerror}. Name a text file.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{subject} is not UTF-8 text (byte {error.start}). Convert it.") from None
    if len(data) > _MAX_INSTRUCTIONS_BYTES:
        raise UsageError(f"{subject} has {len(data)} bytes, more than {_MAX_INSTRUCTIONS_BYTES}. Shorten it.")
    return [f"# Instructions of the user\n{text}"] if text else []
