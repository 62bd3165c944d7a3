"""`grep`: finds lines by regular expression, newest files first.

One call of the sandbox finds the matching files, another reads the lines of the shown ones.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import file_error
from ohsandbox.schema import Action, TextObservation
from ohsandbox.text import counted
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, ToolExecutor
from ohsandbox.tools.search.globs import FoundPath, PathText, compile_glob
from ohsandbox.tools.search.lines import Matches, read_matches
from ohsandbox.tools.search.regexes import Regex
from ohsandbox.tools.search.script import LIMIT_S
from ohsandbox.tools.search.show import (
    fitting,
    is_binary,
    left_out,
    plain_text,
    shown_file,
    shown_path,
    warnings,
)
from ohsandbox.tools.search.walk import Listing, Query, absolute, list_files

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState

TOOL_NAME = "grep"

HINT = CallHint(sign="?", subject="pattern", writes=False)

DEFAULT_MAX_FILES = 100
MOST_FILES = 1000
_MOST_CONTEXT = 50
MAX_MATCHES = 10_000
"""Limit of the matches returned as data, which take 60 ms to check; a model is shown some 2,000 at most."""

DESCRIPTION = f"""\
Search the text of files in the sandbox, line by line, with a regular expression. Returns the matching lines with their
numbers under the absolute path of each file, the newest file first.

`pattern` (required) is a regular expression of ripgrep, or of `grep -E` in a sandbox without `rg`. Write a literal
`{{`, `(` or `[` with a backslash: `func \\w+\\(\\) \\{{`. Both know `.` `[...]` `|` `(...)` `(?:...)` `*` `+` `?`
`{{2,5}}` `^` `$` `\\d` `\\w` `\\s` `\\b` and `(?i)` at the beginning; only ripgrep knows `\\x41`, `\\pL` and a
character outside ASCII as one `.`. `\\r?$` is the end of a line in a file with CRLF. Lookarounds, backreferences and
several lines are not supported.

`path` is a directory or a file, by default the sandbox's working directory. `include` limits by name: `*.py`,
`*.{{ts,tsx}}`, or with a slash by path: `src/**/*.ts`. `ignore_case`: default false. `context`: that many lines around
each match. `mode`: `lines` (default), `files` (only paths), `counts` (matching lines of each file).

Left out are hidden files and those that .gitignore excludes, unless `include` names them or `hidden` or `ignored` asks;
`.git` always; a file given as `path` never. Of binary files only the number of matching lines is told. Up to
{DEFAULT_MAX_FILES} files (`max_files`) and about {{max_chars}} characters are shown; what was left out is stated."""


SHORT_DESCRIPTION = f"""\
Search the text of files in the sandbox, line by line; returns matching lines with numbers under each file's absolute
path, the newest file first.
`pattern` (required): a regular expression of ripgrep, or `grep -E` without `rg`; a literal `{{`, `(`, `[` with a
backslash. `(?i)` at the beginning works; lookarounds, backreferences and several lines do not. `\\r?$` is a line's
end with CRLF.
`path`: a directory or file, by default the working directory. `include`: by name `*.{{ts,tsx}}`, or by path
`src/**/*.ts`.
`ignore_case`; `context`: lines around each match; `mode`: `lines` (default), `files` (paths), `counts`.
Left out: hidden files and what .gitignore excludes, unless `include` names them or `hidden` or `ignored` asks; `.git`.
Binary files: only the number of matches. Up to {DEFAULT_MAX_FILES} files (`max_files`) and {{max_chars}} characters;
what was left out is stated."""


class GrepAction(Action):
    """A regular expression to find lines by."""

    pattern: PathText = Field(min_length=1, max_length=2000, description="The regular expression.")
    path: PathText = Field(default=".", min_length=1, description="The directory or file to search.")
    include: PathText | None = Field(
        default=None, min_length=1, max_length=1000, description="Only files that match this, such as *.{ts,tsx}."
    )
    mode: Literal["lines", "files", "counts"] = Field(default="lines", description="What to show.")
    ignore_case: bool = Field(default=False, description="Whether upper and lower case are the same.")
    context: int = Field(default=0, ge=0, le=_MOST_CONTEXT, description="Lines to show before and after each match.")
    hidden: bool = Field(default=False, description="Also hidden files.")
    ignored: bool = Field(default=False, description="Also files that .gitignore excludes.")
    max_files: int = Field(default=DEFAULT_MAX_FILES, ge=1, le=MOST_FILES, description="How many files to show.")


class GrepMatch(NamedTuple):
    """One matching line."""

    path: FoundPath
    """Absolute, as the sandbox has it; undecodable bytes as surrogate escapes."""
    line: int
    """The line's number, from 1."""
    text: str
    """The line without its end; undecodable bytes as U+FFFD; of a long line about the first 500 characters."""


