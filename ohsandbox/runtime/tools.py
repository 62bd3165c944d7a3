"""The runtime's own tools, in MCP shape: `execute_bash`, `file_read` and `file_write`, and calls of MCP tools."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import Field, ValidationError

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.schema import Action, ErrorObservation, TextObservation

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.schema import Observation

YIELD_S = 120.0
"""Long enough for a test suite; what still runs then is left running, and can be waited for again."""

READ_LIMIT_BYTES = 16 * 1024 * 1024
"""A text file past this is data; `grep`, `head` and `sed` look into it without moving it to the host."""

_SNIFFED_BYTES = 8192
"""Where a NUL means that the file is binary: what git and grep look at, roughly."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""A line ends at a line feed and nowhere else, as for `sed -n 2,3p`."""


class ExecuteBash(Action):
    """Run a command in the sandbox's persistent shell and return its output and exit code.

    Working directory, variables and functions stay for the next call. A command that is not done after 120 seconds is
    left running, and an empty command waits on; with `timeout` (seconds, at most 3600) it is ended then, with all it
    started. A program that waits for input is reported and can be answered with `is_input`.
    """

    command: str = Field(description="The command. Empty: wait for the running one.")
    is_input: bool | Literal["true", "false"] = Field(
        default=False, description="Type `command` to the running program; a key such as C-c is pressed."
    )
    timeout: float | None = Field(
        default=None, gt=0, le=3600, allow_inf_nan=False, description="Seconds until it is ended; left out, it is not."
    )


class FileRead(Action):
    """Read a text file of the sandbox and return its text, or the lines asked for, exactly as they are.

    Binary files and files over 16 MiB are refused: use execute_bash for them.
    """

    path: str = Field(description="Absolute, or relative to the working directory.")
    view_range: list[int] | None = Field(
        default=None, min_length=2, max_length=2, description="First and last line, from 1; last -1 is the end."
    )


class FileWrite(Action):
    """Write a text file of the sandbox, whole and at once; the old text is gone, missing directories are made.

    The mode and owner of an existing file stay.
    """

    path: str = Field(description="Absolute, or relative to the working directory.")
    content: str = Field(description="The file's new text.")


class MCPAction(Action):
    """A call of an MCP tool by name."""

    name: str
    """As the model calls the tool, or `server__tool`."""
    arguments: dict[str, Any] = Field(default_factory=dict)


class MCPToolCaller(Protocol):
    """The MCP servers of a sandbox; `ohsandbox.mcp.MCPServers` is it."""

    def call_tool_mcp(self, action: MCPAction) -> Observation:
        """Call a tool.

        Raises:
            ToolError: the tool does not exist, or gives no result.
        """


_ACTIONS: dict[str, type[Action]] = {"execute_bash": ExecuteBash, "file_read": FileRead, "file_write": FileWrite}


def definitions() -> list[dict[str, Any]]:
    """Name, description and inputSchema of each."""
    return [
        {"name": name, "description": inspect.getdoc(action), "inputSchema": action.model_json_schema()}
        for name, action in _ACTIONS.items()
    ]


def execute(
    runtime: Runtime, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None = None
) -> Observation:
    """Run one tool; a model's mistakes return an ErrorObservation. cancel ends a command, as in `Runtime.execute`."""
    if name not in _ACTIONS:
        return ErrorObservation(message=f"Unknown tool: {name}")
    try:
        return _dispatch(runtime, _ACTIONS[name].model_validate(dict(arguments)), cancel)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        return ErrorObservation(message=f"Invalid arguments of {name}: {found}. Nothing ran; correct them")
    except (ToolError, UsageError) as error:
        return ErrorObservation(message=str(error))


def _dispatch(runtime: Runtime, action: Action, cancel: threading.Event | None) -> Observation:
    match action:
        case ExecuteBash():
            is_input = action.is_input in (True, "true")
            yield_s = YIELD_S if action.timeout is None else None
            return runtime.execute(
                action.command, timeout_s=action.timeout, yield_s=yield_s, is_input=is_input, cancel=cancel
            )
        case FileRead():
            data = runtime.read_bytes(action.path, limit_bytes=READ_LIMIT_BYTES)
            return TextObservation(text=select_lines(data, action.view_range))
        case FileWrite():
            data = action.content.encode("utf-8", "surrogateescape")
            runtime.write_bytes(action.path, data)
            return TextObservation(text=f"Wrote {len(data)} bytes to {action.path}")
        case _:
            raise AssertionError(action)


def select_lines(data: bytes, view_range: Sequence[int] | None) -> str:
    """Text of a file, or its lines first to last (from 1, both included; last -1 or past the end is the end).

    Raises:
        ToolError: it is binary, or the range is not in the file.
    """
    if b"\0" in data[:_SNIFFED_BYTES]:
        raise ToolError(f"This is a binary file of {len(data)} bytes; look at it with `file` or `xxd` in execute_bash")
    text = data.decode("utf-8", "replace")
    if view_range is None:
        return text
    lines = _LINE.findall(text)
    first, last = view_range
    last = len(lines) if last == -1 else last
    if not lines and first == 1:
        return ""
    if not 1 <= first <= min(last, len(lines)):
        raise ToolError(
            f"view_range {[*view_range]} is not in the file, which has {len(lines)} lines; "
            "give [first, last] with 1 <= first <= last, or last -1"
        )
    return "".join(lines[first - 1 : last])
