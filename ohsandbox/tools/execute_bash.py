"""`execute_bash`: a command in the sandbox's persistent shell. `runtime.tools` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ohsandbox.runtime.results import CommandObservation
from ohsandbox.runtime.tools import EXECUTE_BASH_DESCRIPTION, CmdRunAction, ExecuteBashExecutor
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.state import ConversationState

__all__ = ["CmdRunAction", "ExecuteBashTool", "hint"]

_BOOL = TypeAdapter(bool)


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """The command, or the input for the running one."""
    try:
        is_input = _BOOL.validate_python(arguments.get("is_input") or False)
    except ValidationError:  # such a call is refused
        is_input = True
    note = "" if arguments.get("command") else "(waiting on)"
    if is_input:
        return CallHint(sign=">", kind="input", subject="command", note=note)
    return CallHint(sign="$", kind="command", subject="command", note=note)


class ExecuteBashTool(ToolDefinition[CmdRunAction, CommandObservation]):
    """The shell tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState, session: str = "main") -> Sequence[ExecuteBashTool]:
        """One tool, on the named shell session. The conversation needs a runtime."""
        limits = conv_state.output
        return [
            cls(
                name="execute_bash",
                description=limits.fill(EXECUTE_BASH_DESCRIPTION),
                action_type=CmdRunAction,
                observation_type=CommandObservation,
                hint=hint,
                annotations=ToolAnnotations(title="Shell"),
                executor=ExecuteBashExecutor(conv_state.require_runtime(), session=session, limits=limits),
                aliases=("terminal", "BashTool"),
            )
        ]
