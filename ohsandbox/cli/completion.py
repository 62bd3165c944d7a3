"""Shell completion: the candidates for conversations and sandboxes, and `ohsandbox completion`.

It must be fast: it reads only our own files, with the standard library, and does not contact an engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.paths import state_dir
from ohsandbox.private_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

VARIABLE = "_OHSANDBOX_COMPLETE"
"""Variable that the shell's completion function sets; typer derives its name from the command's."""
MAX_OFFERED = 50
"""Largest number of candidates, newest first."""
MAX_BYTES = 64 * 1024
"""Bytes read from one file."""
MAX_TITLE_CHARS = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_UNQUOTED = re.compile(r"[^\w .,/+-]")
"""Characters removed from a title, because zsh evaluates the description of a candidate (`_arguments`)."""

Shell = Literal["bash", "zsh", "fish"]


def conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return `last` and the ids of conversations, newest first, each with its title."""
    conversations = _newest("conversations", lambda name: name.startswith(incomplete))
    return [("last", "the newest, of this directory first"), *((name, _title(path)) for name, path in conversations)]


def sandbox_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of this user's sandboxes, read from their leases."""
    leases = (_read(path) for _, path in _newest("leases", lambda _: True))
    leased = ((str(lease.get("container", "")), _plain(lease.get("image"))) for lease in leases)
    return [(name, image) for name, image in leased if _NAME.fullmatch(name) and name.startswith(incomplete)]


def answer(app: Callable[..., Any]) -> None:
    """Print the candidates that the shell asks for in its environment variables. Errors are not printed."""
    from typer.completion import get_completion_inspect_parameters  # noqa: PLC0415 - only a press of Tab and the installation need it

    get_completion_inspect_parameters()  # has typer know the shells
    sys.modules["rich"] = None  # type: ignore[assignment] # "not installed": typer would load it to print plain help
    with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123 - as below
        app(prog_name="ohsandbox")
    sys.exit(1)


def show(ctx: typer.Context, shell: Shell | None) -> None:
    """Print the completion script; shell None is the user's own."""
    from typer.completion import show_callback  # noqa: PLC0415 - only a press of Tab and the installation need it

    with contextlib.suppress(SystemExit):  # its way to return
        show_callback(ctx, ctx.command.params[0], shell or _own_shell())


def install(ctx: typer.Context, shell: Shell | None) -> None:
    """Write the script to the place where the shell reads it; for bash and zsh, add a line to the start-up file."""
    from typer.completion import install_callback  # noqa: PLC0415 - only a press of Tab and the installation need it

    with contextlib.suppress(SystemExit):
        install_callback(ctx, ctx.command.params[0], shell or _own_shell())


def _own_shell() -> str:
    name = os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - as below
    if name not in get_args(Shell):
        raise UsageError(f"SHELL is {name!r}, not bash, zsh or fish. Name one: ohsandbox completion install bash.")
    return name


def _newest(directory: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield names and paths of the entries of a state directory, newest first."""
    with contextlib.suppress(OhsandboxError, OSError), os.scandir(state_dir() / directory) as entries:
        entries_found = [(entry.stat().st_mtime, entry.name, entry.path) for entry in entries if is_wanted(entry.name)]
        yield from (
            (name, path) for _, name, path in sorted(entries_found, reverse=True)[:MAX_OFFERED] if _NAME.fullmatch(name)
        )


def _title(conversation: str) -> str:
    return _plain(_read(os.path.join(conversation, "metadata.json")).get("title"))  # noqa: PTH118 - fifty of them


def _read(path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(read_regular(Path(path), limit_bytes=MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _plain(text: object) -> str:
    return " ".join(_UNQUOTED.sub(" ", str(text or ""))[:MAX_TITLE_CHARS].split())
