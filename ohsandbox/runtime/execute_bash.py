"""`execute_bash`: its description, action and executor, for `Runtime.execute_tool`, agents and MCP clients."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from pydantic import Field

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import ToolArgumentsError, UnknownSessionError, UsageError
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.schema import Action
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES, ToolExecutor
from ohsandbox.text import cut_middle

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

YIELD_S = 120.0
"""Seconds within which most builds and test runs end; a command that still prints is left running, and the model
decides."""

MAX_TIMEOUT_S = 3600.0
"""Longer work belongs in the background, where it can be polled."""

IDLE_TIMEOUT_S = 30.0
"""Seconds of silence after which a command is more likely stuck than busy; it is left running, and the model decides.
"""

KEYS = frozenset({"C-c", "C-d", "C-z"})
"""Keys that are typed even without is_input: no program has these names, so the model forgot it."""


def bash_description(
    *, yield_s: float = YIELD_S, idle_timeout_s: float = IDLE_TIMEOUT_S, is_short: bool = False
) -> str:
    """Return the description of `execute_bash` with these times; `{max_chars}` remains to be replaced."""
    text = _SHORT_BASH_DESCRIPTION if is_short else _BASH_DESCRIPTION
    return text.replace("{idle_s}", f"{idle_timeout_s:g}").replace("{yield_s}", f"{yield_s:g}")


_SHORT_BASH_DESCRIPTION = f"""\
Run `command` (required) in a persistent bash shell inside the sandbox; returns its output and exit code. Directory,
variables and functions stay. A non-zero exit code is an answer.
* Without `timeout` the call returns after {{idle_s}} s of silence or {{yield_s}} s in all; the command runs on.
  `timeout` (seconds, at most {MAX_TIMEOUT_S:.0f}) waits and then stops it.
* Still running: an empty `command` waits on; no new one starts until it has ended.
* `is_input` true sends `command` to the program that waits for input, or a key: `C-c` interrupts, `C-d` ends the input,
  `C-z` suspends.
* Long work: in the background, output in a file: `python3 app.py > app.log 2>&1 &`; look with `tail`, end it with
  `kill %1`.
* Output beyond {{max_chars}} characters loses its middle: use `head`, `tail`, `grep` or a file.
* `reset` true starts a new shell: programs, variables and directory are lost, files stay.
Use flags that keep programs from asking (`-y`), and absolute paths."""


_BASH_DESCRIPTION = f"""\
Run a command in a persistent bash shell inside the sandbox, and return its output and exit code.

`command` (required) is any shell input: several lines, pipes, heredocs. Working directory, variables, functions
and activated virtual environments stay for the next call. A non-zero exit code is an answer, not a failure.

* Time: without `timeout`, the call returns after {{idle_s}} s without output, or {{yield_s}} s in all, with
  what was printed so far, and the command is left running: nothing is stopped. With `timeout` (seconds, at most
  {MAX_TIMEOUT_S:.0f}) the call waits, silent or not, and stops the command and everything it started at that time.
* Still running: an empty `command` waits on and returns what is new, as often as needed; `C-c` with `is_input`
  interrupts. No new command starts until it has ended: until then it is refused, and nothing of it runs.
* Input: a program that waits for input is reported as such. Answer with `is_input` true and the text as `command`
  (Enter is added; a blank one presses Enter only for what you were shown to wait), or send a key: `C-c` interrupts,
  `C-d` ends the input, `C-z` suspends.
* Long work (servers, watchers, long builds): run it in the background with its output in a file, for example
  `python3 -m http.server 8000 > server.log 2>&1 &`; look with `tail server.log`, stop it with `kill %1`.
* Output beyond {{max_chars}} characters loses its middle; the exact number is stated. Prefer `head`, `tail`,
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
        """Return a copy of the action with another `timeout`; None means none.

        Raises:
            ValidationError: timeout_s is not between 0 and MAX_TIMEOUT_S.
        """
        return type(self).model_validate({**self.to_arguments(), "timeout": timeout_s})


