"""What the model is told of `file_write`, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, counted_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "file_write"

DESCRIPTION = """\
Write a whole text file in the sandbox, at once, and return how many bytes it holds. What was there before is replaced.

`path` (required) is absolute, or relative to the sandbox's working directory; missing directories are made.
`content` (required) is the file's text, written as UTF-8 exactly as given: end it with a newline where the file
should have one. Mode and owner of an existing file stay; where it is hard-linked, its other names keep the old text. To
change a part of a file, edit it rather than write it anew."""


class FileWriteAction(Action):
    """A file to write."""

    path: str = Field(min_length=1, max_length=4096, description="The file.")
    content: str = Field(description="Its whole text.")


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """The file, and how long it becomes."""
    return CallHint(sign="+", subject="path", note=counted_lines(arguments.get("content")))


class FileWriteTool(ToolDefinition[FileWriteAction, TextObservation]):
    """The writing tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[FileWriteTool]:
        """One tool.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.file_write.impl import FileWriteExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=FileWriteAction,
                observation_type=TextObservation,
                hint=hint,
                annotations=ToolAnnotations(title="Write a file", idempotentHint=True, openWorldHint=False),
                executor=FileWriteExecutor(conv_state.require_runtime()),
            )
        ]
