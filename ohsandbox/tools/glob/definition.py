"""What the model is told of `glob`, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition
from ohsandbox.tools.search.globs import PathText  # noqa: TC001 - pydantic reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    files: tuple[str, ...] = ()
    """Those listed, as they are shown."""
    total: int = 0
    """All that match."""
    complete: bool = True
    """False: the search was stopped, and there may be more."""


class GlobTool(ToolDefinition[GlobAction, GlobObservation]):
    """The file-finding tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[GlobTool]:
        """One tool.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.glob.impl import GlobExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=GlobAction,
                observation_type=GlobObservation,
                hint=HINT,
                annotations=ToolAnnotations.reading("Find files"),
                executor=GlobExecutor(conv_state.require_runtime()),
            )
        ]
