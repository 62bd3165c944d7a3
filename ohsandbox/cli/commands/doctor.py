"""`ohsandbox doctor`: check what is installed, missing or weak, and say what to do about it."""

from __future__ import annotations

import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ohsandbox import __version__, host_programs
from ohsandbox.cli.entrypoint import code_of
from ohsandbox.cli.rendering.tables import open_console, print_json
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.settings.model import key_source, provider_variables
from ohsandbox.cli.settings.model_check import likely_typo
from ohsandbox.cli.settings.project import look_for_project
from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.key_store import keyring_name
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence.layout import is_id
from ohsandbox.project.trust import trusted
from ohsandbox.runtime.docker.monitoring.doctor import Check, checks
from ohsandbox.settings import Settings

PACKAGES = ("docker", "litellm", "pydantic")
"""Packages whose version belongs in a bug report."""
_MIN_TABLE_COLUMNS = 60
"""On narrower terminals each finding is printed below its name."""
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def print_checks(*, as_json: bool) -> int:
    """Print every check; return 0, or 4 if one failed."""
    all_checks = [_versions(), *_own_state(), *_project(), _bubblewrap(), *checks()]
    if as_json:
        print_json(check._asdict() for check in all_checks)
    else:
        _print(all_checks)
    return code_of(SandboxUnavailable()) if any(check.status == "fail" for check in all_checks) else 0


def _versions() -> Check:
    parts = [f"ohsandbox {__version__}", f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} missing")
    return Check("versions", "ok", ", ".join([*parts, f"{platform.system()} {platform.machine()}"]))


def _own_state() -> list[Check]:
    """Check the settings, the model and the key. A missing model is a warning: `demo` and `exec` need none."""
    try:
        path = Settings.default_path()
        settings = Settings.load()
    except OhsandboxError as error:
        return [Check("settings", "fail", str(error))]
    settings_place = str(path) if path.exists() else f"{path} is not there; defaults are used"
    warned = [Check("settings", "warn", text) for text in settings.warnings]
    root = conversations_dir()
    count = sum(is_id(path.name) for path in root.iterdir()) if root.is_dir() else 0
    stored = Check("conversations", "ok", f"{count} in {root}")
    return [
        *(warned or [Check("settings", "ok", settings_place)]),
        _model(settings),
        _key(settings),
        _keyring(),
        stored,
    ]


def _model(settings: Settings) -> Check:
    """Check the model's name without a request to the model."""
    if not settings.model:
        return Check("model", "warn", "none named", "run `ohsandbox init`, or use --model")
    value = f"{settings.model} ({settings.sources.get('model', 'default')})"
    suggestion = likely_typo(settings)
    return (
        Check("model", "warn", f"{value}, not on litellm's list", suggestion)
        if suggestion
        else Check("model", "ok", value)
    )


def _keyring() -> Check:
    return Check("keyring", "ok", keyring_name() or "none answers: `ohsandbox init` keeps keys in files (mode 0600)")


def _project() -> list[Check]:
    """Check the project file of the current directory and count the trusted directories."""
    try:
        project_found, trusted_directories = look_for_project(Path.cwd()), trusted()
    except OhsandboxError as error:
        return [Check("project file", "fail", str(error))]
    count = Check(
        "trusted directories",
        "ok",
        f"{len(trusted_directories)} (`ohsandbox trust --list`)" if trusted_directories else "none",
    )
    if project_found is None:
        return [Check("project file", "ok", "none here"), count]
    path, quoted_directory = str(project_found.project.path), shlex.quote(str(project_found.project.directory))
    if project_found.trust in {"not needed", "trusted"}:
        trust_text = "trusted" if project_found.trust == "trusted" else "it only narrows your settings"
        return [Check("project file", "ok", f"{path}, {trust_text}"), count]
    reason = "changed since you trusted it" if project_found.trust == "changed" else "not trusted"
    value = f"{path}, {reason}; not used of it: {', '.join(project_found.wide)}"
    return [Check("project file", "warn", value, f"look at it, then run `ohsandbox trust {quoted_directory}`"), count]


def _key(settings: Settings) -> Check:
    """Check that a key is set and say where it comes from; the key itself is never printed."""
    try:
        settings.resolved_api_key()
    except OhsandboxError as error:
        return Check("model key", "warn", str(error))
    if not settings.model and settings.api_key is None:
        return Check("model key", "ok", "no model is named, so none is looked for")
    source = key_source(settings)
    if source is None:
        return Check(
            "model key",
            "warn",
            "missing",
            f"run `ohsandbox init`, or set {provider_variables(settings.model or '')[0]}",
        )
    return Check("model key", "ok", source)


def _bubblewrap() -> Check:
    """Check bubblewrap, which only --runtime cli uses."""
    if (program := host_programs.find_program("bwrap")) is None:
        return Check("bubblewrap", "warn", "not here: --runtime cli works with no walls at all", "install bubblewrap")
    limits_text = "--runtime cli can write in its working directory and /tmp only"
    return Check("bubblewrap", "ok", f"{program}; {limits_text}")


def _print(all_checks: list[Check]) -> None:
    console = open_console()
    narrow = console.width < _MIN_TABLE_COLUMNS
    table = Table(box=None, show_header=False, padding=(0, 1))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in all_checks:
        value = Text(safe_line(check.value, limit_chars=500))
        if check.remedy:
            value.append(f"\n→ {safe_line(check.remedy, limit_chars=500)}", style="dim")
        if narrow:
            console.print(Text(f"{check.status} ", style=_STYLES[check.status]), Text(safe_line(check.name)), sep="")
            console.print(Padding(value, (0, 0, 0, 2)))
        table.add_row(Text(check.status, style=_STYLES[check.status]), Text(safe_line(check.name)), value)
    if not narrow:
        console.print(table)
