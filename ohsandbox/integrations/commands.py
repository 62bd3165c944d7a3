"""Runs a line of shell input in a shell of its own, as most projects need: no session, both streams in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime import ExecResult, Runtime

TIMED_OUT = 124
"""The exit code of timeout(1) for a command that it ended."""

ARGV = ("sh", "-c", 'if command -v bash >/dev/null; then exec bash -c \'eval "$(cat)"\'; else eval "$(cat)"; fi')
"""Uses bash if it exists. The line is passed as standard input, since Linux limits an argument to 128 KiB
(MAX_ARG_STRLEN)."""


class LineResult(NamedTuple):
    """The result of a line that ended or was stopped."""

    output: str
    """Both streams in the order of writing, masked; undecodable bytes as U+FFFD."""
    exit_code: int
    """128 + N if signal N ended it; 124 after the timeout."""
    truncated: bool
    """Whether the output was longer than limit_bytes, so that its end is missing."""
    timed_out: bool


def run_line(
    runtime: Runtime, command: str, *, timeout_s: float | None, interpreter: Sequence[str] = (), **options: Any
) -> LineResult:
    """Run command; options and errors are those of `Runtime.run`. interpreter: leading words, as `("bash", "-lc")`."""
    argv, stdin = ((*interpreter, command), b"") if interpreter else (ARGV, _stdin(command))
    ended = runtime.run(argv, stdin=stdin, merge_streams=True, timeout_s=timeout_s, **options)
    return _result(runtime, ended, timeout_s)


async def arun_line(runtime: Runtime, command: str, *, timeout_s: float | None, **options: Any) -> LineResult:
    """Do the same as `run_line`, awaited; cancelling the task ends the line and all processes that it started."""
    ended = await runtime.arun(ARGV, stdin=_stdin(command), merge_streams=True, timeout_s=timeout_s, **options)
    return _result(runtime, ended, timeout_s)


def _stdin(command: str) -> bytes:
    return command.encode("utf-8", "surrogateescape")


def _result(runtime: Runtime, ended: ExecResult, timeout_s: float | None) -> LineResult:
    masker = runtime.secrets.masker
    text = ended.stdout.decode("utf-8", "replace")
    text = masker.mask_cut(text) if ended.truncated or ended.timed_out else masker.mask(text)
    if ended.timed_out:
        end = "" if not text or text.endswith("\n") else "\n"
        text += f"{end}[Stopped after {timeout_s:g} s, with all it had started]"
    code = TIMED_OUT if ended.exit_code is None else ended.exit_code
    return LineResult(text, code, ended.truncated, ended.timed_out)
