"""`python docs/generate_command_line.py [--check]`: docs/command-line.md, out of what `--help` says of each command."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ohsandbox.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent / "command-line.md"
HEAD = """\
# Command line

Made from `ohsandbox --help` by `make docs`; a test compares them. Exit codes: [scripting.md](scripting.md#exit-codes);
slash commands and keys of a session in [terminal.md](terminal.md), settings in [configuration.md](configuration.md).
"""


def page() -> str:
    """The whole text."""
    top = typer.main.get_command(app)
    context = typer.Context(top, info_name="ohsandbox", **top.context_settings)
    commands = [*_commands(top, context)]
    rows = [f"| [`{path}`](#{_anchor(path)}) | {_cell(_first(shown))} |" for path, shown, _ in commands[1:]]
    parts = [HEAD, "| command | what it does |\n|---|---|", *rows, ""]
    parts += [line for path, shown, inner in commands for line in _described(path, shown, inner)]
    return "\n".join(parts).rstrip() + "\n"


def _commands(shown: Any, context: typer.Context) -> Iterator[tuple[str, Any, typer.Context]]:
    """A command and those below it, each with the words that call it."""
    yield context.command_path, shown, context
    for name in shown.list_commands(context) if hasattr(shown, "list_commands") else ():
        below = shown.get_command(context, name)
        if not below.hidden:
            yield from _commands(below, typer.Context(below, info_name=name, parent=context))


def _described(path: str, shown: Any, context: typer.Context) -> Iterator[str]:
    yield f"## `{path}`\n"
    yield f"```text\n{path} {' '.join(shown.collect_usage_pieces(context))}\n```\n"
    yield _prose(shown.help or "")
    yield from _options(shown, context)
    if epilog := (shown.epilog or "").strip():
        yield _prose(epilog)


def _options(shown: Any, context: typer.Context) -> Iterator[str]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in shown.get_params(context):
        if (record := one.get_help_record(context)) is None:
            continue
        is_argument = one.param_type_name == "argument"
        title = "Arguments" if is_argument else one.rich_help_panel or "Options"
        groups.setdefault(title, []).append((one.metavar if is_argument else record[0], record[1]))
    for title, rows in sorted(groups.items(), key=lambda group: (group[0] == "Options", group[0] != "Arguments")):
        yield f"| {title} | |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(_safe(text))} |" for name, text in rows)
        yield ""


def _first(shown: Any) -> str:
    return _safe(str(shown.help or "").split("\n\n")[0])


def _prose(text: str) -> str:
    """Paragraphs as they stand; one that is laid out by hand stays so."""
    parts = []
    for part in text.strip().split("\n\n"):
        if part.startswith("\b"):
            lines = part.removeprefix("\b").strip("\n").splitlines()
            parts.append("```text\n" + "\n".join(lines) + "\n```")
        else:
            parts.append(_safe(" ".join(part.split())))
    return "\n\n".join(parts) + "\n"


def _safe(text: str) -> str:
    """What Markdown would take for its own."""
    return re.sub(r"([<>*])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


if __name__ == "__main__":
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE} is not what the commands say: run `make docs`.")
