"""What goes to the agent with a message: files that are named with an `@`, and commands that the person ran."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime

MAX_FILE_BYTES = 64 * 1024
"""About 16,000 tokens; a larger file is for the agent to read in parts."""
MAX_FILES = 20
"""Of a message: each is looked for in the sandbox."""
MAX_OUTPUT_CHARS = 10_000
"""Of the end of a command's output, as the agent's own shell shows it."""
_MENTION = re.compile(r"(?:(?<=\s)|^)@(\S+)")
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"})


class Ran(NamedTuple):
    """A command that the person ran in the sandbox."""

    command: str
    output: str
    ending: str
    """`exit 1`."""

    def __str__(self) -> str:
        shown = self.output if len(self.output) <= MAX_OUTPUT_CHARS else f"…{self.output[-MAX_OUTPUT_CHARS:]}"
        block = _fenced(f"$ {self.command}\n{shown}")
        return f"I ran this in the sandbox ({self.ending}):\n{block}"


def with_attachments(
    text: str, ran: list[Ran], runtime: Runtime, tell: Callable[[str], None], *, typed: str | None = None
) -> str:
    """The message as the agent gets it: what the person ran, the text, and the files that it names with an `@`.

    Args:
        text: all of it.
        ran: what goes before it.
        runtime: a path is one of this sandbox, or else of this machine.
        tell: says what was attached, and what could not be.
        typed: the part of the text in which files are named; None is all of it.
    """
    named = list(dict.fromkeys(_MENTION.findall(text if typed is None else typed)))[:MAX_FILES]
    files = [shown for path in named if (shown := _attached(path, runtime, tell))]
    return "\n\n".join([*map(str, ran), text, *files])


def _attached(path: str, runtime: Runtime, tell: Callable[[str], None]) -> str | None:
    path = path.rstrip(",.;:!?)")
    found = _read(path, runtime)
    if found is None:
        return None
    data, place = found
    if Path(path).suffix.lower() in _IMAGES:
        tell(f"{path} is an image: a message carries text only, so the agent gets its path.")
        return None
    if len(data) > MAX_FILE_BYTES:
        tell(f"{path} has more than {MAX_FILE_BYTES // 1024} KiB: the agent gets its path and reads what it needs.")
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        tell(f"{path} is not text: the agent gets its path.")
        return None
    tell(f"Attached: {path}{place}, {text.count(chr(10)) + 1} lines.")
    return f"Contents of {path}:\n{_fenced(text)}"


def _read(path: str, runtime: Runtime) -> tuple[bytes, str] | None:
    """The beginning of the file, and where it lies; None where it is no file."""
    try:
        return runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES + 1), ""
    except OhsandboxError:
        pass
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1), " of this machine"
    except OSError:
        return None


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"
