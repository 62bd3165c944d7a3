"""A sandbox for users of SWE-ReX: `OhsandboxDeployment(image="python:3.12")` is one of its deployments."""

from __future__ import annotations

import io
import re
import time
from typing import TYPE_CHECKING, Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CommandResponse,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileResponse,
    UploadResponse,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from ohsandbox import DockerRuntime
from ohsandbox.errors import file_error
from ohsandbox.runtime.aio import in_thread

if TYPE_CHECKING:
    import logging

    from swerex.deployment.hooks.abstract import DeploymentHook
    from swerex.runtime.abstract import (
        BashAction,
        CloseBashSessionRequest,
        Command,
        CreateBashSessionRequest,
        ReadFileRequest,
        UploadRequest,
        WriteFileRequest,
    )

    from ohsandbox.runtime import CommandObservation, Runtime

LOOK_EVERY_S = 0.2
"""Seconds between checks of a program that waits for input."""

KILL_S = 0.05
"""Seconds given to a command that no interrupt has ended; then it is killed with all processes that it started."""

_CHECK = "if command -v bash >/dev/null; then exec bash -n; else exec sh -n; fi"
_ERRNO = {127: (2, "No such file or directory"), 126: (13, "Permission denied")}


class OhsandboxRuntime(AbstractRuntime):
    """SWE-ReX's runtime on a started sandbox.

    Two differences from SWE-ReX's own runtime, in a session: a new command while another one runs raises
    CommandTimeoutError, and does not become that one's input. A command without a timeout that waits for input, which
    nobody can give, raises it too.
    """

    def __init__(self, runtime: Runtime, *, logger: logging.Logger | None = None) -> None:
        """Use a runtime, which the caller has to close."""
        self._runtime = runtime
        self._running: dict[str, bool] = {}
        """For each of our sessions, whether a command was left running."""
        self.logger = logger or get_logger("rex-runtime")

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ARG002, ASYNC109 - the host's
        """Whether the sandbox is usable now."""
        alive = await in_thread(self._runtime.is_alive)
        return IsAliveResponse(is_alive=alive, message="" if alive else f"Sandbox {self._runtime.id} does not answer")

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Open a shell, and source the startup files in it.

        Raises:
            SessionExistsError: a session of that name is open.
            CommandTimeoutError: the startup files took longer than startup_timeout seconds.
        """
        name = request.session
        if name in self._runtime.list_sessions():
            raise SessionExistsError(f"session {name} already exists")
        await in_thread(lambda: self._runtime.open_session(name))
        self._running[name] = False
        output = ""
        for path in request.startup_source:
            sourced = await self._send(name, f"source {path}", request.startup_timeout, "")
            output += sourced.output
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        """Run a command in a session, send a line to the program that runs in it, or interrupt it.

        Raises:
            SessionDoesNotExistError: no session of that name is open.
            BashIncorrectSyntaxError: the command is not shell input; nothing ran.
            CommandTimeoutError: the command has not ended in time and still runs; interrupt it.
            NonZeroExitCodeError: the command failed, and check is "raise".
            NoExitCodeError: an expected text matched while the command runs, and check is "raise".
        """
        self._known(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(action)
        interactive = action.is_interactive_command or action.is_interactive_quit
        if not interactive and not action.command.strip():
            return BashObservation(exit_code=None if action.check == "ignore" else 0)
        if not interactive:
            await self._check_syntax(action.command)
        seen = await self._send(
            action.session,
            action.command,
            action.timeout,
            "|".join(f"(?:{one})" for one in action.expect),
            is_input=interactive and self._running[action.session],
        )
        output, matched = _before_match(seen.output, action.expect) if seen.running else (seen.output, "")
        if interactive:
            return BashObservation(output=output, exit_code=0, expect_string=matched)
        code = None if action.check == "ignore" else seen.exit_code
        if action.check == "raise":
            _check_code(action, code, output)
        return BashObservation(output=output, exit_code=code, expect_string=matched)

    async def _check_syntax(self, command: str) -> None:
        checked = await self._runtime.arun(["sh", "-c", _CHECK], stdin=command.encode("utf-8", "surrogateescape"))
        if checked.exit_code:
            stdout, stderr = (stream.decode(errors="backslashreplace") for stream in (checked.stdout, checked.stderr))
            raise BashIncorrectSyntaxError(
                f"bash cannot parse {command!r}: {stderr}", extra_info={"bash_stdout": stdout, "bash_stderr": stderr}
            )

    async def _send(
        self, session: str, command: str, timeout_s: float | None, expect: str, *, is_input: bool = False
    ) -> CommandObservation:
        """Return all output until the command has ended or expect has matched; raise CommandTimeoutError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        seen = await self._runtime.aexecute(
            command, session=session, yield_s=timeout_s, expect=expect or None, is_input=is_input
        )
        output = seen.output
        refused = seen.running and not seen.output and (seen.notice or "").startswith("Not run")
        while not refused and seen.running and not (expect and re.search(expect, output)):
            left_s = LOOK_EVERY_S if until is None else until - time.monotonic()
            if left_s <= 0 or (until is None and seen.waiting_for_input):
                refused = True
                break
            seen = await self._runtime.aexecute(
                "", session=session, yield_s=min(left_s, LOOK_EVERY_S), expect=expect or None
            )
            output += seen.output
        self._running[session] = seen.running
        if refused:
            took = "it waits for input" if timeout_s is None else f"timeout after {timeout_s} seconds"
            raise CommandTimeoutError(f"{seen.notice or took} while running command {command!r}")
        return seen.model_copy(update={"output": output})

    async def _interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Send Ctrl-C up to n_retry times until the command has ended; then kill it with all its processes."""
        output = ""
        for _ in range(action.n_retry):
            self._runtime.interrupt(action.session)
            seen = await self._runtime.aexecute("", session=action.session, yield_s=action.timeout)
            output += seen.output
            if not seen.running:
                break
        else:
            seen = await self._runtime.aexecute("", session=action.session, timeout_s=KILL_S)
            output += seen.output
        self._running[action.session] = seen.running
        return BashObservation(output=output, exit_code=0)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        """End a session and its processes.

        Raises:
            SessionDoesNotExistError: no session of that name is open.
        """
        self._known(request.session)
        await in_thread(lambda: self._runtime.close_session(request.session))
        del self._running[request.session]
        return CloseBashSessionResponse()

    def _known(self, session: str) -> None:
        if session not in self._running:
            raise SessionDoesNotExistError(f"session {session!r} does not exist")

    # --- processes and files ------------------------------------------------------------------

    async def execute(self, command: Command) -> CommandResponse:
        """Run a process, or with shell a line, without a session; env is added to the sandbox's variables.

        Raises:
            CommandTimeoutError: the process was killed at its timeout, with all processes that it started.
            NonZeroExitCodeError: the process failed, and check is set.
            FileNotFoundError, PermissionError: the program is missing or cannot be executed, or cwd is missing.
        """
        argv = [command.command] if isinstance(command.command, str) else command.command
        ended = await self._runtime.arun(
            ["sh", "-c", *argv] if command.shell else argv,
            env=command.env,
            workdir=command.cwd,
            timeout_s=command.timeout,
            merge_streams=command.merge_output_streams,
        )
        if ended.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        if ended.not_started and ended.exit_code in _ERRNO:
            raise file_error(*_ERRNO[ended.exit_code], argv[0])
        stdout, stderr = (stream.decode(errors="backslashreplace") for stream in (ended.stdout, ended.stderr))
        if command.check and ended.exit_code != 0:
            failed = (
                f"Command {command.command!r} failed with exit code {ended.exit_code}. "
                f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            )
            raise NonZeroExitCodeError(f"{command.error_msg}: {failed}" if command.error_msg else failed)
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=ended.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Return a file's text, with every line end as a newline, as `Path.read_text` does.

        Raises:
            FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be read.
            UnicodeDecodeError: the file does not have that encoding, and errors is None or "strict".
        """
        data = io.BytesIO(await self._runtime.aread_bytes(request.path))
        text = io.TextIOWrapper(data, encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a file atomically, as UTF-8; missing directories are created."""
        await self._runtime.awrite_bytes(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file of this machine, or a directory's contents."""
        await self._runtime.aupload(request.source_path, request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Close the sessions; the sandbox keeps running."""
        for name in [*self._running]:
            await in_thread(lambda: self._runtime.close_session(name))  # noqa: B023 - awaited here
            del self._running[name]
        return CloseResponse()


def _before_match(output: str, expect: list[str]) -> tuple[str, str]:
    """Return the text before the first match of one of the patterns, and that pattern."""
    found = [(match.start(), number) for number, one in enumerate(expect) if (match := re.search(one, output))]
    if not found:
        return output, ""
    start, number = min(found)
    return output[:start], expect[number]


def _check_code(action: BashAction, code: int | None, output: str) -> None:
    """Raise NoExitCodeError or NonZeroExitCodeError if the action asks for it."""
    if code == 0:
        return
    failed = f"Command {action.command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    if code is None:
        raise NoExitCodeError(
            f"Command {action.command!r} still runs, or its end could not be told. Output:\n{output!r}"
        )
    raise NonZeroExitCodeError(f"{action.error_msg}: {failed}" if action.error_msg else failed)


class OhsandboxDeployment(AbstractDeployment):
    """A container per deployment: started by `start`, removed by `stop`."""

    def __init__(self, *, logger: logging.Logger | None = None, runtime: Runtime | None = None, **options: Any) -> None:
        """Use the options of `DockerRuntime` (image, network, workspace, limits, ...), or a given runtime.

        Args:
            logger: for SWE-ReX's own messages.
            runtime: a runtime that the deployment starts and closes, only once.
            options: options of `DockerRuntime`, if no runtime is given.
        """
        self.logger = logger or get_logger("rex-deploy")
        self._given, self._options = runtime, options
        self._sandbox: Runtime | None = None
        self._runtime: OhsandboxRuntime | None = None
        self._hooks = CombinedDeploymentHook()

    def __del__(self) -> None:
        """Do nothing: `stop` or the lease ends the sandbox, since garbage collection must enter no event loop."""

    def add_hook(self, hook: DeploymentHook) -> None:
        """Call the hook at each step."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ASYNC109 - the host's
        """Whether the sandbox is usable now.

        Raises:
            DeploymentNotStartedError: the deployment was not started, or is stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Start the sandbox; the image is pulled if missing.

        Raises:
            SandboxUnavailable: the sandbox cannot be created; nothing is left behind.
        """
        self._hooks.on_custom_step("Starting the sandbox")
        sandbox = self._given or DockerRuntime(**self._options)
        self._sandbox = await sandbox.astart()
        self._runtime = OhsandboxRuntime(self._sandbox, logger=self.logger)

    async def stop(self) -> None:
        """Remove the sandbox. Stopping twice is fine."""
        sandbox, self._sandbox, self._runtime = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.aclose()

    @property
    def runtime(self) -> OhsandboxRuntime:
        """The deployment's runtime.

        Raises:
            DeploymentNotStartedError: the deployment was not started, or is stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime
