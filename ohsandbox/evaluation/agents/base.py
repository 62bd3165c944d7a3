"""`EvaluatedAgent`: the interface of an agent under evaluation; runs its programs in the sandbox with a masked log."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from ohsandbox.secrets import Secrets, host_keys

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ohsandbox.evaluation.progress import Tell
    from ohsandbox.evaluation.task import Network, Step, Task
    from ohsandbox.runtime import ExecResult, Runtime
    from ohsandbox.secrets import Masker

_MAX_LOG_BYTES = 16 * 1024**2
"""Size up to which the output of an agent's program is kept, from its beginning."""

_CAUSES = {126: "a command cannot be executed", 127: "a command was not found"}
"""The cause that a shell's exit code stands for (POSIX XCU 2.8.2)."""


class AgentReport(BaseModel):
    """The outcome of an agent's work."""

    model_config = ConfigDict(frozen=True)

    fault: str | None = None
    """Why the agent did not finish: the name of a limit or of an error; None where it finished."""
    message: str = ""
    is_model_fault: bool = False
    """Whether the model or its provider failed, and not the agent."""
    notes: tuple[str, ...] = ()
    """Facts for a reader of the result that are nobody's fault."""
    usage: dict[str, int] = {}
    cost_usd: float | None = None
    rate_limit_wait_s: float = 0.0
    """Time spent waiting because the provider limits the rate of requests."""
    model: str | None = None


class Assignment(NamedTuple):
    """The work given to an agent: one step of a task."""

    task: Task
    step: Step
    attempt: int
    """The number of the attempt, from 1."""
    directory: Path
    """The directory on this machine that receives the agent's logs."""
    timeout_s: float | None
    cancel: threading.Event
    """Once it is set, the agent stops within two seconds, with complete logs."""

    @property
    def is_first(self) -> bool:
        """Whether it is the first step of its task."""
        return self.step is self.task.steps[0]


class EvaluatedAgent(ABC):
    """An agent that works on the steps of tasks, on several at a time, each in a sandbox that is ready."""

    name: str
    network: Network | None = None
    """The sandbox's network while the agent works; None uses the network of the step."""
    allow: tuple[str, ...] = ()
    """Entries of the allowlist while the agent works, in addition to the hosts of the step."""
    credentials: tuple[str, ...] = ()
    """Credentials that are added outside the sandbox to requests to their hosts, as
    `DockerRuntime(credentials=...)`.
    """

    def __init__(self, secrets: Secrets | None = None) -> None:
        """Take the secrets of the agent's programs; the keys of this machine are masked beside them."""
        self.secrets = (secrets or Secrets()).hiding(host_keys())
        """Secret values that must not appear in any file of the results."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the agent's settings that affect results, as plain JSON.

        A run can be continued only with the same ones.
        """
        settings = {"network": self.network, "allow": list(self.allow), "credentials": list(self.credentials)}
        return {name: value for name, value in settings.items() if value}

    def begin(self, tell: Tell) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for the start of a run; tell receives events for the run's user."""

    @abstractmethod
    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        """Work until done, out of time or cancelled. The caller keeps ownership of the runtime.

        Raises:
            SandboxUnavailable: the sandbox went away.
            UsageError: the task and the agent do not fit.
        """

    def run_logged(
        self, runtime: Runtime, assignment: Assignment, script: str, log: str, *, user: str | None,
        timeout_s: float | None, env: dict[str, str] | None = None, stdin: bytes = b"",
    ) -> ExecResult:  # fmt: skip
        """Run a shell script; its output goes, masked, to the assignment's log file while it runs.

        Raises:
            SandboxUnavailable: the sandbox went away.
        """
        with _MaskedLog(assignment.directory / log, self.secrets.masker) as printed:
            return runtime.run(
                ["/bin/sh", "-c", script], stdin=stdin, env=env, user=user, timeout_s=timeout_s,
                cancel=assignment.cancel, merge_streams=True, limit_bytes=0, on_output=printed.add,
            )  # fmt: skip


def program_report(ended: ExecResult, timeout_s: float | None) -> AgentReport:
    """Report on an agent's program: any end but exit code 0 is the agent's fault."""
    if ended.cancelled:
        return AgentReport(fault="Cancelled", message="it was cancelled")
    if ended.timed_out:
        return AgentReport(fault="Timeout", message=f"it took longer than {timeout_s:g} s")
    if ended.exit_code != 0:
        cause = ended.cause or _CAUSES.get(ended.exit_code or 0)
        suffix = f" ({cause})" if cause else ""
        return AgentReport(fault="ExitCode", message=f"it ended with exit code {ended.exit_code}{suffix}")
    return AgentReport()


class _MaskedLog:
    """A text file of a program's output, masked before it is written; invalid UTF-8 is replaced."""

    def __init__(self, path: Path, masker: Masker) -> None:
        self._path, self._masked = path, masker.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left, self._left_out = _MAX_LOG_BYTES, 0

    def __enter__(self) -> Self:
        self._file = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._write(self._masked.feed(self._decoder.decode(b"", final=True)) + self._masked.flush())
        if self._left_out:
            self._file.write(f"\n[{self._left_out} bytes more are left out]\n".encode())
        self._file.close()

    def add(self, _stream: str, data: bytes) -> None:
        """Append what was printed."""
        self._write(self._masked.feed(self._decoder.decode(data)))

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        head = data[: self._left]
        self._left -= len(head)
        self._left_out += len(data) - len(head)
        self._file.write(head)
        self._file.flush()
