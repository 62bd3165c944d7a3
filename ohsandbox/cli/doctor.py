"""`ohsandbox doctor`: what is here, what is missing, what is weak, and what to do about it."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ohsandbox import __version__
from ohsandbox.cli.entrypoint import code_of
from ohsandbox.cli.model import key_source, provider_variables
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.paths import conversations_dir
from ohsandbox.runtime.docker.doctor import Check, checks
from ohsandbox.settings import Settings

PACKAGES = ("docker", "litellm", "pydantic")
"""Those whose version a report of a fault should name."""

MIN_TABLE_COLUMNS = 60
"""Narrower than that what was found stands below its name."""

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def examine(*, as_json: bool) -> int:
    """Print every check; 0 unless one failed, then 4."""
    found = [_versions(), *_own_state(), _bubblewrap(), *checks()]
    if as_json:
        print(json.dumps([check._asdict() for check in found], indent=2))
    else:
        _print(found)
    return code_of(SandboxUnavailable()) if any(check.status == "fail" for check in found) else 0


def _versions() -> Check:
    parts = [f"ohsandbox {__version__}", f"Python {platform.python_version()}"]
    parts += [f"{name} {_version(name)}" for name in PACKAGES]
    return Check("versions", "ok", ", ".join([*parts, f"{platform.system()} {platform.machine()}"]))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _own_state() -> list[Check]:
    """The settings, the model and the key. A missing model is a warning: `demo` and `exec` need none."""
    try:
        path = Settings.default_path()
        settings = Settings.load()
    except OhsandboxError as error:
        return [Check("settings", "fail", str(error))]
    where = str(path) if path.exists() else f"{path} is not there; defaults are used"
    warned = [Check("settings", "warn", text) for text in settings.warnings]
    return [*(warned or [Check("settings", "ok", where)]), _model(settings), _key(settings), _conversations()]


def _model(settings: Settings) -> Check:
    if settings.model:
        return Check("model", "ok", settings.model)
    return Check("model", "warn", "none named", 'put "model": "provider/model" into the settings, or use --model')


def _key(settings: Settings) -> Check:
    """Whether there is a key and where it comes from; never the key."""
    try:
        settings.resolved_api_key()
    except OhsandboxError as error:
        return Check("model key", "warn", str(error))
    if not settings.model and settings.api_key is None:
        return Check("model key", "ok", "no model is named, so none is looked for")
    source = key_source(settings)
    if source is None:
        return Check("model key", "warn", "missing", f"set {provider_variables(settings.model or '')[0]}")
    return Check("model key", "ok", source)


def _conversations() -> Check:
    root = conversations_dir()
    count = sum(1 for _ in root.iterdir()) if root.is_dir() else 0
    return Check("conversations", "ok", f"{count} in {root}")


def _bubblewrap() -> Check:
    """Only --runtime cli uses it."""
    found = shutil.which("bwrap")
    if found:
        return Check(
            "bubblewrap", "ok", f"{found}; --runtime cli can write in its working directory and /tmp only (not as root)"
        )
    return Check("bubblewrap", "warn", "not here: --runtime cli works with no walls at all", "install bubblewrap")


def _print(found: list[Check]) -> None:
    console = open_console()
    narrow = console.width < MIN_TABLE_COLUMNS
    table = Table(box=None, show_header=False, padding=(0, 1))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in found:
        value = Text(safe_line(check.value, limit_chars=500))
        if check.remedy:
            value.append(f"\n→ {safe_line(check.remedy, limit_chars=500)}", style="dim")
        if narrow:
            console.print(Text(f"{check.status} ", style=_STYLES[check.status]), Text(safe_line(check.name)), sep="")
            console.print(Padding(value, (0, 0, 0, 2)))
        table.add_row(Text(check.status, style=_STYLES[check.status]), Text(safe_line(check.name)), value)
    if not narrow:
        console.print(table)