class GrepObservation(TextObservation):
    """The matches, as text for the model and one by one, and how many there are."""

    matches: tuple[GrepMatch, ...] = Field(default=(), exclude=True)
    """By file, the newest first, without lines around them, of text files only: at most MAX_MATCHES, also where the
    text shows fewer; none in the modes `files` and `counts`. Not part of a dump: the text has them for a model."""
    files: tuple[FoundPath, ...] = ()
    """Absolute paths of the files with a match, newest first, at most `max_files`; undecodable bytes as surrogate
    escapes."""
    truncated: bool = False
    """There are more matches or files than these hold, or may be, as the search was stopped."""
    total_files: int = 0
    """All files with a match."""
    total_lines: int | None = None
    """All matching lines of the files that were looked into, the newest `max_files`; None in mode `files`."""
    complete: bool = True
    """False: the search was stopped, and there may be more."""


class GrepExecutor(ToolExecutor[GrepAction, GrepObservation]):
    """Searches the text of a runtime's files."""

    def __init__(self, runtime: Runtime, *, limits: OutputLimits = DEFAULT_LIMITS, limit_s: float = LIMIT_S) -> None:
        """limit_s: the search stops after this many seconds and reports its matches so far."""
        self._runtime, self._limits, self._limit_s = runtime, limits, limit_s

    def __call__(self, action: GrepAction) -> GrepObservation:
        """Find the lines.

        Raises:
            SandboxFileError: path is missing, is neither file nor directory, or may not be read.
            ToolError: the pattern or include is malformed, or the sandbox lacks a program.
            SandboxUnavailable: the sandbox is gone.
        """
        regex = Regex(action.pattern, action.ignore_case)
        path = absolute(self._runtime.workdir, action.path)
        include = action.include or "*"
        glob = compile_glob(include if "/" in include else f"**/{include}", hidden=action.hidden)
        query = Query(path, glob, hidden=action.hidden, ignored=action.ignored, regex=regex)
        listing = list_files(self._runtime, query, limit_s=self._limit_s)
        matches = None
        if action.mode != "files" or listing.is_file:
            matches = read_matches(
                self._runtime,
                [path] if listing.is_file else listing.files[: action.max_files],
                regex,
                context=action.context,
                only_counts=action.mode != "lines",
                limit_s=self._limit_s,
            )
            if listing.is_file and matches.unreadable:
                raise file_error(13, "The file may not be read by this user", action.path)
            listing = listing._replace(
                files=[file.path for file in matches.files] if listing.is_file else listing.files,
                stopped=listing.stopped or matches.stopped,
                unreadable=listing.unreadable or matches.unreadable,
            )
        count, matches_found = None, _matches(matches)
        if not listing.files:
            if matches is None or not listing.is_file:
                # where no file was searched, nothing has read the pattern; busybox reads it at the first line
                read_matches(self._runtime, ["/proc/version"], regex, only_counts=True, limit_s=self._limit_s)
            among = f", files {action.include!r}" if action.include else ""
            advice = "" if listing.is_file else left_out(hidden=action.hidden, ignored=action.ignored)
            lines = [f"No line matches {action.pattern!r} in {shown_path(path)}{among}.{advice}"]
            count = None if action.mode == "files" else 0
        elif matches is None or action.mode == "files":
            lines = self._files(action, listing)
        else:
            count = sum(file.total for file in matches.files)
            lines = self._lines(action, len(listing.files), matches, count)
        return GrepObservation(
            text="\n".join([*lines, *warnings(listing, self._limit_s)]),
            matches=matches_found,
            files=tuple(listing.files[: action.max_files]),
            truncated=listing.stopped
            or len(listing.files) > action.max_files
            or (action.mode == "lines" and count is not None and len(matches_found) < _text_lines(matches)),
            total_files=len(listing.files),
            total_lines=count,
            complete=not listing.stopped,
        )

    def _files(self, action: GrepAction, listing: Listing) -> list[str]:
        total = len(listing.files)
        shown_files = fitting([shown_path(file) for file in listing.files[: action.max_files]], self._limits)
        lines = [f"{counted(total, 'file')} with a match for {action.pattern!r}, newest first:", *shown_files]
        if len(shown_files) < total:
            lines.append(f"[The newest {len(shown_files)} of {counted(total, 'file')} are listed. {_narrower(action)}]")
        return lines

    def _lines(self, action: GrepAction, total: int, matches: Matches, count: int) -> list[str]:
        looked_into = len(matches.files)
        summary = f"{counted(count, 'matching line')} in {counted(looked_into, 'file')}, newest file first"
        if total > action.max_files:
            summary = (
                f"{counted(total, 'file')} match; the newest {looked_into:,} hold {counted(count, 'matching line')}"
            )
        blocks = [shown_file(file, only_count=action.mode == "counts") for file in matches.files]
        shown_lines = fitting([line for block in blocks for line in block], self._limits)
        lines = [f"{summary}:", *shown_lines]
        unmatched = min(total, action.max_files) - looked_into
        if unmatched:
            lines.append(
                f"[{counted(unmatched, 'file')} matched at first, but no line did then: changed, removed, or binary.]"
            )
        omission = _cut(action, matches, blocks, len(shown_lines))
        if omission or total > action.max_files:
            lines.append(f"[{omission}{_narrower(action)}]")
        return lines