class ExecuteBashExecutor(ToolExecutor[CmdRunAction, CommandObservation]):
    """Runs commands in one shell session of a runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        session: str = "main",
        limits: OutputLimits = DEFAULT_LIMITS,
        cancel: threading.Event | None = None,
        working_dir: str | None = None,
        yield_s: float = YIELD_S,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        """Store the arguments; cancel ends calls as `interrupt` does, and a missing session starts in working_dir.

        Raises:
            UsageError: yield_s or idle_timeout_s is not more than 0 and at most MAX_TIMEOUT_S.
        """
        for name, seconds in (("timeout", yield_s), ("idle_timeout", idle_timeout_s)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_S:
                raise UsageError(f"{name} is {seconds!r}. Give seconds, more than 0 and at most {MAX_TIMEOUT_S:g}.")
        self._runtime, self._session, self._limits, self._cancel = runtime, session, limits, cancel
        self._working_dir, self._yield_s, self._idle_timeout_s = working_dir, yield_s, idle_timeout_s
        self._cancels: set[threading.Event] = set()
        """The cancel events of running calls."""

    def __call__(self, action: CmdRunAction) -> CommandObservation:
        """Run a command, send input or poll, as the action requests.

        Raises:
            ToolArgumentsError: reset and is_input are both true.
            SandboxUnavailable: the sandbox is gone.
        """
        if action.reset and action.is_input:
            raise ToolArgumentsError(
                "reset and is_input exclude each other: a new shell runs nothing that takes input."
            )
        if action.reset:
            with contextlib.suppress(UnknownSessionError):
                self._runtime.close_session(self._session)
        cancel = self._cancel or threading.Event()
        self._cancels.add(cancel)
        try:
            if self._working_dir is not None and self._session not in self._runtime.list_sessions():
                self._runtime.open_session(self._session, workdir=self._working_dir)
            observation = self._runtime.execute(
                action.command,
                timeout_s=action.timeout,
                idle_timeout_s=None if action.timeout else self._idle_timeout_s,
                yield_s=None if action.timeout else self._yield_s,
                session=self._session,
                is_input=action.is_input or (not action.reset and action.command.strip() in KEYS),
                cancel=cancel,
            )
        finally:
            self._cancels.discard(cancel)
        return self._completed(action, observation)

    def _completed(self, action: CmdRunAction, observation: CommandObservation) -> CommandObservation:
        """Add notices about a reset or a stop for the model, and cut long texts in the middle."""
        notice = observation.notice
        if action.reset:
            shell_notice = None if observation.nothing_ran else notice
            done = (
                "The shell was reset: a new one has begun; files are kept, programs and variables of the old one "
                "are lost"
            )
            notice = f"{done}; {shell_notice}" if shell_notice else done
        if observation.timed_out and action.timeout is not None:  # not restarted: half of its work may be done
            remedy = (
                f"Stopped after {action.timeout:g} s, with all its processes. If it needs longer, ask for a longer "
                "`timeout`, leave it out and poll, or run it in the background with its output in a file: "
                "COMMAND > out.log 2>&1 &"
            )
            notice = f"{notice} {remedy}" if notice else remedy
        texts = {"output": observation.output, "background_output": observation.background_output}
        cut = {name: cut_middle(text, limit_chars=self._limits.max_chars) for name, text in texts.items()}
        return observation.model_copy(update={"notice": notice, **cut})

    def interrupt(self) -> None:
        """End the running calls by Ctrl-C, then SIGKILL; if there are none, send Ctrl-C to the command left running."""
        cancels = [*self._cancels]
        for cancel in cancels:
            cancel.set()
        if not cancels:
            self._runtime.interrupt(self._session)

    def last_output(self) -> bytes:
        """Return the end of the running command's output."""
        return self._runtime.last_output(self._session, limit_bytes=LAST_OUTPUT_BYTES)
