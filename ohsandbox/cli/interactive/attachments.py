"""Attachments of a message to the agent: files named with an `@`, and commands that the person ran with `!`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.rendering.markdown import fenced
from ohsandbox.cli.rendering.text import size
from ohsandbox.content import image_url
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.content import OutputLimits
    from ohsandbox.runtime.base import Runtime

MAX_FILE_BYTES = 64 * 1024
"""Largest attached file: about 16,000 tokens. The agent reads a larger one in parts."""
MAX_FILES = 20
"""Largest number of files in a message; each is looked up in the sandbox."""
MAX_PATH_CHARS = 4096
_MENTION = re.compile(r"(?:(?<=\s)|^)@((?:\\.|[^\s\\])+)")
_ESCAPED = re.compile(r"\\(.)")
_TO_ESCAPE, _BACKSLASH = re.compile(r"([\s\\])"), r"\\\1"
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})


class Ran(NamedTuple):
    """A command that the person ran in the sandbox."""

    command: str
    output: str
    ending: str
    """How the command ended, as in `exit 1`."""

    def text(self, limits: OutputLimits) -> str:
        """Return the command with the end of its output, of which as much is kept as of a tool's result."""
        kept = self.output if len(self.output) <= limits.max_chars else f"…{self.output[-limits.max_chars :]}"
        block = fenced(f"$ {self.command}\n{kept}")
        return f"I ran this in the sandbox ({self.ending}):\n{block}"


class OutgoingMessage(NamedTuple):
    """A message as it is sent to the agent."""

    text: str
    images: tuple[str, ...] = ()
    """Images as data URLs."""


def with_attachments(
    text: str,
    ran: list[Ran],
    runtime: Runtime,
    tell: Callable[[str], None],
    *,
    limits: OutputLimits,
    typed: str | None = None,
) -> OutgoingMessage:
    """Return the message for the agent: the commands that the person ran, the text, and the files it names with an `@`.

    Args:
        text: the whole message.
        ran: commands that are put before the text.
        runtime: the sandbox in which paths are looked up first, before this machine.
        tell: is given a line about each attachment, also about those that failed.
        limits: the conversation's: of images, and of the commands' output.
        typed: the part of the text that may name files; None is the whole text.
    """
    named = list(dict.fromkeys(_MENTION.findall(text if typed is None else typed)))[:MAX_FILES]
    files: list[str] = []
    images: list[str] = []
    for mention in named:
        path = _ESCAPED.sub(r"\1", mention.rstrip(",.;:!?)"))
        if (found := _read(path, runtime, limits)) is None:
            continue
        data, place = found
        if (url := image_url(data)) is not None:
            if _accepts_image(url, path, len(images), limits, tell):
                tell(f"Attached: {path}{place}, an image of {size(len(data))}.")
                images.append(url)
        elif shown := _attached(path, data, place, tell):
            files.append(shown)
    return OutgoingMessage("\n\n".join([*(command.text(limits) for command in ran), text, *files]), tuple(images))


def pasted_file(text: str) -> str | None:
    """Return the mention of an image whose path was pasted or dropped on the terminal; None for any other text."""
    try:
        [word] = shlex.split(text.strip().removeprefix("file://")) if len(text) <= MAX_PATH_CHARS else []
        path = Path(word).expanduser()
        if path.suffix.lower() not in _IMAGES or not path.is_absolute() or not path.is_file():
            return None
    except (ValueError, OSError):
        return None
    return f"@{_TO_ESCAPE.sub(_BACKSLASH, str(path))} "


def _accepts_image(url: str, path: str, number: int, limits: OutputLimits, tell: Callable[[str], None]) -> bool:
    try:
        limits.check_images([url] * (number + 1))
    except UsageError as error:
        tell(f"{path}: {error} The agent gets its path.")
        return False
    return True


def _attached(path: str, data: bytes, place: str, tell: Callable[[str], None]) -> str | None:
    if len(data) > MAX_FILE_BYTES:
        tell(f"{path} has more than {MAX_FILE_BYTES // 1024} KiB: the agent gets its path and reads what it needs.")
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        tell(f"{path} is not text: the agent gets its path.")
        return None
    tell(f"Attached: {path}{place}, {counted(text.count(chr(10)) + 1, 'line')}.")
    return f"Contents of {path}:\n{fenced(text)}"


def _read(path: str, runtime: Runtime, limits: OutputLimits) -> tuple[bytes, str] | None:
    """Return the beginning of the file and its location; None if it is not a file.

    Of an image that is too large as a data URL, enough is read to see that.
    """
    limit = limits.max_image_chars * 3 // 4 if Path(path).suffix.lower() in _IMAGES else MAX_FILE_BYTES
    try:
        return runtime.read_bytes(path, limit_bytes=limit + 1), ""
    except OhsandboxError:
        pass
    file = Path(path).expanduser()
    try:
        if not file.is_file():  # a FIFO of that name in the workspace would never end
            return None
        with file.open("rb") as opened:
            return opened.read(limit + 1), " of this machine"
    except OSError:
        return None
