"""The results of the runtime's operations."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic and NamedTuple read annotations at run time
from datetime import datetime  # noqa: TC003
from typing import Literal, NamedTuple

from ohsandbox.content import Content, TextContent
from ohsandbox.schema import Observation


class ExecResult(NamedTuple):
    """The result of a process that `run` has run."""

    exit_code: int | None
    """The exit code, or 128 + N if signal N ended the process; None exactly if timed_out or cancelled."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """Whether it was killed after timeout_s, with its descendants; stdout and stderr have the output until then."""
    truncated: bool = False
    """Whether stdout or stderr exceeded limit_bytes; the beginning was kept."""
    not_started: bool = False
    """Whether nothing ran: the executable is missing (127) or cannot be executed (126), or the call was cancelled
    before.
    """
    cause: str | None = None
    """Why it ended, if not by itself: 'timeout', 'cancelled', 'out of memory', 'signal 9'; else None."""
    cancelled: bool = False
    """Whether the caller's `cancel` killed it, with its descendants; stdout and stderr have the output until then."""
    notice: str | None = None
    """A message of the runtime that came while it ran: the free space fell below the floor, and what was stopped. The
    next result of a shell has it as well."""


class CommandObservation(Observation):
    """The result of a command in a shell session, which has finished or is still running."""

    command: str
    output: str
    """The command's output since the last call, without escapes and with progress collapsed."""
    exit_code: int | None
    """The exit code; None while it is running, after timed_out or cancelled, if nothing ran, and if the shell could not
    tell.
    """
    cwd: str
    """The session's working directory after the call."""
    session: str = "main"
    timed_out: bool = False
    """Whether timeout_s killed it."""
    cancelled: bool = False
    """Whether the caller's `cancel` killed it; with a notice if nothing ran."""
    running: bool = False
    """Whether it is still running: yield_s or the idle limit has passed, `expect` matched, or it waits for input."""
    nothing_ran: bool = False
    """Whether the command was empty or input, and no command was running."""
    queued_s: float = 0.0
    """Seconds that the call waited for another call in this session, before timeout_s began to count."""
    waiting_for_input: bool = False
    """Whether the foreground program is blocked reading the terminal."""
    truncated: bool = False
    """Whether the middle of the output was cut."""
    output_bytes: int = 0
    """Number of bytes that the command printed in this call, before anything was cut."""
    omitted_bytes: int = 0
    """Number of bytes that were cut from the middle of the output."""
    output_path: str | None = None
    """The file in the sandbox with the whole output, if truncated."""
    notice: str | None = None
    """A message of the runtime: the shell was restarted, the working directory is gone, a new command was refused."""
    background_output: str = ""
    """Output of background jobs between commands."""

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The output, and then the labelled facts about it."""
        lines = [self.output.removesuffix("\n")] if self.output else []
        if self.background_output:
            lines.append(f"[Background jobs printed meanwhile]\n{self.background_output.removesuffix(chr(10))}")
        if self.truncated:
            whole_output = f"; the whole is in {self.output_path}" if self.output_path else ""
            lines.append(f"[{self.omitted_bytes} of {self.output_bytes} bytes left out of the middle{whole_output}]")
        if self.notice:
            lines.append(f"[{self.notice}]")
        lines.append(f"[{self._state()}; working directory {self.cwd}]")
        return [TextContent(text="\n".join(lines))]

    def _state(self) -> str:
        if self.waiting_for_input:
            return "The program waits for input: answer with is_input, or interrupt it with C-c"
        if self.running:
            return "Still running: poll with an empty command, or interrupt it with C-c"
        if self.timed_out:
            return "Stopped by the timeout"
        if self.cancelled:
            return "Cancelled"
        if self.nothing_ran:
            return "No command ran"
        return f"Exit code {'unknown' if self.exit_code is None else self.exit_code}"


class DirEntry(NamedTuple):
    """One entry of a directory."""

    name: str
    """The name; undecodable bytes as surrogate escapes."""
    kind: Literal["file", "directory", "symlink", "other"]
    """The kind of the entry itself; a symlink is not followed."""
    size_bytes: int
    mode: int
    """The permission bits, 0o7777."""
    modified_at: datetime


class LeftOut(NamedTuple):
    """An entry that a transfer did not copy."""

    path: str
    """The path as in the archive, `./a/b`, with undecodable bytes as surrogate escapes."""
    reason: str


class Checkpoint(NamedTuple):
    """The files of a sandbox at one time, without processes and tmpfs, for `Runtime.restore`."""

    id: str
    """The engine's unique id."""
    label: str
    """The caller's label; may be ""."""
    made_at: datetime
    size_bytes: int
    """Size in addition to the image from which the sandbox was made."""


class ResumeReport(NamedTuple):
    """The report of `Runtime.resume`."""

    how: Literal["same", "checkpoint", "new"]
    """`same`: the files are as they were left; `checkpoint`: as they were in it; `new`: a new sandbox."""
    notes: tuple[str, ...] = ()
    """Notes for the person: what was done to the sandbox, and what differs from the request."""
    place: str = ""
    """The sandbox's name, for people; "" if it has none."""


class PullProgress(NamedTuple):
    """The progress of a pull over all its layers, of a build, whose steps count as layers, or of another long start."""

    image: str
    status: str
    """'waiting' (for another process that pulls), 'pulling', 'extracting', 'retrying', 'building' or 'done'; of a
    service also 'starting', of hard-linked files 'copying'.
    """
    done_bytes: int = 0
    total_bytes: int = 0
    """Total of the layers whose size is known so far."""
    layers_done: int = 0
    layers_total: int = 0
    detail: str = ""
    """The step of a build, or its last output; the state of a service."""


class ResourceUsage(NamedTuple):
    """Resources used by all processes of a sandbox since its start; None if the kernel does not report it."""

    peak_memory_bytes: int | None = None
    """Maximum memory use, including cached files."""
    cpu_s: float | None = None
    """CPU time in seconds."""
    oom_kills: int | None = None
    """Number of processes killed because memory ran out."""
    throttled_s: float | None = None
    """Seconds that processes waited because they had used up their share of CPU time (`SandboxLimits.cpus`)."""
    no_route: int | None = None
    """Number of connections and packets to addresses without a route; without a network, all of them."""
