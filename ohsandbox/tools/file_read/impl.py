"""How `file_read` runs: one call of `Runtime.read_bytes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError
from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.file_read.definition import MAX_READ_BYTES, MAX_READ_CHARS, FileReadAction

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


class FileReadExecutor(ToolExecutor[FileReadAction, TextObservation]):
    """Reads text files of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __call__(self, action: FileReadAction) -> TextObservation:
        """Read the file, or the lines asked for.

        Raises:
            SandboxFileError: it cannot be read, or is over MAX_READ_BYTES.
            ToolError: it is binary, or has no such lines.
            SandboxUnavailable: the sandbox is gone.
        """
        data = self._runtime.read_bytes(action.path, limit_bytes=MAX_READ_BYTES)
        if b"\0" in data:
            raise ToolError(
                f"File {action.path!r} is binary ({len(data)} bytes). Look into it with execute_bash: xxd, file."
            )
        text = data.decode("utf-8", "replace")
        if action.view_range is None:
            return TextObservation(text=_bounded(text, first_line=1))
        first, last = action.view_range
        lines = text.splitlines(keepends=True)
        if first > max(1, len(lines)):
            raise ToolError(f"File {action.path!r} has {len(lines)} lines; view_range starts at {first}. Start lower.")
        wanted = lines[first - 1 : None if last == -1 else last]
        return TextObservation(text=_bounded("".join(wanted), first_line=first))


def _bounded(text: str, *, first_line: int) -> str:
    """The text, or as many whole lines as MAX_READ_CHARS holds and a line that says how to read on."""
    if len(text) <= MAX_READ_CHARS:
        return text
    kept = text[:MAX_READ_CHARS]
    kept = kept[: kept.rfind("\n") + 1] or kept
    next_line = first_line + kept.count("\n")
    return (
        f"{kept}[... {len(text) - len(kept)} of {len(text)} characters left out here; "
        f"they begin in line {next_line}: read on with view_range [{next_line}, -1] ...]"
    )
