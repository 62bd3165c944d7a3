"""What the model is told of `file_read`, and what it may say."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "file_read"

HINT = CallHint(sign="<", subject="path", writes=False)

MAX_READ_CHARS = output.MAX_CHARS

MAX_READ_BYTES = 16 * 1024 * 1024
"""Of a file past this the lines are found in the sandbox, without moving it to the host."""

DESCRIPTION = f"""\
Read a text file in the sandbox and return its text exactly as it is, without line numbers.

`path` (required) is absolute, or relative to the sandbox's working directory. `view_range` is `[first, last]`, lines
counted from 1, both included, `-1` for the last line. At most {MAX_READ_CHARS} characters are returned; what was left
out is stated. UTF-8, UTF-16 and what a file declares is decoded; any other byte is returned as \ufffd. Binary files are
refused: use execute_bash."""


class FileReadSource(Enum):
    """What reads a file. An action of one of these changes nothing, whatever else its tool can do."""

    DEFAULT = "default"
    """`file_read`: the text as it is."""
    OH_ACI = "oh_aci"
    """The editor: with line numbers."""


class FileReadAction(Action):
    """A file to read."""

    path: str = Field(min_length=1, max_length=4096, description="The file.")
    view_range: tuple[int, ...] | None = Field(
        default=None, min_length=2, max_length=2, description="[first, last] line, from 1; -1 is the last."
    )

    @property
    def impl_source(self) -> FileReadSource:
        """What reads it."""
        return FileReadSource.DEFAULT

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.view_range is not None:
            first, last = self.view_range
            if first < 1 or (last != -1 and last < first):
                raise ValueError(
                    f"view_range {[first, last]} must be [first, last] with 1 <= first <= last, or last -1"
                )
        return self


class FileReadTool(ToolDefinition[FileReadAction, TextObservation]):
    """The reading tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[FileReadTool]:
        """One tool.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.file_read.impl import FileReadExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=FileReadAction,
                observation_type=TextObservation,
                hint=HINT,
                annotations=ToolAnnotations.reading("Read a file"),
                executor=FileReadExecutor(conv_state.require_runtime()),
            )
        ]
