"""`ohsandbox mcp list` and `approve`: the MCP servers of the settings, and what their tools are trusted to be."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import difflib
import os
import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.prompts.prompt import ask_yes_no, person_present
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import safe, safe_line, say
from ohsandbox.cli.sandbox.runtime import make_runtime, started_runtime
from ohsandbox.cli.settings.model import read_settings
from ohsandbox.cli.settings.run_settings import with_mcp_file
from ohsandbox.conversation.environment.mcp_servers import pins_path
from ohsandbox.mcp import MCPConfig, MCPServers, Pins, ServerState
from ohsandbox.review_text import concealed_in

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.mcp import MCPEvent, ServerStatus
    from ohsandbox.mcp.tool_pinning import ChangedTool

_DIFF_CONTEXT_LINES = 3
"""Context lines of a diff, as in git."""


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
        statuses = servers.status()
    if as_json:
        print_json({**status._asdict(), "state": status.state.value} for status in statuses)
    else:
        rows = [(status.name, status.state.value, status.where, _tools(status)) for status in statuses]
        print_table(("NAME", "STATE", "WHERE", "TOOLS"), rows)
    return 0 if all(status.state in {ServerState.READY, ServerState.DISABLED} for status in statuses) else 1


def approve_tool(server: str, tool: str) -> int:
    """Pin the tool's latest definition. At a terminal, show the change first and ask."""
    pins = Pins(pins_path())
    shown = next((change for change in pins.changed() if (change.server, change.tool) == (server, tool)), None)
    subject = f"Tool {tool!r} of MCP server {server!r}"
    if shown is None or not person_present():
        changed = pins.approve(server, tool)
        print(safe_line(f"{subject} is trusted as it is now."))
        _show_change(changed)
        return 0
    print(safe_line(f"{subject} has changed."))
    _show_change(shown)
    if not ask_yes_no("Trust it as it is now?"):
        print("Nothing was changed.")
        return 1
    pins.approve(server, tool, shown=shown)
    print(safe_line(f"{subject} is trusted as it is now."))
    return 0


def _show_change(changed: ChangedTool) -> None:
    """Print how the definitions differ, invisible characters spelled out; the whole new one if no old one is kept."""
    if not changed.before:
        print("Its definition was not kept when it was first seen. Its server says of it now:")
        print(safe(changed.now or changed.description))
    else:
        lines_before, now = (safe(text).split("\n") for text in (changed.before, changed.now))
        rows = [*difflib.unified_diff(lines_before, now, "trusted", "now", n=_DIFF_CONTEXT_LINES, lineterm="")]
        print("\n".join(rows) or "It differs only past the part that is kept for comparison.")
    for sentence in concealed_in(changed.now):
        print(safe(sentence))


def _show_progress(event: MCPEvent) -> None:
    if event.kind == "status" and sys.stderr.isatty():
        print(safe_line(f"{event.server}: {event.message}"), file=sys.stderr)


def _tools(status: ServerStatus) -> str:
    offered = [tool for tool in status.tools if tool not in status.withheld]
    notes = [f"{tool} (changed: {change})" for tool, change in status.withheld.items()]
    notes += [f"{tool} (not offered: {reason})" for tool, reason in status.refused.items()]
    return ", ".join([*offered, *notes]) or status.reason
