"""The last line that a running call has printed, for a person who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.shell.terminal import clean, sanitize_for_terminal, whole_prefix
from ohsandbox.tools.execute_bash.impl import ExecuteBashExecutor
from ohsandbox.tools.execute_ipython_cell.impl import IPythonExecutor

if TYPE_CHECKING:
    from ohsandbox.secrets import Masker
    from ohsandbox.tool import ToolDefinition

MAX_LINE_CHARS = 200
"""A client shows progress on one line of a terminal or of a side bar."""

TAIL_BYTES = 4096
"""Of the output so much is looked at: twenty such lines, or one with colours."""


def last_line(tool: ToolDefinition[Any, Any]) -> str:
    """What the tool's running call printed last, on one line, control characters visible.

    It is masked as the result will be. Empty where nothing was printed yet, or the tool prints nothing. May block for
    as long as the sandbox takes to keep output that overflows.
    """
    # the runtime has no public look at output that still comes
    executor: Any = tool.executor
    if isinstance(executor, ExecuteBashExecutor):
        shell = executor._runtime._shells.get(executor._session)  # noqa: SLF001
        running = shell._running if shell is not None else None  # noqa: SLF001
        if running is None:
            return ""
        with running.session.changed:
            tail = running.call.capture.last(TAIL_BYTES)
        return shown(tail, executor._runtime.secrets.masker)  # noqa: SLF001
    if isinstance(executor, IPythonExecutor):
        output = executor._output  # noqa: SLF001
        with output._lock:  # noqa: SLF001
            tail = output._capture.last(TAIL_BYTES)  # noqa: SLF001
        return shown(tail, output._masker)  # noqa: SLF001
    return ""


def shown(tail: bytes, masker: Masker | None = None) -> str:
    """The last line with something on it of a growing stream's tail; what is unfinished in it waits."""
    text = clean(tail[: whole_prefix(tail)])
    if masker:
        text = masker.before_gap(masker.mask(text))
        text = masker.after_gap(text) if len(tail) >= TAIL_BYTES else text
    for line in reversed(sanitize_for_terminal(text).split("\n")):
        if words := " ".join(line.split()):
            return words if len(words) <= MAX_LINE_CHARS else f"{words[: MAX_LINE_CHARS - 1]}…"
    return ""
