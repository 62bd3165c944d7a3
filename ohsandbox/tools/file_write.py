"""`file_write`: writes a whole file of the sandbox. `runtime.file_tools` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.file_tools import FILE_WRITE_DESCRIPTION, FileWriteAction, write_file
from ohsandbox.schema import TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition, counted_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.state import ConversationState

__all__ = ["BUILT_IN", "FileWriteAction", "make_file_write_tool"]


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """Return the file and its new length."""
    return CallHint(sign="+", kind="edit", subject="path", note=counted_lines(arguments.get("content")))


def make_file_write_tool(*, conv_state: ConversationState) -> ToolDefinition[FileWriteAction, TextObservation]:
    """Create the tool `file_write`. The conversation needs a runtime."""
    runtime = conv_state.require_runtime()
    return ToolDefinition(
        name="file_write",
        description=FILE_WRITE_DESCRIPTION,
        action_type=FileWriteAction,
        observation_type=TextObservation,
        hint=hint,
        annotations=ToolAnnotations(title="Write a file", idempotentHint=True, openWorldHint=False),
        executor=FunctionExecutor(lambda action: write_file(runtime, action)),
    )


BUILT_IN = BuiltInTool(make_file_write_tool, hint)
