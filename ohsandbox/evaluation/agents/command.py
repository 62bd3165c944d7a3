"""`CommandAgent`: runs any program in the sandbox as the agent."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent, program_report

if TYPE_CHECKING:
    from ohsandbox.evaluation.task import Network
    from ohsandbox.runtime import Runtime
    from ohsandbox.secrets import Secrets

INSTRUCTION, INSTRUCTION_FILE = "OHSANDBOX_INSTRUCTION", "OHSANDBOX_INSTRUCTION_FILE"
_MAX_VARIABLE_BYTES = 128 * 1024 - len(INSTRUCTION) - 2
"""Linux's limit of one variable (MAX_ARG_STRLEN), with its name, `=` and the NUL at its end."""
SETUP_TIMEOUT_S = 360.0
"""Time limit of the set-up, the same as Harbor's for the installation of an agent."""
_OUTPUT_NAME, _SETUP_NAME = "output.txt", "setup.txt"


class AgentSetupFailed(OhsandboxError):  # noqa: N818 - what happened
    """The agent could not be installed, which says nothing about its abilities."""


class CommandAgent(EvaluatedAgent):
    """Runs a shell command that gets the instruction in a variable, in a file and on its standard input."""

    name = "command"

    def __init__(
        self,
        command: str,
        *,
        setup: str | None = None,
        secrets: Secrets | None = None,
        network: Network | None = None,
    ) -> None:
        """Create the agent; setup runs before the command, as root, and both get the secrets as variables."""
        super().__init__(secrets)
        self._command, self._setup, self.network = command, setup, network

    @property
    def settings(self) -> dict[str, Any]:
        """See `EvaluatedAgent.settings`; only the names of variables are included."""
        settings = {"command": self._command, "setup": self._setup, "env": sorted(self.secrets.names)}
        masked: dict[str, Any] = self.secrets.masker.mask_json(
            {name: value for name, value in settings.items() if value}
        )
        return {**masked, **super().settings}

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        """See `EvaluatedAgent.work`.

        Raises:
            AgentSetupFailed: the set-up ended with another exit code than 0, or took too long.
        """
        instruction = assignment.step.instruction.encode()
        if len(instruction) > _MAX_VARIABLE_BYTES:
            raise UsageError(
                f"The instruction of task {assignment.task.id} has {len(instruction)} bytes, and a variable of a "
                f"process holds {_MAX_VARIABLE_BYTES}. Shorten it."
            )
        if self._setup is not None and assignment.is_first:
            self._set_up(runtime, self._setup, assignment)
        file = f"{runtime.scratch_dir}/ohsandbox-instruction-{secrets.token_hex(4)}.md"
        runtime.write_bytes(file, instruction, user=assignment.step.agent.user)
        variables = {INSTRUCTION: assignment.step.instruction, INSTRUCTION_FILE: file}
        ended = self.run_logged(
            runtime, assignment, self._command, _OUTPUT_NAME, env={**self.secrets.environment(), **variables},
            user=assignment.step.agent.user, stdin=instruction, timeout_s=assignment.timeout_s,
        )  # fmt: skip
        return program_report(ended, assignment.timeout_s)

    def _set_up(self, runtime: Runtime, command: str, assignment: Assignment) -> None:
        ended = self.run_logged(
            runtime, assignment, command, _SETUP_NAME, env=self.secrets.environment(), user="root",
            timeout_s=SETUP_TIMEOUT_S,
        )  # fmt: skip
        report = program_report(ended, SETUP_TIMEOUT_S)
        if report.fault is not None and not ended.cancelled:
            raise AgentSetupFailed(f"The set-up of the agent failed: {report.message}. See agent/{_SETUP_NAME}.")
