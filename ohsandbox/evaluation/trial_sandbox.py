"""The sandboxes of a trial: made from the task's image with the run's options, and prepared for a step."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ohsandbox import DockerRuntime, SandboxLimits
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.evaluation.compose import NO_ALLOWLIST, ProjectOptions, ServiceRuntime, project_name
from ohsandbox.evaluation.sandbox_files import end_of_output, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ohsandbox.evaluation.images import Images
    from ohsandbox.evaluation.processors import ProcessorLease
    from ohsandbox.evaluation.task import Healthcheck, Network, Step, TaskEnvironment
    from ohsandbox.runtime import Runtime

LABEL = "eval"
FIXED_ENV = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "0"}
"""Variables that are the same for every trial, so that its verdict does not depend on the machine; a task's own
variables override them.
"""
_OLD_LANGUAGE = {"LANG": "C", "LC_ALL": "C"}
"""The language variables for an image without C.UTF-8 (glibc before 2.35 without the locale), where each bash and perl
would warn.
"""
_MAKE_LOGS = """
set -- /logs/agent /logs/verifier /logs/artifacts
if [ -e /logs ] || [ -h /logs ]; then mkdir -p "$@" && chmod 777 "$@"; else mkdir -p -m 777 "$@"; fi
"""
_LACKS_LANGUAGE = '[ "$(LC_ALL=C.UTF-8 bash -c : 2>&1)" ] && command -v bash'
_MAX_PASSWD_BYTES = 1024**2
_SETUP_S = 600.0
"""Time limit of a step's set-up, which has none of its own; as long as an image may be built."""


class SandboxRemovals:
    """Removes sandboxes of finished trials in the background while the next trials begin: a removal mostly waits."""

    def __init__(self, slots: int) -> None:
        """Remove at most slots sandboxes at once, in addition to as many running trials."""
        self._free = threading.BoundedSemaphore(slots)
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="removal")

    def submit(self, close: Callable[[], object]) -> None:
        """Close a sandbox in the background; wait while the most allowed are being closed."""
        self._free.acquire()
        self._pool.submit(self._close, close)

    def _close(self, close: Callable[[], object]) -> None:
        try:
            with contextlib.suppress(OhsandboxError):  # `gc` removes what an engine that fails has left
                close()
        finally:
            self._free.release()

    def finish(self) -> None:
        """Wait until all are removed."""
        self._pool.shutdown()


class TrialOptions(BaseModel):
    """Options that hold for all trials of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    timeout_multiplier: float = 1.0
    ca_bundle: str | None = None
    oci_runtime: str = ""
    separate_verifier: bool = False
    """Judge in a fresh sandbox, which gets only what the agent has changed."""


class HealthcheckFailed(SandboxUnavailable):
    """A healthcheck failed as often as it may. Before the first agent that is the infrastructure's fault."""


