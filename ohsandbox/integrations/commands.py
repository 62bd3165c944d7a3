"""A line of shell input that runs in a shell of its own, as most projects want it: no session, both streams in one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime import ExecResult, Runtime

TIMED_OUT = 124
"""The exit code of timeout(1) for a command that it ended."""

ARGV = ("sh", "-c", 'if command -v bash >/dev/null; then exec bash -c \'eval "$(cat)"\'; else eval "$(cat)"; fi')
"""bash where it is. The line is standard input: Linux passes an argument of at most 128 KiB (MAX_ARG_STRLEN)."""


class LineResult(NamedTuple):
    """A line that ran to its end, or was stopped."""

    output: str
    """Both streams in the order of writing, masked; undecodable bytes as U+FFFD."""
    exit_code: int
    """128 + N where signal N ended it; 124 after the timeout, 137 where it was cancelled."""
    truncated: bool
    """The output was longer than limit_bytes, and its end is missing."""
    timed_out: bool


def line_call(runtime: Runtime, command: str, **options: Any) -> Callable[..., ExecResult]:
    """`runtime.run` with all that it needs for the line; more options of `run` may follow."""
    return partial(runtime.run, ARGV, stdin=command.encode("utf-8", "surrogateescape"), merge_streams=True, **options)


def line_result(runtime: Runtime, ended: ExecResult, timeout_s: float | None) -> LineResult:
    """What its caller is told of a line; how it was stopped stands at the output's end."""
    masker = runtime.secrets.masker
    text = ended.stdout.decode("utf-8", "replace")
    text = masker.mask_cut(text) if ended.truncated or ended.timed_out else masker.mask(text)
    if ended.timed_out:
        end = "" if not text or text.endswith("\n") else "\n"
        text += f"{end}[Stopped after {timeout_s:g} s, with all it had started]"
    code = ended.exit_code if ended.exit_code is not None else TIMED_OUT if ended.timed_out else 137
    return LineResult(text, code, ended.truncated, ended.timed_out)


def run_line(
    runtime: Runtime,
    command: str,
    *,
    timeout_s: float | None,
    limit_bytes: int,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
) -> LineResult:
    """Run it; the options are those of `Runtime.run`, and so are the errors."""
    call = line_call(runtime, command, env=env, workdir=workdir, limit_bytes=limit_bytes, timeout_s=timeout_s)
    return line_result(runtime, call(), timeout_s)
