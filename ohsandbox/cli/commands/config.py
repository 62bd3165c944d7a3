"""`ohsandbox config`: show the settings and their sources, change one key of the file, open the file in an editor."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, SecretStr

from ohsandbox import host_programs
from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.prompts.prompt import ask, ask_secret, person_present
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import safe, safe_line, say
from ohsandbox.cli.settings.file import file_to_change, validated_settings, warn_if_overridden
from ohsandbox.cli.settings.model import key_name
from ohsandbox.cli.settings.project import UsedProject, use_project
from ohsandbox.errors import ProgramNotFoundError, UsageError
from ohsandbox.key_store import is_reference, store_key
from ohsandbox.private_files import read_regular
from ohsandbox.settings import ByteSize, Settings, without_user
from ohsandbox.settings_file import object_of, write_object
from ohsandbox.strict_json import load_json
from ohsandbox.text import did_you_mean

SIZES = frozenset(name for name, field in Settings.model_fields.items() if ByteSize in get_args(field.annotation))
"""Settings whose text is stored as it was typed: 2g is clearer than 2147483648."""
HIDDEN = "***"
_SECRET_NAMES = frozenset({"api_key", "env", "headers", "auth", "token", "authorization", "password"})
"""Keys of an MCP server's configuration whose text may contain a secret."""
_IN_QUERY = re.compile(r"((?:^\w+://[^?#\s]*\?|&)[^=&#\s]*=)[^&#\s]+")
"""The values in the query of a server's address: some servers take a token there."""
_SECRET_WORD = re.compile(r"(?i)key|token|secret|passw|passphrase|pwd|pat\b|auth|cred|bearer|header|dsn|\A-[Hpu]\Z")
"""Matches the name of an option, variable or header that holds a secret; short options are -H, -p and -u."""
_RANDOM = re.compile(r"\b(?=[A-Za-z_]*+[0-9])(?=[0-9_]*+[A-Za-z])\w{16,}+")
"""A word that looks like a key or token. A name of that length with a digit in it is hidden as well."""
_EDITORS = ("VISUAL", "EDITOR")


class _Setting(NamedTuple):
    """The current value of a setting and its source."""

    name: str
    value: Any
    """The value as JSON, with secrets hidden."""
    source: str


def load(file: Path | None) -> tuple[Settings, UsedProject | None]:
    """Read the settings that a command uses here, including those of the project file that need no confirmation."""
    project = use_project(SandboxOptions(), file, person=False)
    return Settings.load(file, project=project.layer if project else None), project


def _settings_now(settings: Settings) -> list[_Setting]:
    """Return every setting with its value and its source, in declaration order."""
    sources = settings.sources
    return [_Setting(name, shown(settings, name), sources.get(name, "default")) for name in type(settings).model_fields]


def list_settings(file: Path | None, *, as_json: bool) -> int:
    """Print every setting."""
    settings, project = load(file)
    for warning in settings.warnings:
        say(f"warning: {warning}")
    rows = _settings_now(settings)
    if as_json:
        print_json(row._asdict() for row in rows)
    else:
        cells = [(row.name, _size_or_text(row) or "-", _short(row.source)) for row in rows]
        print_table(("SETTING", "VALUE", "FROM"), cells)
        path = file or Settings.file_in_use()
        print(f"\nsettings file: {safe_line(path)}{'' if path.exists() else ' (not there)'}")
        if project is not None:
            own = [] if project.ignored else project.project.options.model_dump(exclude_defaults=True)
            also = f" (also: {', '.join(own)})" if own else ""
            print(f"project file: {safe_line(project.project.path)}{also}")
    return 0


def get_setting(file: Path | None, name: str) -> int:
    """Print the value of one setting, or of a key in it (`output.max_chars`); print nothing if it is not set."""
    settings, _ = load(file)
    top, *below = _path_of(name)
    value = shown(settings, top, with_defaults=True)
    for key in below:
        if not isinstance(value, dict) or key not in value:
            known_keys = list(value) if isinstance(value, dict) else []
            raise UsageError(f"Setting {top!r} has no key {key!r}.{did_you_mean(key, known_keys)}")
        value = value[key]
    print(safe(_text(value)))
    return 0


