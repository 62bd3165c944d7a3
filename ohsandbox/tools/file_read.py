"""`file_read`: reads a text file of the sandbox, or some of its lines. `runtime.file_tools` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.runtime.file_tools import FILE_READ_DESCRIPTION, FileReadAction, FileReadSource, read_file
from ohsandbox.schema import TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

__all__ = ["BUILT_IN", "FileReadAction", "FileReadSource", "make_file_read_tool"]

HINT = CallHint(sign="<", kind="read", subject="path", writes=False)


def make_file_read_tool(*, conv_state: ConversationState) -> ToolDefinition[FileReadAction, TextObservation]:
    """Create the tool `file_read`. The conversation needs a runtime."""
    runtime, limits = conv_state.require_runtime(), conv_state.output
    return ToolDefinition(
        name="file_read",
        description=limits.fill(FILE_READ_DESCRIPTION),
        action_type=FileReadAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations.reading("Read a file"),
        executor=FunctionExecutor(lambda action: read_file(runtime, action, limits)),
    )


BUILT_IN = BuiltInTool(make_file_read_tool, HINT)
