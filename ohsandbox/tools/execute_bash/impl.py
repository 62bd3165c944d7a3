"""Implementation of `execute_bash`: one call of `Runtime.execute`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ohsandbox.errors import ToolArgumentsError, UnknownSessionError
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.tool import ToolExecutor, cut_middle
from ohsandbox.tools.execute_bash.definition import (
    IDLE_TIMEOUT_S,
    MAX_OUTPUT_CHARS,
    YIELD_S,
    CmdRunAction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

KEYS = frozenset({"C-c", "C-d", "C-z"})
"""No program has these names: as a command, they mean that a model forgot is_input."""


class ExecuteBashExecutor(ToolExecutor[CmdRunAction, CommandObservation]):
    """Runs commands in one shell session of a runtime."""

    def __init__(self, runtime: Runtime, *, session: str = "main") -> None:
        self._runtime = runtime
        self._session = session
        self._cancels: set[threading.Event] = set()
        """The cancel events of running calls."""

    def __call__(self, action: CmdRunAction) -> CommandObservation:
        """Run a command, send input or poll, as the action requests.

        Raises:
            ToolArgumentsError: reset together with is_input.
            SandboxUnavailable: the sandbox is gone.
        """
        if action.reset and action.is_input:
            raise ToolArgumentsError(
                "reset and is_input exclude each other: a new shell runs nothing that takes input."
            )
        if action.reset:
            with contextlib.suppress(UnknownSessionError):
                self._runtime.close_session(self._session)
        with self._cancellable() as cancel:
            observation = self._runtime.execute(
                action.command,
                timeout_s=action.timeout,
                idle_timeout_s=None if action.timeout else IDLE_TIMEOUT_S,
                yield_s=None if action.timeout else YIELD_S,
                session=self._session,
                is_input=action.is_input or (not action.reset and action.command.strip() in KEYS),
                cancel=cancel,
            )
        if action.reset:
            observation = _acknowledged(observation)
        return bounded(_with_remedy(observation, limit_s=action.timeout))

    @contextlib.contextmanager
    def _cancellable(self) -> Iterator[threading.Event]:
        cancel = threading.Event()
        self._cancels.add(cancel)
        try:
            yield cancel
        finally:
            self._cancels.discard(cancel)

    def interrupt(self) -> None:
        """End the running calls by Ctrl-C, then SIGKILL; without any, send Ctrl-C to the command left running."""
        cancels = [*self._cancels]
        for cancel in cancels:
            cancel.set()
        if not cancels:
            self._runtime.interrupt(self._session)

    def last_output(self) -> bytes:
        """The end of the running command's output."""
        return self._runtime.last_output(self._session)


def _acknowledged(observation: CommandObservation) -> CommandObservation:
    """Add a note of the new shell; without a command it replaces `Nothing is running`."""
    done = (
        "The shell was reset: a new one has begun; files are kept, what ran in the old one and its variables are lost"
    )
    told = None if observation.nothing_ran else observation.notice
    return observation.model_copy(update={"notice": f"{done}; {told}" if told else done})


def _with_remedy(observation: CommandObservation, *, limit_s: float | None) -> CommandObservation:
    """Add a remedy: a stopped command is not restarted, since half of its work may be done."""
    if not observation.timed_out or limit_s is None:
        return observation
    remedy = (
        f"Stopped after {limit_s:g} s, with all it had started. If it needs longer, ask for a longer `timeout`, leave "
        "it out and poll, or run it in the background with its output in a file: COMMAND > out.log 2>&1 &"
    )
    told = f"{observation.notice} {remedy}" if observation.notice else remedy
    return observation.model_copy(update={"notice": told})


def bounded(observation: CommandObservation) -> CommandObservation:
    """Cut each text of the observation to MAX_OUTPUT_CHARS; states the size of the removed middle."""
    texts = {"output": observation.output, "background_output": observation.background_output}
    cut = {name: cut_middle(text, limit_chars=MAX_OUTPUT_CHARS) for name, text in texts.items()}
    return observation if cut == texts else observation.model_copy(update=cut)
