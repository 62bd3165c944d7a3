"""`ohsandbox mcp list` and `approve`, the MCP servers of a run, and the question whether skills' servers may start."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import difflib
import json
import os
import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.commands.confirm import user
from ohsandbox.cli.prompts.approval_prompt import named_rows
from ohsandbox.cli.prompts.prompt import ask_yes_no, person_present
from ohsandbox.cli.rendering.tables import open_console, print_json, print_table
from ohsandbox.cli.rendering.text import safe, safe_line, say
from ohsandbox.cli.sandbox.runtime import make_runtime, started_runtime
from ohsandbox.cli.settings.model import read_settings
from ohsandbox.conversation.environment.mcp_servers import pins_path
from ohsandbox.mcp import MCPConfig, MCPConfigError, MCPServers, Pins, ServerState, read_mcp_config
from ohsandbox.mcp.config import merged
from ohsandbox.review_text import concealed_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.environment.skill_servers import ProposedServers
    from ohsandbox.mcp import MCPEvent, ServerStatus
    from ohsandbox.mcp.skills import SkillServer
    from ohsandbox.mcp.tool_pinning import ChangedTool
    from ohsandbox.settings import Settings

_DIFF_CONTEXT_LINES = 3
"""Context lines of a diff, as in git."""


def with_mcp_file(settings: Settings, file: Path | None) -> Settings:
    """Add the servers of a file to the settings; a server of the same name replaces the settings' own."""
    config = MCPConfig.parse(settings.mcp_config or {})
    if file is None:
        return settings
    try:
        added = read_mcp_config(file)
    except MCPConfigError as error:
        remedy = "" if "--mcp-config" in str(error) else " Correct the file, or name another with --mcp-config."
        raise type(error)(f"{error}{remedy}") from error
    for name in config.servers.keys() & added.servers.keys():
        say(f"MCP server {name!r} of the settings is replaced by the one in {file}.")
    return settings.with_flags(mcp={}, mcpServers=merged(config, added).to_dict()["mcpServers"])


def list_servers(where: SandboxOptions, *, settings: Path | None, mcp_config: Path | None, as_json: bool) -> int:
    """Start the servers, print them as a table or JSON, and stop them. Return 1 if an enabled one is not ready."""
    loaded = with_mcp_file(read_settings(settings), mcp_config)
    config = MCPConfig.parse(loaded.mcp_config or {})
    if not config.servers:
        print("[]" if as_json else "No MCP servers are configured. Use --mcp-config FILE, or the settings' mcpServers.")
        return 0
    for warning in config.warnings:
        say(f"warning: {warning}")
    with (
        started_runtime(make_runtime(where.checked().with_settings(loaded))) as runtime,
        MCPServers(config, runtime, variables=os.environ, pins=Pins(pins_path()), on_event=_show_progress) as servers,
    ):
        servers.wait()
        found = servers.status()
    if as_json:
        print_json({**one._asdict(), "state": one.state.value} for one in found)
    else:
        rows = [(one.name, one.state.value, one.where, _tools(one)) for one in found]
        print_table(("NAME", "STATE", "WHERE", "TOOLS"), rows)
    return 0 if all(one.state in {ServerState.READY, ServerState.DISABLED} for one in found) else 1


def approve_tool(server: str, tool: str) -> int:
    """Pin the tool's latest definition. At a terminal, show the change first and ask."""
    pins = Pins(pins_path())
    shown = next((one for one in pins.changed() if (one.server, one.tool) == (server, tool)), None)
    what = f"Tool {tool!r} of MCP server {server!r}"
    if shown is None or not person_present():
        changed = pins.approve(server, tool)
        print(safe_line(f"{what} is trusted as it is now."))
        _show_change(changed)
        return 0
    print(safe_line(f"{what} has changed."))
    _show_change(shown)
    if not ask_yes_no("Trust it as it is now?"):
        print("Nothing was changed.")
        return 1
    pins.approve(server, tool, shown=shown)
    print(safe_line(f"{what} is trusted as it is now."))
    return 0


def _show_change(changed: ChangedTool) -> None:
    """Print how the definitions differ, invisible characters spelled out; the whole new one if no old one is kept."""
    if not changed.before:
        print("Its definition was not kept when it was first seen. Its server says of it now:")
        print(safe(changed.now or changed.description))
    else:
        before, now = (safe(text).split("\n") for text in (changed.before, changed.now))
        rows = [*difflib.unified_diff(before, now, "trusted", "now", n=_DIFF_CONTEXT_LINES, lineterm="")]
        print("\n".join(rows) or "It differs only past the part that is kept for comparison.")
    for sentence in concealed_in(changed.now):
        print(safe(sentence))


def _show_progress(event: MCPEvent) -> None:
    if event.kind == "status" and sys.stderr.isatty():
        print(safe_line(f"{event.server}: {event.message}"), file=sys.stderr)


def _tools(one: ServerStatus) -> str:
    offered = [tool for tool in one.tools if tool not in one.withheld]
    notes = [f"{tool} (changed: {how})" for tool, how in one.withheld.items()]
    notes += [f"{tool} (not offered: {why})" for tool, why in one.refused.items()]
    return ", ".join([*offered, *notes]) or one.reason


# --- servers of skills ----------------------------------------------------------------------------


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
