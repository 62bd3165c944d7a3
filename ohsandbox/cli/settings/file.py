"""The settings file that a command changes: which it is, whether new values are valid, what overrides them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.text import say
from ohsandbox.errors import UsageError
from ohsandbox.settings import SDK_FILE_NAME, Settings
from ohsandbox.settings_file import read_object

if TYPE_CHECKING:
    from pathlib import Path


def validated_settings(values: dict[str, Any], where: str) -> Settings:
    """Validate these values and return them as settings.

    Raises:
        UsageError: a value is unknown or invalid; the message starts with `where`.
    """
    try:
        return Settings(**values)
    except UsageError as error:
        raise UsageError(f"{where}{str(error).removeprefix('Settings(...)')}") from None


def file_to_change(file: Path | None) -> tuple[Path, dict[str, Any]]:
    """Return the settings file and its values. If they come from OpenHands' file, they are written to our own file."""
    path = file or Settings.default_path()
    values = read_object(path, required=False)
    if file is None and not path.exists() and (sdk_file := Settings.file_in_use()) != path:
        values = {key: value for key, value in read_object(sdk_file).items() if key in Settings.model_fields}
        values = {key: value for key, value in values.items() if value is not None}
        say(f"Settings were read from {sdk_file} so far ({SDK_FILE_NAME}); they are copied to {path}.")
    return path, values


def warn_if_overridden(name: str) -> None:
    """Warn if an environment variable overrides the file's value."""
    variable = Settings.variables().get(name)
    if variable and os.environ.get(variable):
        say(f"warning: environment variable {variable} stands above it. `unset {variable}` to use the file's.")
