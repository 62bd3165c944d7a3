"""What the model is told of `edit_file`, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ohsandbox.errors import UsageError
from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, output
from ohsandbox.tools.file_editor.definition import FileEditSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "edit_file"

HINT = CallHint(sign="~", subject="path", needs_agent=True)

MAX_EDIT_LINES = 300
"""What is merged is written out again in full: so many lines are about 4,000 tokens, which models copy faithfully."""

MAX_EDIT_CHARS = 60_000
"""The same bound for files of long lines."""

MAX_FILE_BYTES = 16 * 1024 * 1024
"""A text file past this is data."""

MAX_DIFF_CHARS = output.MAX_CHARS

LAST_LINE = -1

DESCRIPTION = f"""\
Edit a text file in the sandbox from a draft, and return the difference as a unified diff.

`path` (required) is absolute, or relative to the sandbox's working directory. `content` (required) is a draft of lines
`start` to `end` as they shall be (counted from 1, both included; by default 1 and {LAST_LINE}, the whole file). In the
draft, stand-ins such as `# ... existing code ...` mean the lines that are there; give a line or two around each change
so that its place is clear. A second request to the model merges the draft into the file.

* A file that does not exist is made of `content` as it is.
* `start` {LAST_LINE} appends `content` to the file as it is.
* At most {MAX_EDIT_LINES} lines are edited at once: of a longer file give the range that the draft is for.
* Empty `content` deletes the range.
UTF-8 only; line ends and the file's mode stay."""


class EditFileAction(Action):
    """A draft for a range of a file."""

    path: str = Field(min_length=1, description="The file.")
    content: str = Field(description="The draft of the range; plain lines where the file is new or appended to.")
    start: int = Field(default=1, ge=LAST_LINE, description="First line of the range, from 1; -1 appends.")
    end: int = Field(default=LAST_LINE, ge=LAST_LINE, description="Last line of the range; -1 is the file's last.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        span = {"start": self.start, "end": self.end}
        if 0 in span.values():
            raise PydanticCustomError("lines", "Lines are counted from 1; start is {start}, end is {end}", span)
        if self.appends and self.end != LAST_LINE:
            raise PydanticCustomError("lines", "start -1 appends; leave end out (it is {end})", span)
        if not self.appends and self.end != LAST_LINE and self.end < self.start:
            raise PydanticCustomError("lines", "end {end} is before start {start}", span)
        return self

    @property
    def impl_source(self) -> FileEditSource:
        """What does it."""
        return FileEditSource.LLM_BASED_EDIT

    @property
    def appends(self) -> bool:
        """Whether the content goes to the end of the file."""
        return self.start == LAST_LINE

    @property
    def is_whole(self) -> bool:
        """Whether no range was given."""
        return self.start == 1 and self.end == LAST_LINE


class EditFileTool(ToolDefinition[EditFileAction, TextObservation]):
    """The drafting editor of a conversation with a runtime and a model."""

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[EditFileTool]:
        """One tool.

        Raises:
            UsageError: the conversation has no runtime, or no model to merge by.
        """
        from ohsandbox.tools.edit_file.impl import EditFileExecutor  # noqa: PLC0415 - impl is for running only

        if conv_state.ask_model is None:
            raise UsageError(
                f"Tool {TOOL_NAME!r} merges drafts by a model, and this conversation gives its tools none. "
                "Use 'file_editor' or 'file_write' instead."
            )
        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=EditFileAction,
                observation_type=TextObservation,
                hint=HINT,
                annotations=ToolAnnotations(
                    title="Edit a file from a draft",
                    readOnlyHint=False,
                    destructiveHint=True,
                    idempotentHint=False,
                    openWorldHint=False,
                ),
                executor=EditFileExecutor(conv_state.require_runtime(), conv_state.ask_model),
            )
        ]