def set_setting(name: str, text: str | None, file: Path | None) -> int:
    """Check a value and write it to the settings file. An API key is prompted for and stored in the key store.

    Raises:
        UsageError: the name is unknown or the value wrong, with what is expected; nothing is written.
    """
    path, values = file_to_change(file)
    top, *below = _path_of(name)
    if top == "api_key":
        text = _key_reference(text, values)
    if text is None:
        raise UsageError(
            f"VALUE is missing: ohsandbox config set {name} VALUE. `ohsandbox config unset {name}` removes it."
        )
    values = _with_value(values, top, below, text)
    write_object(path, values)
    say(f"{name} is set in {path}.")
    warn_if_overridden(top)
    return 0


def unset_setting(name: str, file: Path | None) -> int:
    """Remove a key from the settings file."""
    path, values = file_to_change(file)
    *above, last = _path_of(name)
    section: Any = values
    for key in above:
        section = section.get(key) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section:
        raise UsageError(
            f"Setting {name!r} is not in {str(path)!r}. `ohsandbox config list` shows where values are from."
        )
    del section[last]
    write_object(path, values)
    say(f"{name} is removed from {path}.")
    warn_if_overridden(_path_of(name)[0])
    return 0


def edit_settings_file(file: Path | None) -> int:
    """Open a copy of the settings in the user's editor, and replace the file with the copy once it is valid.

    Raises:
        UsageError: no editor is named, it fails, or the text is not valid and nobody is there to be asked again.
    """
    path, values = file_to_change(file)
    editor = next((os.environ[name] for name in _EDITORS if os.environ.get(name)), "vi")
    with tempfile.TemporaryDirectory(prefix="ohsandbox-config-") as directory:
        copy = Path(directory) / "settings.json"
        copy.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        original = read_regular(copy, follow=True)
        while True:
            _run_editor(editor, copy)
            if read_regular(copy, follow=True) == original:
                say(f"{path} is unchanged.")
                return 0
            try:
                edited = object_of(read_regular(copy, follow=True), "The edited text")
                validated_settings(edited, "The edited text")
            except UsageError as error:
                say(error)
                again = person_present() and ask("Edit again? [Y/n] ").lower() not in {"n", "no"}
                if not again:
                    raise UsageError(
                        f"{str(path)!r} is unchanged: the edited text was not valid. Edit it again."
                    ) from None
            else:
                write_object(path, edited)
                say(f"{path} is written.")
                return 0


def shown(settings: Settings, name: str, *, with_defaults: bool = False) -> Any:
    """Return a setting's value as JSON, with keys and possible secrets hidden."""
    value = getattr(settings, name)
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return text if is_reference(text) else HIDDEN
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=not with_defaults)
    if isinstance(value, tuple):
        return list(value)
    if name == "base_url" and isinstance(value, str):
        return without_user(value)
    return _hidden(value) if isinstance(value, dict) and name in {"mcpServers", "mcp"} else value


def _hidden(value: Any, *, secret: bool = False) -> Any:
    if isinstance(value, dict):
        if not secret and isinstance(words := value.get("args"), list):
            value = value | {"args": _hidden_arguments(words)}
        if not secret and isinstance(line := value.get("command"), str):
            value = value | {"command": " ".join(_hidden_arguments(line.split(" ")))}
        return {key: _hidden(inner, secret=secret or key.lower() in _SECRET_NAMES) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner, secret=secret) for inner in value]
    if secret and value:
        return HIDDEN
    return _IN_QUERY.sub(rf"\1{HIDDEN}", without_user(value)) if isinstance(value, str) else value


