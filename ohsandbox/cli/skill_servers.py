"""The question whether MCP servers that a repository's skills bring may start: each of them is shown whole."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.approval_prompt import GUTTER, NAMED, folded
from ohsandbox.cli.confirm import user
from ohsandbox.cli.prompt import ask_yes_no
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.skill_servers import ProposedServers
    from ohsandbox.mcp.skills import SkillServer


def ask_about_servers(conversation: Conversation) -> None:
    """Show the servers that wait for a word, if any, and ask the person at the terminal; a yes is an approval.

    Raises:
        KeyboardInterrupt: Ctrl-C; nothing is allowed.
    """
    proposed = conversation.pending_servers
    if proposed is None:
        return
    print("\n".join(_rows(proposed)), flush=True)
    number = len(proposed.servers)
    if ask_yes_no(f"Start {'this MCP server' if number == 1 else f'these {number} MCP servers'}?"):
        conversation.approve(proposed.scope, by=user())
        conversation.start()  # they start while the person writes


def _rows(proposed: ProposedServers) -> Iterator[str]:
    count = len(proposed.servers)
    yield f"The skills of this repository bring {'an MCP server' if count == 1 else f'{count} MCP servers'}."
    yield "What one runs can do all that the agent's commands can, and what its tools say is read by the model."
    yield from _row("repository", proposed.directory)
    for number, server in enumerate(proposed.servers, 1):
        yield f"[{number}] {safe_line(server.name)}"
        for label, text in _fields(server, proposed):
            yield from _row(label, text)


def _row(label: str, text: str) -> Iterator[str]:
    """A label and its text behind the gutters: no part of the text can pass for a row of ours."""
    shown = f"{safe_line(label, limit_chars=sys.maxsize)}: {safe_line(text, limit_chars=sys.maxsize)}"
    first, *more = folded(shown, open_console().width)
    yield NAMED + first.removeprefix(GUTTER)
    yield from more


def _fields(server: SkillServer, proposed: ProposedServers) -> Iterator[tuple[str, str]]:
    """What the definition says: the command line or URL first, then each other key, and where it runs."""
    said = server.definition
    if server.config.command is not None:
        yield "command", server.command_line
        said = {key: value for key, value in said.items() if key not in {"command", "args"}}
    else:
        yield "url", said.pop("url")
    for name in ("env", "headers"):
        for variable, value in said.pop(name, {}).items():
            yield f"{name} {variable}", value
    said.pop("where", None)
    for key, value in said.items():
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield "defined in", f"{server.file}, line {server.line}"
    network = f"network {proposed.network}" if proposed.network else "its network"
    if not proposed.is_isolated:
        yield "runs", "ON THIS MACHINE, in no container, with your rights"
    else:
        yield ("runs" if server.config.command is not None else "reached from"), f"inside the sandbox; {network}"
