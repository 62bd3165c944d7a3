"""A sandbox as an environment of mini-swe-agent.

In its configuration: `environment_class: ohsandbox.integrations.mini_swe_agent.OhsandboxEnvironment`.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict

from ohsandbox import DockerRuntime
from ohsandbox.errors import UsageError
from ohsandbox.integrations.commands import run_line

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output by which an agent submits its work; mini-swe-agent's prompts name it."""

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Maximum size of a command's output; the agent's own template shows a model about 10,000 characters."""

_UNAME = {"system": "-s", "node": "-n", "release": "-r", "version": "-v", "machine": "-m"}
"""The fields of `platform.uname()` that prompts use, with the options of uname(1)."""


class OhsandboxEnvironmentConfig(BaseModel):
    """The keys under `environment:`: those of mini-swe-agent's docker environment, and `sandbox`."""

    model_config = ConfigDict(extra="forbid")

    image: str
    cwd: str = ""
    """Working directory of commands; empty means the sandbox's."""
    env: dict[str, str] = {}
    """Variables for each command."""
    forward_env: list[str] = []
    """Names of this process's variables that commands get; `env` has precedence."""
    timeout: int = 30
    """Time limit in seconds for a command; then it is killed with all processes that it started."""
    interpreter: list[str] = []
    """The words before a command, as `[bash, -lc]`; empty means bash if it exists, else sh."""
    sandbox: dict[str, Any] = {}
    """More options of `DockerRuntime`: network, workspace, limits, ..."""


class OhsandboxEnvironment:
    """Runs each command of an agent in a shell of its own; only files persist between commands."""

    def __init__(self, *, runtime: Runtime | None = None, **config: Any) -> None:
        """Start a container, which `cleanup` removes, or use a given runtime, which the caller has to close.

        Args:
            runtime: a started runtime; `image` is then not needed.
            config: the fields of `OhsandboxEnvironmentConfig`.

        Raises:
            SandboxUnavailable: the container cannot be started.
        """
        self.config = OhsandboxEnvironmentConfig(**({"image": ""} if runtime else {}), **config)
        if runtime is not None:
            self._runtime = runtime
        else:
            self._runtime = DockerRuntime(image=self.config.image, **self.config.sandbox).start()
            weakref.finalize(self, self._runtime.close)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]`; return `output`, `returncode` and `exception_info`, as mini-swe-agent does.

        A command that was stopped, or whose directory is missing, has the returncode -1.

        Raises:
            Submitted: the command succeeded, and the first line of its output is `SUBMIT`.
            SandboxUnavailable: the sandbox is gone.
        """
        env = {name: os.environ[name] for name in self.config.forward_env if name in os.environ} | self.config.env
        limit_s = timeout or self.config.timeout
        try:
            ended = run_line(
                self._runtime,
                str(action.get("command", "")),
                timeout_s=limit_s,
                interpreter=self.config.interpreter,
                limit_bytes=MAX_OUTPUT_BYTES,
                env=env,
                workdir=cwd or self.config.cwd or None,
            )
        except UsageError as error:
            return _failed("", str(error), type(error).__name__)
        if ended.timed_out:
            return _failed(ended.output, f"timed out after {limit_s} seconds", "TimeoutExpired")
        lines = ended.output.lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == SUBMIT and ended.exit_code == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return {"output": ended.output, "returncode": ended.exit_code, "exception_info": ""}

    def cleanup(self) -> None:
        """Remove the container that was started here, as the program's exit does. Calling it twice is fine."""
        if self.config.image:
            self._runtime.close()

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """Return the prompts' variables: the configuration, and the sandbox's system, release, version and machine."""
        told = self._runtime.run(["sh", "-c", f"for one in {' '.join(_UNAME.values())}; do uname $one; done"])
        uname = dict(zip(_UNAME, told.stdout.decode("utf-8", "replace").splitlines(), strict=False))
        return recursive_merge(self.config.model_dump(), uname, more)

    def serialize(self) -> dict[str, Any]:
        """Return the part of a trajectory that describes the environment, without the values of `env`."""
        config = {**self.config.model_dump(mode="json"), "env": sorted(self.config.env)}
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return {"info": {"config": {"environment": config, "environment_type": kind}}}


def _failed(output: str, why: str, kind: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {why}",
        "extra": {"exception_type": kind, "exception": why},
    }
