"""What the model is told of `grep`, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition
from ohsandbox.tools.search.globs import PathText  # noqa: TC001 - pydantic reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "grep"

HINT = CallHint(sign="?", subject="pattern", writes=False)

DEFAULT_MAX_FILES = 100
MOST_FILES = 1000
MOST_CONTEXT = 50

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
{DEFAULT_MAX_FILES} files (`max_files`) and about 30,000 characters are shown; what was left out is stated."""


class GrepAction(Action):
    """A regular expression to find lines by."""

    pattern: PathText = Field(min_length=1, max_length=2000, description="The regular expression.")
    path: PathText = Field(default=".", min_length=1, description="The directory or file to search.")
    include: PathText | None = Field(
        default=None, min_length=1, max_length=1000, description="Only files that match this, such as *.{ts,tsx}."
    )
    mode: Literal["lines", "files", "counts"] = Field(default="lines", description="What to show.")
    ignore_case: bool = Field(default=False, description="Whether upper and lower case are the same.")
    context: int = Field(default=0, ge=0, le=MOST_CONTEXT, description="Lines to show before and after each match.")
    hidden: bool = Field(default=False, description="Also hidden files.")
    ignored: bool = Field(default=False, description="Also files that .gitignore excludes.")
    max_files: int = Field(default=DEFAULT_MAX_FILES, ge=1, le=MOST_FILES, description="How many files to show.")


class GrepObservation(TextObservation):
    """The matches, as text for the model, and how many there are."""

    total_files: int = 0
    """All files with a match."""
    total_lines: int | None = None
    """All matching lines of the files that were looked into, the newest `max_files`; None in mode `files`."""
    complete: bool = True
    """False: the search was stopped, and there may be more."""


class GrepTool(ToolDefinition[GrepAction, GrepObservation]):
    """The text-searching tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[GrepTool]:
        """One tool.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.grep.impl import GrepExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=GrepAction,
                observation_type=GrepObservation,
                hint=HINT,
                annotations=ToolAnnotations.reading("Search files"),
                executor=GrepExecutor(conv_state.require_runtime()),
            )
        ]
