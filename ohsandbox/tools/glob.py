"""`glob`: finds files by path pattern, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import file_error
from ohsandbox.schema import Action, TextObservation
from ohsandbox.text import counted
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, ToolExecutor
from ohsandbox.tools.search.globs import FoundPath, PathText, compile_glob
from ohsandbox.tools.search.script import LIMIT_S
from ohsandbox.tools.search.show import fitting, left_out, shown_path, warnings
from ohsandbox.tools.search.walk import Query, absolute, list_files

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState

TOOL_NAME = "glob"

HINT = CallHint(sign="?", subject="pattern", writes=False)

DEFAULT_MAX_FILES = 100
MOST_FILES = 1000

DESCRIPTION = f"""\
Find files in the sandbox by the pattern of their path. Returns absolute paths, the newest first.

`pattern` (required): `*` and `?` match within a name, `**` any directories, `[a-z]` one character, `{{a,b}}` either.
`*.py` looks in `path` itself, `**/*.py` in all directories below it, `src/*.{{ts,tsx}}` in src; an absolute pattern
like `/etc/**/*.conf` needs no `path`. `path` is the directory to search, by default the sandbox's working directory.

Left out are files that .gitignore excludes and hidden ones, unless the pattern names them (`.github/**/*.yml`) or
`ignored` or `hidden` asks for them; `.git` always. Symbolic links are neither listed nor followed. Up to
{DEFAULT_MAX_FILES} files are listed (`max_files`), and the number of all that match is stated."""


class GlobAction(Action):
    """A pattern to find files by."""

    pattern: PathText = Field(min_length=1, max_length=1000, description="The pattern, such as **/*.py.")
    path: PathText = Field(default=".", min_length=1, description="The directory to search.")
    hidden: bool = Field(default=False, description="Also hidden files.")
    ignored: bool = Field(default=False, description="Also files that .gitignore excludes.")
    max_files: int = Field(default=DEFAULT_MAX_FILES, ge=1, le=MOST_FILES, description="How many files to list.")


class GlobObservation(TextObservation):
    """The files, as text for the model and one by one."""

    files: tuple[FoundPath, ...] = ()
    """Absolute paths as the sandbox has them, unquoted, newest first, at most `max_files`; undecodable bytes as
    surrogate escapes."""
    total: int = 0
    """Number of all files that match."""
    complete: bool = True
    """False: the search was stopped, and there may be more."""
    truncated: bool = False
    """More files match than `files` holds, or may match because the search was stopped."""


class GlobExecutor(ToolExecutor[GlobAction, GlobObservation]):
    """Finds files of a runtime: `search.walk` lists all, and a limited number is shown."""

    def __init__(self, runtime: Runtime, *, limits: OutputLimits = DEFAULT_LIMITS, limit_s: float = LIMIT_S) -> None:
        """limit_s: the search stops after this many seconds and reports its matches so far."""
        self._runtime, self._limits, self._limit_s = runtime, limits, limit_s

    def __call__(self, action: GlobAction) -> GlobObservation:
        """List the files.

        Raises:
            SandboxFileError: path is missing, is a file, or cannot be entered.
            ToolError: the pattern is malformed, or the sandbox lacks a program.
            SandboxUnavailable: the sandbox is gone.
        """
        pattern = action.pattern
        anywhere = pattern.startswith("/")
        path = "/" if anywhere else absolute(self._runtime.workdir, action.path)
        glob = compile_glob(pattern, hidden=action.hidden)
        query = Query(path, glob, hidden=action.hidden, ignored=action.ignored)
        listing = list_files(self._runtime, query, limit_s=self._limit_s)
        if listing.is_file:
            raise file_error(20, "It is a file", action.path, "Give a directory, or read it with file_read.")
        total = len(listing.files)
        files_found = listing.files[: action.max_files]
        files = fitting([shown_path(file) for file in files_found], self._limits)
        place_text = "" if anywhere else f" in {shown_path(path)}"
        if total:
            order = ", newest first:" if total > 1 else ":"
            lines = [
                f"{counted(total, 'file')} match{'es' if total == 1 else ''} {pattern!r}{place_text}{order}",
                *files,
            ]
        else:
            deeper = "" if "/" in pattern or "**" in pattern else f" Below it look with {'**/' + pattern!r}."
            advice = deeper + left_out(hidden=action.hidden, ignored=action.ignored)
            lines = [f"No file matches {pattern!r}{place_text}.{advice}"]
        if len(files) < total:
            more = ", or raise `max_files`" if len(files) == action.max_files else ""
            lines.append(
                f"[The newest {len(files)} of {counted(total, 'file')} are listed. Narrow `pattern` or `path`{more}.]"
            )
        lines += warnings(listing, self._limit_s)
        return GlobObservation(
            text="\n".join(lines), files=tuple(files_found), total=total, complete=not listing.stopped,
            truncated=listing.stopped or len(files_found) < total,
        )  # fmt: skip


def make_glob_tool(*, conv_state: ConversationState) -> ToolDefinition[GlobAction, GlobObservation]:
    """Create the tool `glob`. The conversation needs a runtime."""
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=GlobAction,
        observation_type=GlobObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Find files"),
        executor=GlobExecutor(conv_state.require_runtime(), limits=conv_state.output),
    )


BUILT_IN = BuiltInTool(make_glob_tool, HINT)
