"""The results of the runtime's operations."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic and NamedTuple read annotations at run time
from datetime import datetime  # noqa: TC003
from typing import Literal, NamedTuple

from ohsandbox.content import Content, TextContent
from ohsandbox.schema import Observation


class ExecResult(NamedTuple):
    """The result of one finished process of `run`."""

    exit_code: int | None
    """The exit code, 128 + N where signal N ended it; None exactly when timed_out or cancelled."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """Whether timeout_s killed it with its whole process tree; stdout and stderr hold the output until then."""
    truncated: bool = False
    """Whether stdout or stderr went over limit_bytes; the beginning was kept."""
    not_started: bool = False
    """Whether nothing ran: the executable is missing (127) or not executable (126), or the call was cancelled before it
    began.
    """
    cause: str | None = None
    """Why it ended other than by its own exit: 'timeout', 'cancelled', 'out of memory', 'signal 9'; else None."""
    cancelled: bool = False
    """Whether its caller's `cancel` killed it with its whole tree; stdout and stderr hold the output until then."""


class CommandObservation(Observation):
    """A command in a shell session: finished, or returned from while it runs."""

    command: str
    output: str
    """The command's own text since the last call, escapes removed, progress collapsed, and nothing of ours."""
    exit_code: int | None
    """The exit code; None while it runs, after timed_out or cancelled, where nothing ran, and where the shell could not
    tell.
    """
    cwd: str
    """The session's working directory afterwards."""
    session: str = "main"
    timed_out: bool = False
    """Whether timeout_s killed it."""
    cancelled: bool = False
    """Whether its caller's `cancel` killed it; with a notice where nothing ran."""
    running: bool = False
    """Whether it still runs: yield_s or the idle limit passed, `expect` matched, or it waits for input."""
    nothing_ran: bool = False
    """Whether the command was empty or input, and no earlier command was running to poll or to answer."""
    queued_s: float = 0.0
    """How long the call waited for another call in this session to return, before timeout_s began to count."""
    waiting_for_input: bool = False
    """Whether the foreground program is blocked reading the terminal."""
    truncated: bool = False
    """Whether the middle of the output was cut."""
    output_bytes: int = 0
    """How many bytes the command printed in this call, before anything was cut."""
    omitted_bytes: int = 0
    """How many of them are not in `output` because the middle was cut."""
    output_path: str | None = None
    """The file in the sandbox that holds the whole output, when truncated."""
    notice: str | None = None
    """A message of the runtime: shell restarted, working directory gone, new command refused."""
    background_output: str = ""
    """What background jobs printed between commands."""

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the output first, then the facts about it, each labelled."""
        lines = [self.output.removesuffix("\n")] if self.output else []
        if self.background_output:
            lines.append(f"[Background jobs printed meanwhile]\n{self.background_output.removesuffix(chr(10))}")
        if self.truncated:
            kept = f"; the whole is in {self.output_path}" if self.output_path else ""
            lines.append(f"[{self.omitted_bytes} of {self.output_bytes} bytes left out of the middle{kept}]")
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
    """The path as in the archive, `./a/b`; undecodable bytes as surrogate escapes."""
    reason: str


class Checkpoint(NamedTuple):
    """A sandbox's files at one moment, for `Runtime.restore`; without processes and tmpfs."""

    id: str
    """The engine's unique id."""
    label: str
    """The caller's label; may be empty."""
    made_at: datetime
    size_bytes: int
    """The size beyond the image that the sandbox was made from."""


class ResumeReport(NamedTuple):
    """The report of `Runtime.resume`."""

    how: Literal["same", "checkpoint", "new"]
    """`same`: the files are as they were left; `checkpoint`: as they were when it was made; `new`: a fresh sandbox."""
    notes: tuple[str, ...] = ()
    """Notes for the person, one per line: what was done to it, and what differs from the request."""
    place: str = ""
    """The sandbox's name, for people; empty where it has none."""


class PullProgress(NamedTuple):
    """The progress of a pull over all its layers, or of a build, whose steps count as layers."""

    image: str
    status: str
    """'waiting' for another puller, 'pulling', 'extracting', 'retrying', 'building' or 'done'.

    Of a service: 'starting'.
    """
    done_bytes: int = 0
    total_bytes: int = 0
    """Grows while layers report their size."""
    layers_done: int = 0
    layers_total: int = 0
    detail: str = ""
    """The step of a build, or its last output; the state of a service."""


class ResourceUsage(NamedTuple):
    """Resources used by all processes of a sandbox together since its start; None where the kernel does not tell."""

    peak_memory_bytes: int | None = None
    """Highest memory use, including files that the kernel keeps in memory."""
    cpu_s: float | None = None
    """Processor time in seconds; two busy processors give two seconds a second."""
    oom_kills: int | None = None
    """The number of processes killed because memory ran out."""
    throttled_s: float | None = None
    """Time that its processes waited because they had used up their share of processors (`SandboxLimits.cpus`)."""
    no_route: int | None = None
    """Connections and packets to addresses without a route; without a network, all of them."""
