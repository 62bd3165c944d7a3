"""The runtime's own tools: what the PRD's `get_tools` and `execute_tool` promise, in MCP shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.schema import Action, ErrorObservation, TextObservation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.schema import Observation

DEFAULT_TIMEOUT_S = 120.0
"""Long enough for a test suite, short enough that a forgotten server does not cost an afternoon."""


class ExecuteBash(Action):
    """Run a command in the sandbox's persistent shell and return its output and exit code."""

    command: str = Field(description="The command. Empty: wait for the running one.")
    is_input: bool | Literal["true", "false"] = Field(False, description="Type `command` to the running program.")
    timeout: float = Field(DEFAULT_TIMEOUT_S, gt=0, le=3600, allow_inf_nan=False, description="Seconds.")


class FileRead(Action):
    """Read a text file of the sandbox and return its text, or the lines asked for."""

    path: str = Field(description="Absolute, or relative to the working directory.")
    view_range: tuple[int, int] | None = Field(None, description="First and last line, from 1; last -1 is the end.")


class FileWrite(Action):
    """Write a file of the sandbox, whole; missing parent directories are made."""

    path: str = Field(description="Absolute, or relative to the working directory.")
    content: str = Field(description="The file's new text.")


_ACTIONS: dict[str, type[Action]] = {"execute_bash": ExecuteBash, "file_read": FileRead, "file_write": FileWrite}


def definitions() -> list[dict[str, Any]]:
    """Name, description and inputSchema of each."""
    return [
        {"name": name, "description": action.__doc__, "inputSchema": action.model_json_schema()}
        for name, action in _ACTIONS.items()
    ]


def execute(runtime: Runtime, name: str, arguments: Mapping[str, Any]) -> Observation:
    """Run one; a model's mistakes come back as ErrorObservation."""
    if name not in _ACTIONS:
        return ErrorObservation(message=f"Unknown tool: {name}")
    try:
        return _dispatch(runtime, _ACTIONS[name].model_validate(dict(arguments)))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        return ErrorObservation(message=f"Arguments of {name} are wrong: {found}")
    except (ToolError, UsageError) as error:
        return ErrorObservation(message=str(error))


def _dispatch(runtime: Runtime, action: Action) -> Observation:
    match action:
        case ExecuteBash():
            is_input = action.is_input in (True, "true")
            return runtime.execute(action.command, timeout_s=action.timeout, is_input=is_input)
        case FileRead():
            return TextObservation(text=select_lines(runtime.read_bytes(action.path), action.view_range))
        case FileWrite():
            runtime.write_bytes(action.path, action.content.encode("utf-8", "surrogateescape"))
            return TextObservation(text=f"Wrote {len(action.content)} characters to {action.path}")
        case _:
            raise AssertionError(action)


def select_lines(data: bytes, view_range: tuple[int, int] | None) -> str:
    """Text of a file, or its lines first to last (from 1, both included; last -1 is the end).

    Raises:
        ToolError: it is binary, or the range is not in the file.
    """
    if b"\0" in data[:8192]:
        raise ToolError(f"This is a binary file of {len(data)} bytes")
    text = data.decode("utf-8", "replace")
    if view_range is None:
        return text
    lines = text.splitlines(keepends=True)
    first, last = view_range
    last = len(lines) if last == -1 else last
    if not 1 <= first <= last or first > len(lines):
        raise ToolError(f"view_range {list(view_range)} is not in the file, which has {len(lines)} lines")
    return "".join(lines[first - 1 : last])
