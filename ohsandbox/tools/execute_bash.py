"""`execute_bash`: a command in the sandbox's persistent shell. `runtime.execute_bash` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ohsandbox.runtime.execute_bash import IDLE_TIMEOUT_S, YIELD_S, CmdRunAction, ExecuteBashExecutor, bash_description
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.state import ConversationState

__all__ = ["BUILT_IN", "CmdRunAction", "make_execute_bash_tool"]

_ALIASES = ("terminal", "BashTool")
_BOOL = TypeAdapter(bool)


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """The command, or the input for the running one."""
    try:
        is_input = _BOOL.validate_python(arguments.get("is_input") or False)
    except ValidationError:  # a call with such an is_input is refused
        is_input = True
    note = "" if arguments.get("command") else "(waiting on)"
    if is_input:
        return CallHint(sign=">", kind="input", subject="command", note=note)
    return CallHint(sign="$", kind="command", subject="command", note=note)


def make_execute_bash_tool(
    *,
    conv_state: ConversationState,
    session: str = "main",
    working_dir: str | None = None,
    timeout: float = YIELD_S,
    idle_timeout: float = IDLE_TIMEOUT_S,
) -> ToolDefinition[CmdRunAction, CommandObservation]:
    """Create the shell tool for the named session. The conversation needs a runtime.

    Args:
        conv_state: provides the runtime.
        session: name of the session; the first command creates it if it does not exist.
        working_dir: where a new shell starts, also after `reset`; None is the sandbox's working directory.
        timeout: seconds after which a call without a `timeout` of its own returns; the command runs on.
        idle_timeout: seconds without output after which such a call returns.

    Raises:
        UsageError: a number of seconds is not between 0 and MAX_TIMEOUT_S, or there is no runtime.
    """
    limits = conv_state.output
    executor = ExecuteBashExecutor(
        conv_state.require_runtime(),
        session=session,
        limits=limits,
        working_dir=working_dir,
        yield_s=timeout,
        idle_timeout_s=idle_timeout,
    )
    return ToolDefinition(
        name="execute_bash",
        description=limits.fill(bash_description(yield_s=timeout, idle_timeout_s=idle_timeout)),
        short_description=limits.fill(bash_description(yield_s=timeout, idle_timeout_s=idle_timeout, is_short=True)),
        action_type=CmdRunAction,
        observation_type=CommandObservation,
        hint=hint,
        annotations=ToolAnnotations(title="Shell"),
        executor=executor,
        aliases=_ALIASES,
    )


BUILT_IN = BuiltInTool(make_execute_bash_tool, hint, aliases=_ALIASES)
