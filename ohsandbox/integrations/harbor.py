"""Harbor: an environment that runs a task's trials in sandboxes of ohsandbox; Python 3.12 or newer, as Harbor.

    harbor run --path TASK --agent oracle --env ohsandbox.integrations.harbor:HarborEnvironment

Of Harbor's protected names only those are used that all of its environments use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.trial.config import ResourceMode

from ohsandbox import DockerRuntime, SandboxLimits, abuild_image

MIB = 1024**2


class HarborEnvironment(BaseEnvironment):
    """A container per trial, made from the task's `docker_image` or its `environment/Dockerfile`.

    The network is what the task asks for, open or none; a list of hosts is refused before the start. A task that names
    no memory or processors gets those of `SandboxLimits`.
    """

    _runtime: DockerRuntime | None = None

    @staticmethod
    def type() -> str:
        """Return the name of the environment in results."""
        return "ohsandbox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The capabilities that a task may require."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Processors and memory are limits; none are reserved."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ValueError(
                f"{self.environment_dir / COMPOSE_FILE_NAME} needs Docker Compose, and a sandbox is one container. "
                "Run this task with --env docker."
            )

    # --- life cycle ---

    async def start(self, force_build: bool) -> None:  # noqa: FBT001 - Harbor's signature
        """Pull or build the image, and start the container."""
        task = self.task_env_config
        is_prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=task.docker_image, force_build=force_build
        )
        image, workdir = str(task.docker_image), task.workdir
        if not is_prebuilt:
            built = await abuild_image(self.environment_dir)
            image, workdir = built.name, task.workdir or built.workdir
        limits: dict[str, Any] = {}
        if (cpus := self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)) is not None:
            limits["cpus"] = cpus
        if (memory_mb := self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)) is not None:
            limits["memory_bytes"] = memory_mb * MIB
        network: Literal["none", "open"] = "none" if self._network_disabled else "open"
        runtime = DockerRuntime(image, workdir=workdir, network=network, limits=SandboxLimits(**limits))
        self._runtime = await runtime.astart()
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:  # noqa: FBT001 - Harbor's signature
        """Remove the container, or keep it if `--no-delete` was given."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        if not delete:
            self.logger.warning("Container %s stays. Remove it with: docker rm -f %s", runtime.name, runtime.name)
        await runtime.aclose(keep=not delete)

    @property
    def runtime(self) -> DockerRuntime:
        """The environment's sandbox.

        Raises:
            RuntimeError: the sandbox is not started.
        """
        if self._runtime is None:
            raise RuntimeError(f"The environment of {self.session_id} is not started. Call start() first")
        return self._runtime

    # --- commands and files ---

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in bash; after timeout_sec or a cancellation, kill it with all processes that it started.

        Raises:
            RuntimeError: the command took longer than timeout_sec.
        """
        ended = await self.runtime.arun(
            ["bash", "-c", command], workdir=cwd, env=self._merge_env(env),
            user=self._resolve_user(user), timeout_s=timeout_sec,
        )  # fmt: skip
        if ended.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        stdout, stderr = ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        return ExecResult(stdout=stdout, stderr=stderr, return_code=ended.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of this machine to target_path; root owns it."""
        await self.runtime.aupload(source_path, target_path, user="root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a directory's contents into target_dir; root owns them."""
        await self.runtime.aupload(source_dir, target_dir, user="root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the container to target_path."""
        await self._download(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory's contents into target_dir; links that lead out of it, devices and sockets are skipped."""
        await self._download(source_dir, target_dir)

    async def _download(self, source: str, target: Path | str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        for left in await self.runtime.adownload(source, target, user="root"):
            self.logger.warning("%s: %s was left out: %s", source, left.path, left.reason)
