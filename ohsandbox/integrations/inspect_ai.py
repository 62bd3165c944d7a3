"""Inspect AI: the sandbox provider `ohsandbox`.

    Task(..., sandbox="ohsandbox")                    # the Dockerfile beside the task, else python:3.12
    Task(..., sandbox=("ohsandbox", "node:22"))       # an image, or the path of a Dockerfile
    Task(..., sandbox=SandboxEnvironmentSpec("ohsandbox", InspectSandboxConfig(image="node:22", network="open")))

Inspect finds it by the entry points of its group.
"""

# ruff: noqa: A002, ARG002, ARG003, ASYNC109, FBT001, FBT002, PLR0917 - the signatures are Inspect's
from __future__ import annotations

import contextlib
import errno
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from ohsandbox import (
    BuiltImage,
    DockerRuntime,
    SandboxLimits,
    SandboxUnavailable,
    UsageError,
    abuild_image,
    list_sandboxes,
    remove_sandbox,
)
from ohsandbox.errors import SandboxFileError, UnknownUserError, WorkdirError
from ohsandbox.runtime.aio import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = {"made-for": "inspect-ai"}
"""Labels by which `inspect sandbox cleanup` finds our sandboxes."""
NOT_EXECUTABLE = 126
_MODE_FOR_ROOT = 'PATH=/usr/sbin:/usr/bin:/sbin:/bin; [ "$(id -u)" != 0 ] || ls -ldL -- "$1"'
_LOGIN = "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"