class TrialSandboxes:
    """Makes the sandboxes of one trial."""

    def __init__(
        self,
        images: Images,
        options: TrialOptions,
        lease: ProcessorLease,
        *,
        labels: dict[str, str],
        cancel: threading.Event,
    ) -> None:
        self._images, self._options, self._lease, self._cancel = images, options, lease, cancel
        self._labels = {LABEL: options.run_id, **labels}

    def make(
        self,
        environment: TaskEnvironment,
        network: Network,
        allow: Sequence[str] = (),
        *,
        credentials: Sequence[str] = (),
        opens: bool = False,
    ) -> DockerRuntime:
        """Return a sandbox that is not started; allow are the entries of its allowlist.

        Its network may be opened later.

        Raises:
            ImageUnavailable, EngineUnavailable: there is no image for it.
            UsageError: the task asks for what no sandbox can be.
        """
        image = self._images.get(environment)
        limits: dict[str, Any] = {
            "cpus": self._lease.cpus if environment.cpus is None else min(environment.cpus, self._lease.cpus),
            "cpuset": self._lease.cpuset,
            "memory_bytes": environment.memory_bytes,
            "disk_bytes": environment.disk_bytes,
        }
        language = _OLD_LANGUAGE if self._images.lacks_utf8.get(image.name) else {}
        env = {**FIXED_ENV, **language, **environment.env}
        bounds = SandboxLimits(**{name: value for name, value in limits.items() if value is not None})
        if environment.compose is not None:
            if network == "allowlist":
                raise UsageError(NO_ALLOWLIST)
            name = project_name(self._options.run_id, self._labels["eval.task"], self._labels["eval.attempt"])
            project = ProjectOptions(name, network, bounds, self._labels, self._cancel)
            return ServiceRuntime(
                environment, self._images, project, env=env, workdir=environment.workdir or image.workdir,
                ca_bundle=self._options.ca_bundle,
            )  # fmt: skip
        runtime = DockerRuntime(
            image.name,
            env=env,
            workdir=environment.workdir or image.workdir,
            network=network,
            allow=allow,
            credentials=credentials,
            limits=bounds,
            labels=self._labels,
            ca_bundle=self._options.ca_bundle,
            runtime=self._options.oci_runtime,
        )
        has_rules_of_its_own = network == "open" and bool(allow)
        if (opens or network == "open") and not has_rules_of_its_own and not self._options.oci_runtime:
            runtime.share_networks(self._images.networks)
        return runtime

    def prepare(self, runtime: DockerRuntime, environment: TaskEnvironment) -> None:
        """Prepare what every task expects: /logs, the files of its environment, a service that is healthy.

        Raises:
            UsageError: the image does not allow it.
            HealthcheckFailed: the service is not.
        """
        result = runtime.run(["/bin/sh", "-c", _MAKE_LOGS], user="root", workdir="/")
        if result.exit_code != 0:
            output = result.stderr.decode(errors="replace").strip()
            raise UsageError(
                f"/logs cannot be made in the sandbox: {output}. Use an image in which root can write to /."
            )
        name = self._images.get(environment).name
        if name not in self._images.lacks_utf8:  # once for each image: 3 ms
            lacks = runtime.run(["/bin/sh", "-c", _LACKS_LANGUAGE], workdir="/").exit_code == 0
            self._images.lacks_utf8[name] = lacks
            if lacks:
                runtime.set_env({key: _OLD_LANGUAGE[key] for key in _OLD_LANGUAGE.keys() - environment.env.keys()})
        for files in environment.files:
            put(runtime, files, user=None)
        if environment.healthcheck is not None:
            self.await_health(runtime, environment.healthcheck)

    def check_users(self, runtime: Runtime, users: Iterable[str | None]) -> None:
        """Check, before an agent works, whether the image has the users that later phases need.

        Raises:
            UsageError: one is in no line of its /etc/passwd, by which engines find users.
        """
        names = {user.partition(":")[0] for user in users if user is not None} - {"", "root"}
        if not (names := {name for name in names if not name.isdigit()}):
            return
        try:
            lines = runtime.read_bytes("/etc/passwd", user="root", limit_bytes=_MAX_PASSWD_BYTES).splitlines()
        except FileNotFoundError:
            lines = []
        existing = {line.partition(b":")[0].decode(errors="replace") for line in lines}
        if missing := sorted(names - existing):
            raise UsageError(
                f"The task's verifier runs as user {missing[0]!r}, whom its image does not have. Name one of "
                "/etc/passwd, or a number."
            )

    def set_up(self, runtime: Runtime, step: Step) -> None:
        """Do the set-up that a step needs before its agent.

        Raises:
            UsageError: its set-up failed.
            HealthcheckFailed: its healthcheck failed.
        """
        for files in step.files:
            put(runtime, files, user=step.agent.user)
        if step.setup is not None:
            ended = runtime.run(
                ["/bin/sh", "-c", step.setup], user=step.agent.user, cancel=self._cancel, timeout_s=_SETUP_S
            )
            if ended.exit_code != 0:
                ending = (
                    f"was stopped after {_SETUP_S:g} s" if ended.timed_out else f"ended with code {ended.exit_code}"
                )
                printed = end_of_output(ended.stdout + ended.stderr, 500)
                raise UsageError(f"The set-up of step {step.name!r} {ending}. Correct it. Its last output: {printed}")
        if step.healthcheck is not None:
            self.await_health(runtime, step.healthcheck)

    def await_health(self, runtime: Runtime, check: Healthcheck) -> None:
        """Wait until the command succeeds, or the trial is cancelled.

        Raises:
            HealthcheckFailed: it failed as often as it may.
        """
        began, failures = time.monotonic(), 0
        while not self._cancel.is_set():
            ended = runtime.run(["/bin/sh", "-c", check.command], timeout_s=check.timeout_s, cancel=self._cancel)
            if ended.exit_code == 0:
                return
            starting = time.monotonic() - began < check.start_period_s
            failures += not starting
            if failures >= check.retries:
                printed = end_of_output(ended.stdout + ended.stderr, 200)
                raise HealthcheckFailed(
                    f"The task's healthcheck failed {failures} times: {check.command[:200]}: {printed}"
                )
            self._cancel.wait(check.start_interval_s if starting else check.interval_s)
