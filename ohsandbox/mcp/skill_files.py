"""The files of a repository's skills that may define MCP servers: they are found and read in the sandbox.

A skill is a Markdown file whose front matter may have `mcp_tools` (OpenHands' microagents), or a directory with a
`SKILL.md` and perhaps a `.mcp.json`. Whoever can write to the repository can add one, including the agent.
Therefore symlinks are not followed.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import SandboxFileError
from ohsandbox.review_text import concealed_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

PLACES = (".agents/skills", ".openhands/skills", ".openhands/microagents")
"""Directories of skills below the working directory, as in OpenHands."""

MAX_FILES, MAX_DIRECTORIES, MAX_NAMES, MAX_DEPTH = 500, 500, 10_000, 6
"""Limits of the search below PLACES: a repository of 300 skills has 300 files or directories. Each takes 4 ms."""
MAX_FILE_BYTES = 1024 * 1024
MAX_DEFINITION_BYTES = 16 * 1024
"""Maximum size of a front matter and of a `.mcp.json`; the YAML parser reads 100 KB a second."""
_MAX_DEFINING_FILES = 32
MAX_PATH_CHARS = 300
KEY = "mcp_tools"
_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n")
_END = re.compile(rb"^---[ \t]*\r?$", re.MULTILINE)


class TooManySkillsError(Exception):
    """A limit is exceeded; the message says which."""

    @property
    def sentence(self) -> str:
        """The message for a person."""
        return f"The skills have {self}. Name those that you want in your own settings."


class SkillFiles(NamedTuple):
    """The files that may define servers."""

    definitions: tuple[tuple[str, bytes], ...] = ()
    """Path and unparsed definition of each file: the front matter of Markdown, all of a `.mcp.json`."""
    refused: tuple[str, ...] = ()
    """One sentence for each file that is not read. It contains foreign text that is not safe to print as it is."""


def find_skill_files(runtime: Runtime) -> SkillFiles:
    """Find the files below the sandbox's working directory. If any limit is exceeded, none is returned.

    Raises:
        SandboxUnavailable: the sandbox is unavailable.
    """
    refused: list[str] = []
    try:
        return SkillFiles(tuple(_defining_files(runtime, refused)), tuple(refused))
    except TooManySkillsError as error:
        return SkillFiles(refused=(error.sentence,))


def _defining_files(runtime: Runtime, refused: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and unparsed definition of each file that may define servers."""
    count = 0
    for path in _skill_files(runtime):
        try:
            data = runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        except SandboxFileError:
            refused.append(f"{path!r}: it cannot be read, or is over {MAX_FILE_BYTES} bytes. Shorten it.")
            continue
        if path.endswith(".md"):
            data = _front_matter(data)
        if KEY.encode() not in data and path.endswith(".md"):
            continue
        if len(path) > MAX_PATH_CHARS or concealed_in(path) or "\n" in path:
            refused.append(f"{path[:MAX_PATH_CHARS]!r}: its path is long, or holds characters that cannot be seen.")
        elif len(data) > MAX_DEFINITION_BYTES:
            refused.append(f"{path!r}: {len(data)} bytes are too much to define servers. Shorten it to 16 KiB.")
        elif count == _MAX_DEFINING_FILES:
            raise TooManySkillsError(f"more than {_MAX_DEFINING_FILES} files that name servers")
        else:
            count += 1
            yield path, data


def _skill_files(runtime: Runtime) -> Iterator[str]:
    names = files = directories = 0
    pending = [""]
    while pending:
        directory = pending.pop()
        directories += 1
        try:
            entries = runtime.list_dir(directory or ".")
        except SandboxFileError:
            continue
        names += len(entries) if directory else 0
        skill = any(entry.name.lower() == "skill.md" and entry.kind == "file" for entry in entries)
        for entry in entries:
            path = posixpath.join(directory, entry.name)
            if entry.kind == "directory" and _leads_to_skills(path):
                pending.append(path)
            elif entry.kind == "file" and _is_skill(path) and (entry.name != ".mcp.json" or skill):
                files += 1
                yield path
        if files > MAX_FILES or directories > MAX_DIRECTORIES or names > MAX_NAMES or directory.count("/") > MAX_DEPTH:
            most = f"{MAX_FILES} files, {MAX_DIRECTORIES} directories or {MAX_NAMES} names"
            raise TooManySkillsError(f"more than {most}, or are over {MAX_DEPTH} deep")


def _leads_to_skills(path: str) -> bool:
    return any(f"{path}/".startswith(f"{directory}/") or directory.startswith(f"{path}/") for directory in PLACES)


def _is_skill(path: str) -> bool:
    name = posixpath.basename(path)
    is_one = name == ".mcp.json" or (name.endswith(".md") and name != "README.md")
    return is_one and any(path.startswith(f"{directory}/") for directory in PLACES)


def _front_matter(data: bytes) -> bytes:
    """Return the text from the first `---` to the line before the second one; empty if there is none."""
    begin = _BEGIN.match(data)
    end = None if begin is None else _END.search(data, begin.end())
    return b"" if end is None else data[: end.start()]
