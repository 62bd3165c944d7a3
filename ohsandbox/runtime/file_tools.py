"""`file_read` and `file_write`: descriptions, actions and code, for `Runtime.execute_tool`, agents and MCP clients."""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import SandboxFileError, ToolError
from ohsandbox.runtime.files.text import NotTextError, count_lines, decode, line_start, read_part
from ohsandbox.schema import Action, TextObservation

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

_MAX_READ_BYTES = 16 * 1024 * 1024
"""Size up to which a file is transferred to the host; in a larger one, lines are found in the sandbox."""

FILE_READ_DESCRIPTION = """\
Read a text file in the sandbox and return its text exactly as it is, without line numbers.

`path` (required) is absolute, or relative to the sandbox's working directory. `view_range` is `[first, last]`, lines
counted from 1, both included, `-1` for the last line. At most {max_chars} characters are returned; what was left
out is stated. UTF-8, UTF-16 and what a file declares is decoded; any other byte is returned as \ufffd. Binary files are
refused: use execute_bash."""


class FileReadSource(Enum):
    """The tool that reads a file. An action with such a source changes nothing, even if its tool also writes."""

    DEFAULT = "default"
    """`file_read`, which returns the text unchanged."""
    OH_ACI = "oh_aci"
    """The editor, which adds line numbers."""


class FileReadAction(Action):
    """A file to read."""

    path: str = Field(min_length=1, max_length=4096, description="The file.")
    view_range: tuple[int, ...] | None = Field(
        default=None, min_length=2, max_length=2, description="[first, last] line, from 1; -1 is the last."
    )

    @property
    def impl_source(self) -> FileReadSource:
        """The tool that reads the file."""
        return FileReadSource.DEFAULT

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.view_range is not None:
            first, last = self.view_range
            if first < 1 or (last != -1 and last < first):
                raise ValueError(
                    f"view_range {[first, last]} must be [first, last] with 1 <= first <= last, or last -1"
                )
        return self


def read_file(runtime: Runtime, action: FileReadAction, limits: OutputLimits = DEFAULT_LIMITS) -> TextObservation:
    """Run `file_read`.

    Raises:
        SandboxFileError: the file cannot be read.
        ToolError: it is binary, or has no such lines.
        SandboxUnavailable: the sandbox is gone.
    """
    first, last = action.view_range or (1, -1)
    try:
        data = runtime.read_bytes(action.path, limit_bytes=_MAX_READ_BYTES)
    except SandboxFileError as error:
        if error.errno != errno.EFBIG:
            raise
        part = read_part(runtime, action.path, action.view_range, limit_chars=limits.max_chars)
        left_out = f"the rest of the lines, in a file of {part.size_bytes} bytes, is"
        return TextObservation(text=_whole_lines(part.text, limits, first_line=first, left_out=left_out))
    try:
        document = decode(data)
    except NotTextError as error:
        raise ToolError(f"File {action.path!r} is {error}. Look into it with execute_bash: file, xxd | head.") from None
    # other encodings are not guessed, and a byte order mark of UTF-8 is kept
    is_utf8 = document.guessed or document.encoding == "utf-8"
    text = data.decode("utf-8", "replace") if is_utf8 else document.text
    if action.view_range is not None:
        count = count_lines(text)
        if first > max(1, count):
            raise ToolError(f"File {action.path!r} has {count} lines; view_range starts at {first}. Start lower.")
        text = text[line_start(text, first) :]
        text = text if last == -1 else text[: line_start(text, last - first + 2)]
    return TextObservation(text=_whole_lines(text, limits, first_line=first))


def _whole_lines(text: str, limits: OutputLimits, *, first_line: int, left_out: str | None = None) -> str:
    """Return the text, or as many whole lines as fit and a line that explains how to read on.

    left_out describes the omitted part if the text is not the whole file.
    """
    if len(text) <= limits.max_chars:
        return text
    whole_lines = text[: limits.max_chars]
    whole_lines = whole_lines[: whole_lines.rfind("\n") + 1] or whole_lines
    following = first_line + whole_lines.count("\n")
    left_out = left_out or f"{len(text) - len(whole_lines)} of {len(text)} characters"
    if not whole_lines.endswith("\n"):
        return (
            f"{whole_lines}\n[... {left_out} left out here, in the middle of line {first_line}: read on in it with "
            f"execute_bash: sed -n {first_line}p FILE | cut -c {limits.max_chars + 1}-{2 * limits.max_chars} ...]"
        )
    return (
        f"{whole_lines}[... {left_out} left out here; "
        f"they begin in line {following}: read on with view_range [{following}, -1] ...]"
    )


FILE_WRITE_DESCRIPTION = """\
Write a whole text file in the sandbox, at once, and return how many bytes it holds. What was there before is replaced.

`path` (required) is absolute, or relative to the sandbox's working directory; missing directories are made.
`content` (required) is the file's text, written as UTF-8 exactly as given: end it with a newline where the file
should have one. Mode and owner of an existing file stay; where it is hard-linked, its other names keep the old text. To
change a part of a file, edit it rather than write it anew."""


class FileWriteAction(Action):
    """A file to write."""

    path: str = Field(min_length=1, max_length=4096, description="The file.")
    content: str = Field(description="Its whole text.")


def write_file(runtime: Runtime, action: FileWriteAction) -> TextObservation:
    """Run `file_write`.

    Raises:
        SandboxFileError: the file cannot be written.
        SandboxUnavailable: the sandbox is gone.
    """
    data = action.content.encode()
    runtime.write_bytes(action.path, data)
    return TextObservation(text=f"Wrote {len(data)} bytes to {action.path}.")
