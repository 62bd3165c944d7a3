"""The matching lines of known files, with their numbers and context."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.tools.search.script import LIMIT_S, UNREADABLE, ScriptReply, engine_of, run_job

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tools.search.regexes import Regex

MAX_LINES_BYTES = 8 * 1024 * 1024
"""Limit of the sandbox's output with long lines cut: every line repeats a name, so this far exceeds the shown text."""
MAX_LINE_CHARS = 500
"""Limit of a shown line."""
_CUT_BYTES = 4 * MAX_LINE_CHARS + 64
"""Length at which lines are cut: enough for MAX_LINE_CHARS of any UTF-8, a number, and a truncation mark."""

_AMBIGUOUS = re.compile(r"[:-][0-9]+[:-]|:[0-9]+\n|\n")
"""Parts of a name that could be mistaken for its end in `name:12:text`."""
_NUMBER = re.compile(r"([:-])([0-9]+)\1")
_GAP = "--\n"
"""Separates non-adjacent lines in output with context; a name begins with a slash."""
_COUNT = re.compile(r":([0-9]+)\n")


class Line(NamedTuple):
    """One line."""

    number: int
    text: str
    """A little over MAX_LINE_CHARS at most; undecodable bytes as surrogate escapes, NUL as \\x01."""
    matches: bool
    """False: it is a context line."""


class FileLines(NamedTuple):
    """The matches in a file."""

    path: str
    total: int
    """All matching lines; if the time limit was reached, those found until then."""
    lines: tuple[Line, ...]
    """The first ones; fewer than total if the size limit was reached."""


class Matches(NamedTuple):
    """The matches in some files."""

    files: list[FileLines]
    """The files in the requested order, without those that have no match."""
    stopped: bool
    """The time limit was reached: counts may be too low."""
    unreadable: bool
    """Some files could not be read."""


def read_matches(
    runtime: Runtime,
    paths: list[str],
    regex: Regex,
    *,
    context: int = 0,
    only_counts: bool = False,
    limit_s: float = LIMIT_S,
) -> Matches:
    """Return the matching lines of files given by their absolute paths.

    Raises:
        ToolError: as `run_job`.
    """
    engine = engine_of(runtime)

    def ask(group: list[str], limit_bytes: int) -> ScriptReply:
        max_line_bytes = max(len(path.encode("utf-8", "surrogateescape")) for path in group) + _CUT_BYTES
        words = (*regex.words(engine.name), str(context), str(max_line_bytes), str(limit_bytes), *group)
        return run_job(runtime, f"{engine.name}-lines", *words, limit_s=limit_s)

    odd = {path for path in paths if _AMBIGUOUS.search(path)}
    groups = [[path for path in paths if path not in odd], *([path] for path in paths if path in odd)]
    lines_of: dict[str, FileLines] = {}
    stopped = unreadable = False
    for group in filter(None, groups):
        reply = None if only_counts else ask(group, MAX_LINES_BYTES)
        lines = _lines(reply.stdout, group) if reply else {}
        if reply is None or UNREADABLE in reply.statuses.values() or _size(reply.stdout) >= MAX_LINES_BYTES:
            reply = ask(group, 0)  # lists the counts; it also reports a refused pattern
            totals = _counts(reply.stdout, group)
        else:
            totals = {path: sum(line.matches for line in each) for path, each in lines.items()}
        lines_of |= {path: FileLines(path, total, tuple(lines.get(path, ()))) for path, total in totals.items()}
        stopped = stopped or reply.stopped
        unreadable = unreadable or UNREADABLE in reply.statuses.values()
    return Matches([lines_of[path] for path in paths if path in lines_of], stopped, unreadable)


def _counts(text: str, paths: list[str]) -> dict[str, int]:
    """The number of matching lines in each file that has any."""
    counts = {}
    position = 0
    for path in paths:
        counted = _COUNT.match(text, position + len(path)) if text.startswith(path, position) else None
        if counted is not None:
            position = counted.end()
            if int(counted[1]):
                counts[path] = int(counted[1])
    return counts


def _size(text: str) -> int:
    """Return the size in bytes; exact only if it may reach MAX_LINES_BYTES."""
    return len(text.encode("utf-8", "surrogateescape")) if len(text) * 4 >= MAX_LINES_BYTES else len(text)


def _lines(text: str, paths: list[str]) -> dict[str, list[Line]]:
    """Return the lines by file. The files and their order are known, so each name can be told from what follows it."""
    lines_of: dict[str, list[Line]] = {}
    position = current = 0
    while position < len(text):
        if text.startswith(_GAP, position):
            position += len(_GAP)
            continue
        heads = ((i, _head(text, position, paths[i])) for i in range(current, len(paths)))
        current, head = next(((i, head) for i, head in heads if head), (current, None))
        end = text.find("\n", head.end()) if head else -1
        if head is None or end < 0:
            break  # cut off by MAX_LINES_BYTES
        lines_of.setdefault(paths[current], []).append(Line(int(head[2]), text[head.end() : end], head[1] == ":"))
        position = end + 1
    return lines_of


def _head(text: str, position: int, path: str) -> re.Match[str] | None:
    return _NUMBER.match(text, position + len(path)) if text.startswith(path, position) else None