def _hidden_arguments(words: list[Any]) -> list[Any]:
    """Hide secrets in arguments: values after an option, `=` or `:` with a secret's name, and random words."""
    shown: list[Any] = []
    is_named = False
    for word in words:
        text = str(word)
        name, sign, value = next((split for sign in "=:" if (split := text.partition(sign))[1]), (text, "", ""))
        names_secret = bool(_SECRET_WORD.search(name))
        if is_named and not text.startswith("--"):
            shown.append(HIDDEN)
        elif names_secret and value and not value.startswith("//"):
            shown.append(f"{name}{sign}{HIDDEN}")
        else:
            shown.append(_RANDOM.sub(HIDDEN, text) if isinstance(word, str) else word)
        is_named = names_secret and not sign and text.startswith("-")
    return shown


def _text(value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(source: str) -> str:
    """Shorten a source: a variable becomes its name; a path is dropped, because it is printed below the table."""
    kind, _, path = source.partition(" file ")
    return f"{kind} file" if path else source.removeprefix("environment variable ")


def _size_or_text(row: _Setting) -> str:
    return f"{row.value / 1024**3:g}g" if row.name in SIZES and row.value else _text(row.value)


def _path_of(name: str) -> list[str]:
    top, *below = name.split(".")
    if top not in Settings.model_fields:
        known_names = [*Settings.model_fields]
        raise UsageError(f"Unknown setting {top!r}.{did_you_mean(top, known_names)} `ohsandbox config list` shows all.")
    return [top, *below]


def _with_value(values: dict[str, Any], top: str, below: list[str], text: str) -> dict[str, Any]:
    """Return the values with one more: as text if the setting takes text, otherwise parsed as JSON."""
    error_start = f"Value {_shown_value(top, text)} is not written"
    try:
        parsed = [load_json(text)]
    except ValueError:
        parsed = []
    fault: UsageError | None = None
    for candidate in (*parsed, text) if below else (text, *parsed):
        changed = _put(values, [top, *below], candidate)
        try:
            setting_value = getattr(validated_settings(changed, error_start), top)
        except UsageError as error:
            fault = error
            continue
        is_number = not below and isinstance(setting_value, bool | int | float) and isinstance(candidate, str)
        plain = is_number and not (top in SIZES and not text.isdecimal())
        return _put(values, [top, *below], setting_value) if plain else changed
    choices = _choices(top) if not below else []
    raise UsageError(f"{fault}{did_you_mean(text, choices)}")


def _shown_value(top: str, text: str) -> str:
    return HIDDEN if top in {"api_key", "mcpServers", "mcp", "secrets"} else safe_line(repr(text), limit_chars=80)


def _put(values: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    first, *more_keys = keys
    if not more_keys:
        return {**values, first: value}
    inner = values.get(first, {})
    return {**values, first: _put(inner if isinstance(inner, dict) else {}, more_keys, value)}


def _choices(name: str) -> list[str]:
    """Return the allowed words of a setting that takes one of a few."""
    kinds = [Settings.model_fields[name].annotation]
    kinds += [*get_args(kinds[0])]
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


def _key_reference(text: str | None, values: dict[str, Any]) -> str:
    """Return a reference to the key: the given one, or the place where a key typed now is stored."""
    if text is not None and is_reference(text):
        return text
    if text is not None:
        raise UsageError(
            "A key on a command line is seen by every user of this machine (`ps`). Leave it out to be asked, pipe it "
            "in, or name where it is: env:NAME, keyring:NAME or file:PATH."
        )
    key = ask_secret("Key (not shown): ") if person_present() else sys.stdin.readline().strip()
    if not key:
        raise UsageError("No key was given. Nothing is written.")
    stored = store_key(key_name(values.get("model"), values.get("base_url")), key)
    say(f"The key is in {stored.place}.")
    return stored.reference


def _run_editor(editor: str, file: Path) -> None:
    remedy = "Name one with EDITOR, or use `ohsandbox config set`."
    try:
        code = host_programs.run([*shlex.split(editor), str(file)], check=False).returncode
    except ProgramNotFoundError as error:
        raise UsageError(error.fact, remedy=remedy) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Editor {editor!r} cannot be started: {reason}. {remedy}") from None
    if code:
        raise UsageError(f"Editor {editor!r} ended with exit code {code}; nothing is written. {remedy}")
