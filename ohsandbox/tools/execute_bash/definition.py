"""What the model is told of `execute_bash`, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from ohsandbox.runtime.results import CommandObservation
from ohsandbox.schema import Action
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "execute_bash"

YIELD_S = 120.0
"""Most builds and test runs end within it; one that still prints is left running, and the model decides."""

MAX_TIMEOUT_S = 3600.0
"""An hour: longer work belongs in the background, where it can be polled."""

IDLE_TIMEOUT_S = 30.0
"""Silent for so long, a command is more likely stuck than busy; it is left running and the model decides."""

MAX_OUTPUT_CHARS = output.MAX_CHARS

DESCRIPTION = f"""\
Run a command in a persistent bash shell inside the sandbox, and return its output and exit code.

`command` (required) is any shell input: several lines, pipes, heredocs. Working directory, variables, functions
and activated virtual environments stay for the next call. A non-zero exit code is an answer, not a failure.

* Time: without `timeout`, the call returns after {IDLE_TIMEOUT_S:.0f} s without output, or {YIELD_S:.0f} s in all, with
  what was printed so far, and the command is left running: nothing is stopped. With `timeout` (seconds, at most
  {MAX_TIMEOUT_S:.0f}) the call waits, silent or not, and stops the command and everything it started at that time.
* Still running: an empty `command` waits on and returns what is new, as often as needed; `C-c` with `is_input`
  interrupts. No new command starts until it has ended: until then it is refused, and nothing of it runs.
* Input: a program that waits for input is reported as such. Answer with `is_input` true and the text as `command`
  (Enter is added; a blank one presses Enter only for what you were shown to wait), or send a key: `C-c` interrupts,
  `C-d` ends the input, `C-z` suspends.
* Long work (servers, watchers, long builds): run it in the background with its output in a file, for example
  `python3 -m http.server 8000 > server.log 2>&1 &`; look with `tail server.log`, stop it with `kill %1`.
* Output beyond {MAX_OUTPUT_CHARS} characters loses its middle; the exact number is stated. Prefer `head`, `tail`,
  `grep`, or write to a file and read the part that matters.
* `reset` true throws the shell away and starts a new one: running programs, variables and directory are lost,
  files stay.

Use flags that keep programs from asking (`-y`, `--no-input`) and absolute paths rather than `cd` where you can."""


class CmdRunAction(Action):
    """A command for the shell, or input for the program that runs in it."""

    command: str = Field(description="The command; with is_input the text or key for the running program; empty polls.")
    is_input: bool = Field(default=False, description="Whether command is input for the program that is running.")
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="Seconds after which the command is stopped; left out, it is never stopped, only returned from.",
    )
    reset: bool = Field(default=False, description="Start a new shell first. Not together with is_input.")

    def set_hard_timeout(self, timeout_s: float | None) -> Self:
        """The action with another `timeout`; None takes it away. Actions are frozen, so this one stays as it is.

        Raises:
            ValidationError: timeout_s is not between 0 and MAX_TIMEOUT_S.
        """
        return type(self).model_validate({**self.to_arguments(), "timeout": timeout_s})


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """The command, or the input for the running one."""
    is_input = arguments.get("is_input") in (True, "true")
    note = "" if arguments.get("command") else "(waiting on)"
    return CallHint(sign=">" if is_input else "$", subject="command", note=note)


class ExecuteBashTool(ToolDefinition[CmdRunAction, CommandObservation]):
    """The shell tool of a conversation with a runtime."""

    @classmethod
    def create(cls, *, conv_state: ConversationState, session: str = "main") -> Sequence[ExecuteBashTool]:
        """One tool, on the named shell session.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.execute_bash.impl import ExecuteBashExecutor  # noqa: PLC0415 - impl is for running only

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=CmdRunAction,
                observation_type=CommandObservation,
                hint=hint,
                annotations=ToolAnnotations(title="Shell"),
                executor=ExecuteBashExecutor(conv_state.require_runtime(), session=session),
                aliases=("terminal", "BashTool"),
            )
        ]