class InspectSandboxConfig(BaseModel):
    """The configuration of an evaluation's sandboxes: options of `DockerRuntime`, by their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = "python:3.12"
    build: str | None = None
    """Instead of an image: a Dockerfile or its directory, relative to the directory of the task."""
    network: Literal["none", "open"] = "none"
    env: dict[str, str] = {}
    user: str | None = None
    workdir: str | None = None
    limits: SandboxLimits = SandboxLimits()

    def __hash__(self) -> int:
        """Return a hash, since Inspect prepares each distinct configuration once."""
        return hash(self.model_dump_json())


@sandboxenv(name="ohsandbox")
class InspectSandboxEnvironment(SandboxEnvironment):
    """A sandbox in a container; each sample has one, named "default"."""

    _open: ClassVar[set[InspectSandboxEnvironment]] = set()
    """Environments of samples that have not been cleaned up, for `task_cleanup`."""
    _built: ClassVar[dict[str, BuiltImage]] = {}
    """Images that `task_init` has built, by `build` of the configuration."""

    def __init__(self, runtime: DockerRuntime) -> None:
        super().__init__()
        self.runtime = runtime

    # --- life cycle ---

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the files beside the task that are used if the task names no configuration."""
        return ["Dockerfile"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration from its form in an evaluation's log."""
        return InspectSandboxConfig.model_validate(config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return two sandboxes per processor, since they mostly wait for the model."""
        return 2 * (os.cpu_count() or 1)

    def default_polling_interval(self) -> float:
        """Return the seconds between polls of a process of `exec_remote`; a poll takes about a millisecond."""
        return 0.2

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Pull or build the image once, and check that a sandbox starts from it."""
        wanted = _config(config)
        if wanted.build is not None:
            cls._built[wanted.build] = await abuild_image(wanted.build)
        await (await cls._started(wanted)).runtime.aclose()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox of a sample."""
        environment = await cls._started(_config(config))
        cls._open.add(environment)
        return {"default": environment}

    @classmethod
    async def _started(cls, config: InspectSandboxConfig) -> Self:
        options = dict(config)
        if (place := options.pop("build")) is not None:
            if place not in cls._built:
                cls._built[place] = await abuild_image(place)
            built = cls._built[place]
            options |= {"image": built.name, "workdir": config.workdir or built.workdir}
        runtime = await DockerRuntime(labels=LABELS, **options).astart()
        try:
            # the first process checks the sandbox from inside, and creates its working directory
            await runtime.arun(["/bin/sh", "-c", ":"])
        except BaseException:
            await runtime.aclose()
            raise
        return cls(runtime)

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Remove the sandboxes of a sample, with all their processes."""
        for environment in environments.values():
            ours = environment.as_type(cls)
            cls._open.discard(ours)
            await ours.runtime.aclose()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """Remove what samples have left; with `--no-sandbox-cleanup` keep it and print the names."""
        while cls._open:
            runtime = cls._open.pop().runtime
            await runtime.aclose(keep=not cleanup)
            if not cleanup:
                print(f"{runtime.name} stays. Remove it with: inspect sandbox cleanup ohsandbox {runtime.name}")  # noqa: T201

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove sandboxes that evaluations have left, or the named one, and print them; those in use stay."""
        await in_thread(partial(_clean_up, id))

    # --- processes ---

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a process; after timeout seconds or a cancellation, kill it with all processes that it started.

        Raises:
            TimeoutError, PermissionError, OutputLimitExceededError, SandboxUnavailableError: as Inspect documents.
            FileNotFoundError: cwd does not exist.
        """
        options: dict[str, Any] = {"env": env, "user": user or None, "timeout_s": timeout}
        options["stdin"] = input.encode() if isinstance(input, str) else input or b""
        options["limit_bytes"] = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            with _inspect_errors():
                try:
                    ended = await self.runtime.arun(cmd, workdir=cwd or None, **options)
                except WorkdirError:
                    if cwd or not user:
                        raise
                    # the directory that the image names belongs to another user, as /home/agent
                    ended = await self.runtime.arun(cmd, workdir="/", **options)
        except UnknownUserError as error:
            return ExecResult(success=False, returncode=NOT_EXECUTABLE, stdout="", stderr=f"{error}\n")
        stdout, stderr = ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        if ended.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            setattr(late, "truncated_output", stdout + stderr)  # noqa: B010 - by this name Inspect shows it
            raise late
        if ended.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        if ended.not_started and ended.exit_code == NOT_EXECUTABLE and "ermission denied" in stderr:
            raise PermissionError(errno.EACCES, stderr.strip(), cmd[0])
        code = ended.exit_code if ended.exit_code is not None else 1
        return ExecResult(success=code == 0, returncode=code, stdout=stdout, stderr=stderr)

    # --- files ---

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file atomically; missing directories are created."""
        with _inspect_errors():
            await self._check_mode(file, 2, "write")
            data = contents.encode() if isinstance(contents, str) else contents
            await self.runtime.awrite_bytes(file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as UTF-8 text with its line ends unchanged, or as bytes."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _inspect_errors():
            await self._check_mode(file, 1, "read")
            data = await self.runtime.aread_bytes(file, limit_bytes=limit)
        return data.decode() if text else data

    async def _check_mode(self, file: str, place: int, right: str) -> None:
        """Raise PermissionError if the owner lacks a right, at this place in `ls -l`, that root has in any case."""
        listed = await self.runtime.arun(["/bin/sh", "-c", _MODE_FOR_ROOT, "sh", file])
        mode = listed.stdout[:10].decode(errors="replace")
        if mode.startswith("-") and mode[place] == "-":
            raise PermissionError(errno.EACCES, f"Its mode is {mode}: not even the owner may {right} it", file)

    # --- connections for people ---

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return the command that opens a shell in the sandbox.

        Raises:
            ConnectionError: the sandbox is not running.
        """
        runtime = self.runtime
        if not await in_thread(runtime.is_alive):
            raise ConnectionError(f"Sandbox {runtime.name} does not run")
        who = ["--user", user] if user else []
        words = ["docker", "exec", "-it", *who, "--workdir", runtime.workdir, runtime.name, "sh", "-c", _LOGIN]
        return SandboxConnection(
            type="ohsandbox",
            command=shlex.join(words),
            vscode_command=None if user else ["remote-containers.attachToRunningContainer", runtime.name],
            container=runtime.name,
        )


def _config(config: SandboxEnvironmentConfigType | None) -> InspectSandboxConfig:
    """Return a task's complete configuration; Inspect has turned an image's name into a path beside the task.

    Raises:
        ValueError: config belongs to another provider.
    """
    if isinstance(config, str):
        if Path(config).exists():
            return InspectSandboxConfig(build=config)
        return InspectSandboxConfig(image=config.removeprefix(f"{Path.cwd()}{os.sep}"))
    if config is not None and not isinstance(config, InspectSandboxConfig):
        raise ValueError(f"{type(config).__name__} is not a configuration of ohsandbox. Pass an InspectSandboxConfig")
    return config or InspectSandboxConfig()


def _clean_up(name: str | None) -> None:
    for found in list_sandboxes(labels=LABELS):
        if found.ours and name in {None, found.name}:
            try:
                remove_sandbox(found)
            except UsageError as error:
                print(f"left {found.name}: {error}")  # noqa: T201
            else:
                print(f"removed {found.name}")  # noqa: T201


@contextlib.contextmanager
def _inspect_errors() -> Iterator[None]:
    """Context that raises our errors as those that Inspect documents."""
    try:
        yield
    except SandboxUnavailable as error:
        raise SandboxUnavailableError(str(error)) from error
    except UsageError as error:
        if "NUL byte" in str(error):  # by this wording Inspect reports it to the model
            raise ValueError("embedded null byte") from error
        raise
    except SandboxFileError as error:
        if error.errno == errno.EFBIG:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        if error.errno == errno.ETIMEDOUT:
            raise TimeoutError(str(error)) from error
        if error.errno in {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}:  # no file can have that name
            raise FileNotFoundError(errno.ENOENT, error.strerror, error.filename) from error
        raise
