"""The question whether the MCP servers of a repository's skills may start."""

# ruff: noqa: T201 - it talks to a person
from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.prompts.approval_prompt import named_rows
from ohsandbox.cli.prompts.prompt import ask_yes_no
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.session.approvals import user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.environment.skill_servers import ProposedServers
    from ohsandbox.mcp.skills import SkillServer


def ask_about_servers(conversation: Conversation) -> None:
    """Show the servers that wait for approval, if any, and ask the person at the terminal; yes approves all of them.

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


def _row(label: str, text: str) -> list[str]:
    return named_rows(label, safe_line(text, limit_chars=sys.maxsize), open_console().width)


def _fields(server: SkillServer, proposed: ProposedServers) -> Iterator[tuple[str, str]]:
    """Yield the fields of the definition: the command line or URL first, then the other keys and where it runs."""
    definition = server.definition
    if server.config.command is not None:
        yield "command", server.command_line
        definition = {key: value for key, value in definition.items() if key not in {"command", "args"}}
    else:
        yield "url", definition.pop("url")
    for name in ("env", "headers"):
        for variable, value in definition.pop(name, {}).items():
            yield f"{name} {variable}", value
    definition.pop("where", None)
    for key, value in definition.items():
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield "defined in", f"{server.file}, line {server.line}"
    network = f"network {proposed.network}" if proposed.network else "its network"
    if not proposed.is_isolated:
        yield "runs", "ON THIS MACHINE, in no container, with your rights"
    else:
        yield ("runs" if server.config.command is not None else "reached from"), f"inside the sandbox; {network}"
