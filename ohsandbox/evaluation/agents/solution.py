"""The two agents that check a task itself: `oracle` must solve it, and `nop` must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent, program_report
from ohsandbox.evaluation.sandbox_files import put_for_all

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime


class NopAgent(EvaluatedAgent):
    """Does nothing: a task that it solves is broken."""

    name = "nop"

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:  # noqa: ARG002 - it does nothing
        """Return at once."""
        return AgentReport()


class OracleAgent(EvaluatedAgent):
    """Runs the solution that comes with the task: a task that it does not solve is broken."""

    name = "oracle"

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        """See `EvaluatedAgent.work`."""
        step = assignment.step
        if (solution := step.solution) is None:
            raise UsageError(f"Task {assignment.task.id} has no solution. Add one, or use another agent.")
        put_for_all(runtime, solution.files)
        ended = self.run_logged(
            runtime, assignment, solution.command, "oracle.txt", user=step.agent.user, env=solution.env,
            timeout_s=assignment.timeout_s,
        )  # fmt: skip
        return program_report(ended, assignment.timeout_s)
