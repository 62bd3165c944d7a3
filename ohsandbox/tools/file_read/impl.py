"""Implementation of `file_read`: one call of `Runtime.read_bytes`."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxFileError, ToolError
from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.file_editor.lines import count_lines, line_start
from ohsandbox.tools.file_editor.part import read_part
from ohsandbox.tools.file_editor.text import NotTextError, decode
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
            SandboxFileError: it cannot be read.
            ToolError: it is binary, or has no such lines.
            SandboxUnavailable: the sandbox is gone.
        """
        first = action.view_range[0] if action.view_range else 1
        try:
            data = self._runtime.read_bytes(action.path, limit_bytes=MAX_READ_BYTES)
        except SandboxFileError as error:
            if error.errno != errno.EFBIG:
                raise
            part = read_part(self._runtime, action.path, action.view_range)
            left_out = f"the rest of the lines, in a file of {part.size_bytes} bytes, is"
            return TextObservation(text=_bounded(part.text, first_line=first, left_out=left_out))
        text = _selected(action, _decoded(data, action.path))
        return TextObservation(text=_bounded(text, first_line=first))


def _decoded(data: bytes, path: str) -> str:
    """Decode UTF-8 and keep a byte order mark; other encodings are not guessed."""
    try:
        document = decode(data)
    except NotTextError as error:
        raise ToolError(f"File {path!r} is {error}. Look into it with execute_bash: file, xxd | head.") from None
    if document.guessed or document.encoding == "utf-8":
        return data.decode("utf-8", "replace")
    return document.text


def _selected(action: FileReadAction, text: str) -> str:
    if action.view_range is None:
        return text
    first, last = action.view_range
    count = count_lines(text)
    if first > max(1, count):
        raise ToolError(f"File {action.path!r} has {count} lines; view_range starts at {first}. Start lower.")
    start = line_start(text, first)
    return text[start:] if last == -1 else text[start : start + line_start(text[start:], last - first + 2)]


def _bounded(text: str, *, first_line: int, left_out: str | None = None) -> str:
    """The text, or as many whole lines as fit in MAX_READ_CHARS and a line that explains how to read on.

    Left_out describes the omitted part if the text is not the whole file.
    """
    if len(text) <= MAX_READ_CHARS:
        return text
    kept = text[:MAX_READ_CHARS]
    kept = kept[: kept.rfind("\n") + 1] or kept
    following = first_line + kept.count("\n")
    left_out = left_out or f"{len(text) - len(kept)} of {len(text)} characters"
    if not kept.endswith("\n"):
        return (
            f"{kept}\n[... {left_out} left out here, in the middle of line {first_line}: read on in it with "
            f"execute_bash: sed -n {first_line}p FILE | cut -c {MAX_READ_CHARS + 1}-{2 * MAX_READ_CHARS} ...]"
        )
    return (
        f"{kept}[... {left_out} left out here; "
        f"they begin in line {following}: read on with view_range [{following}, -1] ...]"
    )