def _matches(matches: Matches | None) -> tuple[GrepMatch, ...]:
    """The first MAX_MATCHES lines that match, of the files that are text."""
    lines = (
        GrepMatch(file.path, line.number, plain_text(line))
        for file in (matches.files if matches else ())
        if not is_binary(file)
        for line in file.lines
        if line.matches
    )
    return tuple(islice(lines, MAX_MATCHES))


def _text_lines(matches: Matches | None) -> int:
    """How many lines match in files that are text."""
    return sum(file.total for file in (matches.files if matches else ()) if not is_binary(file))


def _cut(action: GrepAction, matches: Matches, blocks: list[list[str]], shown_count: int) -> str:
    """Describe the missing matches of the read files if only the first lines of all blocks are shown."""
    if action.mode == "counts":
        return f"{shown_count:,} of {len(blocks):,} files shown. " if shown_count < len(blocks) else ""
    lines_shown = files = 0
    for file, block in zip(matches.files, blocks, strict=True):
        if shown_count <= 0:
            break
        files += 1
        if len(block) == 1:
            lines_shown += file.total
        else:
            lines_shown += sum(1 for line in block[1:shown_count] if line.partition(" ")[0].endswith(":"))
        shown_count -= len(block)
    count = sum(file.total for file in matches.files)
    if lines_shown == count:
        return ""
    return f"{lines_shown:,} of {counted(count, 'matching line')} and {files:,} of {len(blocks):,} files shown. "


def _narrower(action: GrepAction) -> str:
    return "Narrow `pattern`, `path` or `include`" + (", or use `mode`: files." if action.mode == "lines" else ".")


def make_grep_tool(*, conv_state: ConversationState) -> ToolDefinition[GrepAction, GrepObservation]:
    """Create the tool `grep`. The conversation needs a runtime."""
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION.replace("{max_chars}", f"{conv_state.output.max_chars:,}"),
        short_description=SHORT_DESCRIPTION.replace("{max_chars}", f"{conv_state.output.max_chars:,}"),
        action_type=GrepAction,
        observation_type=GrepObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Search files"),
        executor=GrepExecutor(conv_state.require_runtime(), limits=conv_state.output),
    )


BUILT_IN = BuiltInTool(make_grep_tool, HINT)
