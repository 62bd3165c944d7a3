"""`Runtime`: what any sandbox can do, built once on `open_channel`."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.errors import (
    OhsandboxError,
    SandboxUnavailable,
    UnknownSessionError,
    UsageError,
    WorkdirMissingError,
    WorkdirNotADirectoryError,
    file_error,
)
from ohsandbox.runtime import files, tools, transfer
from ohsandbox.runtime.process import Process
from ohsandbox.runtime.results import CommandObservation, DirEntry, ExecResult
from ohsandbox.runtime.shell import SessionOptions, Shell
from ohsandbox.runtime.watch import Wait
from ohsandbox.runtime.worker import CallInterrupted, CallTimedOut, Outcome, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.schema import Observation

DEFAULT_LIMIT_BYTES = 100 * 1024 * 1024
"""More than any source file, less than what a host would feel."""
SNIPPET_TIMEOUT_S = 30.0
"""For our own questions to the sandbox: even a frozen one answers an error in bounded time."""
MAIN = "main"


class Runtime(ABC):
    """A place where commands run and files lie.

    A backend fills `open_channel` and the lifecycle; everything else is written once, here. All operations may be
    called from any thread. A dead sandbox is `SandboxUnavailable`, never the result of a command.
    """

    state_dir: str
    """Where sessions keep their FIFOs: writable by every user of the sandbox, gone with it."""
    private_processes: bool = True
    """No process lives here but the sandbox's own."""

    def __init__(self) -> None:
        self._pool = WorkerPool(lambda argv, user: self.channel(argv, user=user))
        self._shells: dict[str, Shell] = {}
        self._lock = threading.RLock()
        self._notices: list[str] = []

    # --- what a backend fills -----------------------------------------------------------------

    @property
    @abstractmethod
    def id(self) -> str:
        """Names the sandbox, for people and for `ohsandbox ps`."""

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The absolute directory that relative paths stand in, and where shells begin."""

    @abstractmethod
    def start(self) -> Self:
        """Make the sandbox; calling it again is fine.

        Raises:
            SandboxUnavailable: it cannot be made; nothing is left behind.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the sandbox can serve now."""

    @abstractmethod
    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """Start a process as the leader of its own session and return the channel to it.

        env is added to the sandbox's own. user None is the sandbox's; workdir None is `workdir`.

        Raises:
            UnknownUserError: there is no such user.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: the sandbox cannot serve.
        """

    @abstractmethod
    def _close(self) -> None:
        """Let go of the sandbox, removing it unless it is to be kept. Called once, after shells and workers ended."""

    def _loss(self) -> SandboxUnavailable | None:
        """What is wrong with the sandbox now, or None."""
        return None

    def _revive(self) -> str:
        """Bring a dead sandbox back with its files; what happened, in a sentence.

        Raises:
            SandboxUnavailable: it cannot be brought back.
        """
        raise self._loss() or SandboxUnavailable(f"The sandbox {self.id} does not answer")

    def _restart(self) -> str:
        """Kill all that runs in the sandbox and start it again, files kept; what happened, in a sentence.

        Raises:
            SandboxUnavailable: that cannot be done here.
        """
        raise SandboxUnavailable(f"The sandbox {self.id} cannot start a process any more; close it and make a new one")

    def describe(self) -> dict[str, str]:
        """Facts for a system prompt, name to value."""
        return {"working directory": self.workdir}

    # --- lifecycle ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of ours and let go of the sandbox. Closing twice is fine."""
        with self._lock:
            shells, self._shells = [*self._shells.values()], {}
        for shell in shells:
            shell.close()
        self._pool.close()
        self._close()

    def channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
    ) -> Channel:
        """`open_channel` that brings a dead sandbox back first."""
        try:
            return self.open_channel(argv, tty=tty, env=env, user=user)
        except SandboxUnavailable as failure:
            self._notices.append(self.recover(failure))
            return self.open_channel(argv, tty=tty, env=env, user=user)

    def recover(self, failure: SandboxUnavailable) -> str:
        """Bring the sandbox back after failure; what happened, in a sentence.

        Raises:
            SandboxUnavailable: it cannot be brought back; or failure itself, when nothing is wrong with it.
        """
        with self._lock:
            if self._loss() is None:
                raise failure
            notice = self._revive()
            self._pool.discard_all()
            return notice

    def restart(self, failure: SandboxUnavailable) -> str:
        """The kill ladder's last rung, after failure to start even a shell; what was lost, in a sentence."""
        with self._lock:
            notice = self._restart() if self._loss() is None else self.recover(failure)
            self._pool.discard_all()
            return notice

    def take_notice(self) -> str | None:
        """What happened to the sandbox that the next result should tell."""
        notices, self._notices = self._notices, []
        return "; ".join(notices) or None

    # --- shells -------------------------------------------------------------------------------

    def execute(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        session: str = MAIN,
        is_input: bool = False,
        expect: str | None = None,
    ) -> CommandObservation:
        """Run command in the named shell, which is made on first use and keeps its state between commands.

        timeout_s ends the command and all it started (`timed_out`); idle_timeout_s of silence, a match of the
        regular expression `expect`, and a program that waits for input only return (`running`), and an empty command
        then waits on. is_input types command to the running program: a key name (`C-c`, `ENTER`, `UP`) or a line.

        Raises:
            UsageError: a limit is not a positive number, or command holds a NUL; nothing ran.
            SandboxUnavailable: the sandbox cannot serve and could not be brought back.
        """
        for name, value in (("timeout_s", timeout_s), ("idle_timeout_s", idle_timeout_s)):
            _check_seconds(name, value)
        if "\0" in command:
            raise UsageError("A command cannot hold a NUL byte; write such data to a file first")
        try:
            wait = Wait(timeout_s, idle_timeout_s, expect and re.compile(expect).pattern)
        except re.error as error:
            raise UsageError(f"expect={expect!r} is no regular expression: {error}") from None
        return self._shell(session).execute(command, wait, is_input=is_input)

    def interrupt(self, session: str = MAIN) -> None:
        """Ctrl-C to what runs in the session, from any thread; nothing when nothing runs."""
        with self._lock:
            shell = self._shells.get(session)
        if shell is not None:
            shell.interrupt()

    def open_session(
        self,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
    ) -> None:
        """Make a shell session with options; one made by first use has none.

        Raises:
            UsageError: a session of that name is open.
            UnknownUserError, WorkdirError: as `run`.
        """
        if workdir is not None:
            workdir = self._absolute(workdir)
            self._check_workdir(self._call(b":", workdir=workdir, user=user).status, workdir)
        with self._lock:
            if name in self._shells:
                raise UsageError(f"Session {name!r} is open already; close it first or choose another name")
            options = SessionOptions(dict(env or {}), workdir or self.workdir, user)
            self._shells[name] = shell = Shell(self, name, options)
        try:
            shell.start()
        except BaseException:
            with self._lock:
                self._shells.pop(name, None)
            raise

    def list_sessions(self) -> list[str]:
        """Names of the open sessions, in the order in which they were made."""
        with self._lock:
            return [*self._shells]

    def close_session(self, name: str) -> None:
        """End a session and what it runs.

        Raises:
            UnknownSessionError: there is none of that name.
        """
        with self._lock:
            shell = self._shells.pop(name, None)
        if shell is None:
            raise UnknownSessionError(f"No session {name!r}; open ones: {', '.join(self._shells) or 'none'}")
        shell.close()

    def _shell(self, name: str) -> Shell:
        with self._lock:
            if name not in self._shells:
                self._shells[name] = Shell(self, name, SessionOptions({}, self.workdir, None))
            return self._shells[name]

    # --- processes ----------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run one process to its end, streams apart and binary-safe; after stdin it reads end of file.

        A missing executable is exit code 127 and one that cannot be executed 126, both `not_started`. After
        timeout_s seconds the process and all it started are killed: a result with `timed_out`. Of each stream the
        first limit_bytes are returned.

        Raises:
            UsageError: argv is empty, holds a NUL, or an environment name cannot be exported; nothing ran.
            UnknownUserError: also a LookupError.
            WorkdirError: also FileNotFoundError or NotADirectoryError.
            SandboxUnavailable: the sandbox went away.
        """
        _check_seconds("timeout_s", timeout_s)
        process = Process(argv, dict(env or {}))
        directory = self._absolute(workdir or ".")
        try:
            outcome = self._call(
                process.body, workdir=directory, stdin=stdin, user=user, timeout_s=timeout_s, limit_bytes=limit_bytes,
                mark=process.mark,
            )  # fmt: skip
        except CallTimedOut as late:
            return ExecResult(
                None, late.outcome.stdout, late.outcome.stderr, timed_out=True, truncated=late.outcome.truncated,
                cause="timeout",
            )  # fmt: skip
        self._check_workdir(outcome.status, directory)
        return process.result(outcome)

    def snippet(
        self,
        body: bytes,
        *,
        user: str | int | None = None,
        limit_bytes: int = 65536,
        timeout_s: float = SNIPPET_TIMEOUT_S,
    ) -> Outcome:
        """Run a line of worker shell, for the runtime's own questions.

        Raises:
            SandboxUnavailable: no answer.
        """
        try:
            return self._call(body, user=user, limit_bytes=limit_bytes, timeout_s=timeout_s)
        except CallTimedOut:
            raise self._loss() or SandboxUnavailable(
                f"The sandbox {self.id} did not answer in {timeout_s:g} s; look at it with `ohsandbox ps`"
            ) from None

    def _call(
        self,
        body: bytes,
        *,
        workdir: str = "/",
        stdin: bytes = b"",
        takes_stdin: bool = False,
        user: str | int | None = None,
        timeout_s: float | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        mark: str = "",
    ) -> Outcome:
        worker = self._pool.take(user)
        began = time.monotonic()
        try:
            return worker.call(
                body, workdir=workdir, stdin=stdin, takes_stdin=takes_stdin, timeout_s=timeout_s, limit_bytes=limit_bytes
            )
        except CallTimedOut:
            self._kill_call(worker.channel.pid, mark, time.monotonic() - began, user)
            raise
        except CallInterrupted as died:
            if loss := self._loss():
                raise loss from None
            return died.outcome._replace(status=str(worker.channel.wait()))
        except SandboxUnavailable as failure:
            worker.retired = True
            raise self._loss() or failure from None
        except BaseException:
            worker.retired = True
            self._kill_call(worker.channel.pid, mark, time.monotonic() - began, user)
            raise
        finally:
            self._pool.give_back(worker, user)

    def _kill_call(self, pid: int, mark: str, age_s: float, user: str | int | None) -> None:
        """SIGKILL a call's processes and its worker, by another worker of the same user: root lacks CAP_SYS_PTRACE."""
        private = b"yes" if self.private_processes and mark else b"no"
        body = b"ohs_kill KILL %d %s %d %s;kill -KILL %d" % (
            pid, (mark or "OHSANDBOX_NONE").encode(), int(age_s * 100) + 1, private, pid,
        )  # fmt: skip
        with contextlib.suppress(OhsandboxError):
            self.snippet(body, user=user)

    def _check_workdir(self, status: str, path: str) -> None:
        if status == "missing":
            raise WorkdirMissingError(2, "The sandbox has no such working directory; make it first", path)
        if status in ("file", "denied"):
            reason = "The working directory is a file" if status == "file" else "The working directory may not be entered"
            raise WorkdirNotADirectoryError(20, reason, path)

    # --- files --------------------------------------------------------------------------------

    def read_bytes(
        self, path: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, user: str | int | None = None
    ) -> bytes:
        """A regular file's bytes.

        Raises:
            SandboxFileError: also the builtin of its errno: ENOENT, EACCES, EISDIR, ENOTDIR, ENAMETOOLONG; EINVAL
                for a FIFO, socket or device; EFBIG over limit_bytes.
        """
        absolute = self._file(path)
        outcome = self._call(files.read_body(absolute, limit_bytes), user=user, limit_bytes=limit_bytes + 1)
        data = files.check(outcome, path)
        if len(data) > limit_bytes:
            raise file_error(27, f"It is larger than the limit of {limit_bytes} bytes", path)
        return data

    def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, user: str | int | None = None) -> None:
        """Replace or make a file at once: readers see the old bytes or the new ones. Missing parents are made.

        An existing file keeps its mode and owner unless mode (0o644, say) is given; through a symlink its target is
        written. Hard links to the old file keep the old bytes.

        Raises:
            SandboxFileError: as read_bytes, and ENOSPC, EROFS; the old file is then intact.
        """
        absolute = self._file(path)
        body = files.write_body(absolute, len(data), mode)
        outcome = self._call(body, stdin=data, takes_stdin=True, user=user)
        files.check(outcome, path)

    def list_dir(self, path: str, *, user: str | int | None = None) -> list[DirEntry]:
        """A directory's entries, sorted by name.

        Raises:
            SandboxFileError: ENOENT, ENOTDIR, EACCES.
        """
        return files.parse_list(files.check(self._call(files.list_body(self._file(path)), user=user), path))

    def upload(self, source: Path | str, target: str, *, user: str | int | None = None) -> list[str]:
        """Copy a host file to target, or a directory's contents into it. Modes stay; the owner is user.

        Returns:
            What was left out: sockets, FIFOs and devices.

        Raises:
            UsageError: there is no such source.
            SandboxFileError: the sandbox cannot store it.
        """
        return transfer.upload(lambda argv: self.channel(argv, user=user), Path(source), self._file(target))

    def download(
        self,
        source: str,
        target: Path | str,
        *,
        user: str | int | None = None,
        limits: transfer.TransferLimits | None = None,
    ) -> list[str]:
        """Copy a sandbox file to target on the host, or a directory's contents into it, through a strict filter.

        Only files, directories and symlinks that stay inside come out, without setuid bits.

        Returns:
            What was left out, and why.

        Raises:
            SandboxFileError: there is no such source, or it cannot be read.
            ToolError: it is larger than limits; target is untouched.
        """
        return transfer.download(
            lambda argv: self.channel(argv, user=user),
            self._file(source),
            Path(target),
            limits or transfer.TransferLimits(),
        )

    def _file(self, path: str) -> str:
        files.check_path(path)
        return self._absolute(path)

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        return self.workdir if path == "." else f"{self.workdir.rstrip('/')}/{path}"

    # --- tools --------------------------------------------------------------------------------

    def get_tools(self) -> list[dict[str, Any]]:
        """The runtime's own tools in MCP shape: execute_bash, file_read, file_write."""
        return tools.definitions()

    def execute_tool(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Run one of them; an unknown name or wrong arguments are an ErrorObservation."""
        return tools.execute(self, name, arguments)


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{name} is {value}; give a positive number of seconds")
