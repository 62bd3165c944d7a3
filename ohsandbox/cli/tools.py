"""`ohsandbox tools`: the tools that an agent can have, those of installed plugins included."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import ohsandbox.tools  # noqa: F401 - registers those that ship
from ohsandbox.cli.rendering.tables import print_table
from ohsandbox.cli.rendering.text import safe, safe_line
from ohsandbox.errors import UsageError
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.state import ConversationState
from ohsandbox.tool import Origin, Tool, ToolAnnotations, list_registered_tools, origin_of_tool, resolve_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.tool import ToolDefinition

MAX_NAME_CHARS = 100


class Listed(NamedTuple):
    """A tool, and where it comes from."""

    tool: ToolDefinition[Any, Any]
    origin: Origin


def list_tools(*, as_json: bool) -> int:
    """Print every tool. One that cannot be made is a line on stderr, and the others are printed."""
    found = _all()
    if as_json:
        print(json.dumps([_fields(listed) for listed in found], indent=2))
    else:
        _print(found)
    return 0


def show_tool(name: str, *, as_json: bool) -> int:
    """Print what a model is told of the tool: its description and the schema of its arguments.

    Raises:
        UsageError: the tool does not exist, or cannot be created.
    """
    listed = next((one for one in _all(quiet=True) if name in {one.tool.name, *one.tool.aliases}), None)
    if listed is None:
        if not name:
            raise UsageError("The tool's name is empty. `ohsandbox tools` lists them all.")
        listed = Listed(resolve_tool(Tool(name=name), _nowhere())[0], origin_of_tool(name))
    if as_json:
        print(json.dumps(_fields(listed), indent=2))
        return 0
    tool = listed.tool
    names = f"{tool.name} (also {', '.join(tool.aliases)})" if tool.aliases else tool.name
    print(safe_line(f"{names}, of {_origin(listed.origin)}: {_effects(tool)}"))
    print(f"\n{safe(tool.description)}\n")
    print(json.dumps(tool.to_openai_tool()["function"]["parameters"], indent=2))
    return 0


def _all(*, quiet: bool = False) -> list[Listed]:
    """Each tool once, by its own name; plugins after those that ship."""
    with _warnings_shown(quiet=quiet):
        names = list_registered_tools()
    found: dict[str, Listed] = {}
    for name in names:
        try:
            made = resolve_tool(Tool(name=name), _nowhere())
        except UsageError as error:
            if not quiet:
                print(f"ohsandbox: warning: {safe_line(str(error), limit_chars=1000)}", file=sys.stderr)
            continue
        for tool in made:
            found.setdefault(tool.name, Listed(tool, origin_of_tool(name)))
    return sorted(
        found.values(), key=lambda listed: (listed.origin.name != "ohsandbox", listed.origin, listed.tool.name)
    )


@contextlib.contextmanager
def _warnings_shown(*, quiet: bool) -> Iterator[None]:
    """What the registry says of plugins that do not load, in the form of our other warnings."""
    handler = logging.NullHandler() if quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ohsandbox: warning: %(message)s"))
    log = logging.getLogger("ohsandbox.tool")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _nowhere() -> ConversationState:
    """A conversation to make tools for, in which nothing runs: a tool starts nothing before its first call."""
    return ConversationState(
        conversation_id="listing", runtime=CLIRuntime("/", quiet=True), ask_model=_nobody, delegate=_nobody
    )


def _nobody(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("Tools are only listed here; none is called.")


def _fields(listed: Listed) -> dict[str, Any]:
    return {**listed.tool.to_mcp_tool(), "origin": listed.origin._asdict()}


def _print(found: list[Listed]) -> None:
    rows = [
        (listed.tool.name, _plugin(listed.origin), _effects(listed.tool), _arguments(listed.tool)) for listed in found
    ]
    print_table(("NAME", "PLUGIN", "EFFECTS", "ARGUMENTS"), rows)


def _plugin(origin: Origin) -> str:
    return "" if origin.name == "ohsandbox" else _origin(origin)


def _origin(origin: Origin) -> str:
    return f"{origin.name} {origin.version}".strip()[:MAX_NAME_CHARS]


def _effects(tool: ToolDefinition[Any, Any]) -> str:
    """The four hints in words; a hint that says nothing more is left out, as the protocol has it."""
    hints = tool.annotations or ToolAnnotations()
    words = [
        "read-only" if hints.readOnlyHint else "destructive" if hints.destructiveHint else "writes",
        "idempotent" if hints.idempotentHint else "",
        "open world" if hints.openWorldHint else "",
    ]
    return ", ".join(word for word in words if word)


def _arguments(tool: ToolDefinition[Any, Any]) -> str:
    """The names in order, the optional ones in brackets."""
    schema = tool.to_mcp_tool()["inputSchema"]
    required = schema.get("required", [])
    return " ".join(name if name in required else f"[{name}]" for name in schema["properties"])
