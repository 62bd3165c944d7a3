"""The commands that set ohsandbox up: `config`, `init`, `trust`. What one does is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from ohsandbox.cli.options import AsJson, SettingsFile
from ohsandbox.cli.typer_options import argument, command, new_app

config = new_app(
    "config",
    help="Show and change the settings.",
    epilog="NAME is a setting, or a key in one: model, output.max_chars, secrets.GH_TOKEN. Flags stand above "
    "environment variables, those above a project's file, that above the settings file.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the setting.")]


@config.callback(invoke_without_command=True)
def _config(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@command(config, "list")
def list_(*, as_json: AsJson = False, settings: SettingsFile = None) -> int:
    """List every setting with its value and where the value comes from. Keys are not shown."""
    from ohsandbox.cli.config import list_settings

    return list_settings(settings, as_json=as_json)


@command(config)
def get(name: Name, *, settings: SettingsFile = None) -> int:
    """Print the value of a setting."""
    from ohsandbox.cli.config import get_setting

    return get_setting(settings, name)


@command(config, "set")
def set_(
    name: Name,
    value: str | None = argument("Its value: text, number or JSON. An api_key is asked for.", "VALUE"),
    *,
    settings: SettingsFile = None,
) -> int:
    """Check a value and write it to the settings file; the file's other content is kept."""
    from ohsandbox.cli.config import set_setting

    return set_setting(name, value, settings)


@command(config)
def unset(name: Name, *, settings: SettingsFile = None) -> int:
    """Remove a setting from the settings file."""
    from ohsandbox.cli.config import unset_setting

    return unset_setting(name, settings)


@command(config)
def path(*, settings: SettingsFile = None) -> int:
    """Print the path of the settings file, whether it exists or not."""
    from ohsandbox.settings import Settings

    typer.echo(str(settings or Settings.file_in_use()))
    return 0


@command(config)
def edit(*, settings: SettingsFile = None) -> int:
    """Open the settings in $VISUAL or $EDITOR; they are written once they are valid."""
    from ohsandbox.cli.config import edit_file

    return edit_file(settings)
