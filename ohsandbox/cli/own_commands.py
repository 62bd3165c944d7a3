"""A person's own slash commands: `commands/review.md` of the state directory is a message for the agent, `/review`.

They are read from the state directory alone, which no sandbox reaches: a repository brings none.
"""

from __future__ import annotations

import contextlib
import os
import re

from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir
from ohsandbox.private_files import open_regular

DIRECTORY_NAME = "commands"
MAX_BYTES = 64 * 1024
MAX_COMMANDS = 200
ARGUMENTS = "$ARGUMENTS"
"""In the file: what stands behind the command. Where the file has none of it, that follows the text."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)


def own_commands() -> dict[str, str]:
    """The first line of each, by its name with a slash; those whose file cannot be read are left out."""
    found: dict[str, str] = {}
    names = sorted(path.stem for path in (state_dir() / DIRECTORY_NAME).glob("*.md"))
    for name in names[:MAX_COMMANDS]:
        if _NAME.fullmatch(name):
            with contextlib.suppress(UsageError):
                found[f"/{name}"] = _text_of(name).partition("\n")[0].lstrip("# ")
    return found


def own_message(line: str) -> str | None:
    """What the agent is told for a line that begins with such a command; None where there is none of that name.

    Raises:
        UsageError: its file cannot be read, is empty, is not UTF-8, or has over MAX_BYTES.
    """
    word, _, rest = line.strip().partition(" ")
    name = word.removeprefix("/").lower()
    if not word.startswith("/") or not _NAME.fullmatch(name):
        return None
    if not (state_dir() / DIRECTORY_NAME / f"{name}.md").exists():
        return None
    text, rest = _text_of(name), rest.strip()
    if ARGUMENTS in text:
        return text.replace(ARGUMENTS, rest)
    return f"{text}\n\n{rest}" if rest else text


def _text_of(name: str) -> str:
    path = state_dir() / DIRECTORY_NAME / f"{name}.md"
    what = f"The command {str(path)!r}"
    with os.fdopen(open_regular(path, os.O_RDONLY, name="The command"), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what} has over {MAX_BYTES} bytes. Shorten it.")
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text (byte {error.start}). Convert it.") from None
    if not text:
        raise UsageError(f"{what} is empty. Write into it what the agent is to be told.")
    return text
