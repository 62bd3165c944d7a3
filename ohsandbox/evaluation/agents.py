"""Who works on a task: the solution that comes with it, nobody, a model, a stored conversation, or any command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.sandbox_files import put

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ohsandbox.evaluation.task import Step, Task
    from ohsandbox.runtime import Runtime

MAX_LOG_BYTES = 16 * 1024**2


class AgentReport(BaseModel):
    """What an agent's work came to."""

    model_config = ConfigDict(frozen=True)

    fault: str | None = None
    """Why it did not come to its end: the name of a limit or of an error; None where it did."""
    message: str = ""
    is_model_fault: bool = False
    """The model or its provider failed, not the agent."""
    usage: dict[str, int] = {}
    cost_usd: float | None = None
    model: str | None = None


class EvaluatedAgent(Protocol):
    """Works on a step of a task in a sandbox that is ready."""

    name: str

    def work(
        self,
        runtime: Runtime,
        task: Task,
        step: Step,
        directory: Path,
        *,
        timeout_s: float | None,
        cancel: threading.Event,
    ) -> AgentReport:
        """Work until done, or for timeout_s; logs go into directory.

        Raises:
            SandboxUnavailable: the sandbox went away.
        """


class NopAgent:
    """Does nothing: a task that it solves is no task."""

    name = "nop"

    def work(self, *_: object, **__: object) -> AgentReport:
        """Return at once."""
        return AgentReport()


class OracleAgent:
    """Runs the solution that comes with the task: one that it does not solve is broken."""

    name = "oracle"

    def work(
        self,
        runtime: Runtime,
        task: Task,
        step: Step,
        directory: Path,
        *,
        timeout_s: float | None,
        cancel: threading.Event,
    ) -> AgentReport:
        """See `EvaluatedAgent.work`."""
        if (solution := step.solution) is None:
            raise UsageError(f"Task {task.id} has no solution. Remedy: add one, or use another agent.")
        for files in solution.files:
            put(runtime, files, user=step.agent.user)
        return run_command(
            runtime, ["/bin/sh", "-c", solution.command], step, directory / "oracle.txt",
            env=solution.env, timeout_s=timeout_s, cancel=cancel,
        )  # fmt: skip


def run_command(
    runtime: Runtime,
    argv: list[str],
    step: Step,
    log: Path,
    *,
    env: dict[str, str],
    timeout_s: float | None,
    cancel: threading.Event,
) -> AgentReport:
    """Run a program as the step's user; what it prints goes to log, and a failure of it is the agent's fault."""
    ended = runtime.run(
        argv, env=env, user=step.agent.user, timeout_s=timeout_s, cancel=cancel, merge_streams=True,
        limit_bytes=MAX_LOG_BYTES,
    )  # fmt: skip
    log.write_bytes(ended.stdout)
    if ended.timed_out:
        return AgentReport(fault="Timeout", message=f"it took longer than {timeout_s:g} s")
    if ended.exit_code != 0:
        return AgentReport(fault="ExitCode", message=f"it ended with exit code {ended.exit_code}")
    return AgentReport()
