"""`ohsandbox tools`: the tools that an agent can use, including those of installed plugins."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import ohsandbox.tools  # noqa: F401 - registers those that ship
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import safe, safe_line, say
from ohsandbox.errors import UsageError
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.state import ConversationState
from ohsandbox.tool import Origin, Tool, ToolAnnotations, list_registered_tools, origin_of_tool, resolve_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.tool import ToolDefinition

MAX_NAME_CHARS = 100


class _Listed(NamedTuple):
    """A tool and its origin."""

    tool: ToolDefinition[Any, Any]
    origin: Origin

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.tool.to_mcp_tool(), "origin": self.origin._asdict()}

    @property
    def package(self) -> str:
        return f"{self.origin.name} {self.origin.version}".strip()[:MAX_NAME_CHARS]

    @property
    def effects(self) -> str:
        hints = self.tool.annotations or ToolAnnotations()
        words = [
            "read-only" if hints.readOnlyHint else "destructive" if hints.destructiveHint else "writes",
            "idempotent" if hints.idempotentHint else "",
            "open world" if hints.openWorldHint else "",
        ]
        return ", ".join(filter(None, words))

    @property
    def arguments(self) -> str:
        schema = self.tool.to_mcp_tool()["inputSchema"]
        required = schema.get("required", [])
        return " ".join(name if name in required else f"[{name}]" for name in schema["properties"])


def list_tools(*, as_json: bool) -> int:
    """Print every tool. A tool that cannot be made is reported on stderr."""
    listing = _all()
    if as_json:
        print_json(entry.fields for entry in listing)
    else:
        rows = [
            (entry.tool.name, "" if entry.origin.name == "ohsandbox" else entry.package, entry.effects, entry.arguments)
            for entry in listing
        ]
        print_table(("NAME", "PLUGIN", "EFFECTS", "ARGUMENTS"), rows)
    return 0


def show_tool(name: str, *, as_json: bool) -> int:
    """Print what the model is told about the tool: its description and the schema of its arguments."""
    listed = next((entry for entry in _all(quiet=True) if name in {entry.tool.name, *entry.tool.aliases}), None)
    if listed is None:
        if not name:
            raise UsageError("The tool's name is empty. `ohsandbox tools` lists them all.")
        listed = _Listed(resolve_tool(Tool(name=name), _nowhere())[0], origin_of_tool(name))
    tool = listed.tool
    if as_json:
        print(json.dumps(listed.fields, indent=2))
    else:
        names = f"{tool.name} (also {', '.join(tool.aliases)})" if tool.aliases else tool.name
        print(safe_line(f"{names}, of {listed.package}: {listed.effects}"))
        print(f"\n{safe(tool.description)}\n")
        print(json.dumps(tool.to_openai_tool()["function"]["parameters"], indent=2))
    return 0


def _all(*, quiet: bool = False) -> list[_Listed]:
    """List each tool once by its own name, plugins last."""
    with _warnings_shown(quiet=quiet):
        names = list_registered_tools()
    by_name: dict[str, _Listed] = {}
    for name in names:
        try:
            for tool in resolve_tool(Tool(name=name), _nowhere()):
                by_name.setdefault(tool.name, _Listed(tool, origin_of_tool(name)))
        except UsageError as error:
            if not quiet:
                say(f"warning: {error}")
    return sorted(by_name.values(), key=lambda entry: (entry.origin.name != "ohsandbox", entry.origin, entry.tool.name))


@contextlib.contextmanager
def _warnings_shown(*, quiet: bool) -> Iterator[None]:
    """Print the registry's warnings about plugins that fail to load in our usual form."""
    handler = logging.NullHandler() if quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ohsandbox: warning: %(message)s"))
    log = logging.getLogger("ohsandbox.tool")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _nowhere() -> ConversationState:
    """Return a conversation state to make tools with; a tool starts nothing before its first call."""
    runtime = CLIRuntime("/", quiet=True)
    return ConversationState(conversation_id="listing", runtime=runtime, ask_model=_nobody, delegate=_nobody)


def _nobody(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("Tools are only listed here; none is called.")
