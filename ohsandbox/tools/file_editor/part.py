"""Reads some lines of a file that is too large to transfer; the sandbox itself finds them."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ToolError
from ohsandbox.tools.file_editor.lines import MAX_VIEW_CHARS
from ohsandbox.tools.file_editor.text import SNIFFED_BYTES

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

PATIENCE_S = 10.0
"""GNU tail reads about 1 GB a second; a longer search is a task for a shell."""

MAX_PART_BYTES = 4 * MAX_VIEW_CHARS
"""No character takes more than four bytes in UTF-8."""

_SCRIPT = files("ohsandbox.tools.file_editor").joinpath("part.sh").read_text("utf-8")


class Part(NamedTuple):
    """The lines found."""

    size_bytes: str
    """The size of the whole file, as `ls` reports it."""
    text: str
    """The lines from the first requested one, up to MAX_PART_BYTES."""


def read_part(runtime: Runtime, path: str, view_range: tuple[int, ...] | None) -> Part:
    """Read the lines of view_range (None: from the first line).

    Raises:
        ToolError: the file is binary, has no such lines, or they were not reached in PATIENCE_S seconds.
    """
    first, last = view_range or (1, -1)
    count = MAX_PART_BYTES if last == -1 else min(last - first + 1, MAX_PART_BYTES)
    argv = ["sh", "-c", _SCRIPT, "sh", path, str(first), str(count), str(MAX_PART_BYTES)]
    result = runtime.run(argv, timeout_s=PATIENCE_S)
    head, _, rest = result.stdout.partition(b"\n")
    size = head.decode("ascii", "replace")
    if b"\0" in rest[:SNIFFED_BYTES]:
        raise ToolError(f"{path!r} is a binary file of {size} bytes. Look into it with execute_bash: file, xxd | head.")
    if result.timed_out or result.exit_code:
        raise ToolError(
            f"{path!r} has {size} bytes; its line {first} was not reached in {PATIENCE_S:.0f} s. Use sed -n in "
            "execute_bash with a longer timeout."
        )
    text = rest[SNIFFED_BYTES:].decode("utf-8", "replace")
    if not text:
        raise ToolError(f"{path!r} has {size} bytes and no line {first}. Start lower.")
    return Part(size, text)
