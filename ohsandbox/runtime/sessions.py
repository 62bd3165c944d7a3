"""`ShellSessions`: the named shells of a sandbox; each keeps its state from command to command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ohsandbox.errors import UnknownSessionError, UsageError
from ohsandbox.runtime.aio import Begun, cancellable, waited
from ohsandbox.runtime.port_forwarding import PortForwarding
from ohsandbox.runtime.process import invocation
from ohsandbox.runtime.process.worker import WorkerCall
from ohsandbox.runtime.shell.shell import SessionOptions, Shell
from ohsandbox.runtime.shell.wait import WaitOptions, expectation

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import CommandObservation
    from ohsandbox.secrets import Secrets

MAIN = "main"


class ShellSessions(PortForwarding):
    """The shells of a sandbox by name, and the variables of their commands."""

    def __init__(self) -> None:
        super().__init__()
        self._shells: dict[str, Shell] = {}
        self._warmed: Shell | None = None
        """The shell that `warm_up` started, until it is used."""

    def execute(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        yield_s: float | None = None,
        session: str = MAIN,
        is_input: bool = False,
        expect: str | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        on_output: Callable[[str], object] | None = None,
        cancel: threading.Event | None = None,
    ) -> CommandObservation:
        """Run a command in the named shell, which is created at first use and keeps its state between commands.

        After timeout_s seconds the command and its descendants are ended (`timed_out`), and when another thread sets
        cancel as well (`cancelled`). In these cases the call returns while the command goes on (`running`): after
        yield_s seconds, after idle_timeout_s seconds without output, at a match of the regular expression `expect`, and
        when a program waits for input. An empty command then continues to wait. is_input types command into the running
            program: the name of a
        key (`C-c`, `ENTER`, `UP`) or a line.

        Calls of several threads in one session wait in line (`queued_s`); timeout_s counts from the command's start,
        yield_s from the call. While an earlier command is running, a new one is refused at once, with `running` and a
        notice.

        With env or workdir the command runs in a subshell: it sees the session's state, and its changes of environment,
        variables and directory end with it. With user it runs in the session `SESSION@USER`, a shell of that user,
        which starts in `workdir`, keeps its state, and is polled and closed by that name.

        `on_output(text)` gets the output as it comes: masked, without escapes, with carriage returns and with the
        shell's messages about background jobs. It is called in this thread, and the command waits while it is slow; its
        errors end the command and are raised here. It may use other sessions, but not this one.

        Raises:
            UsageError: an option is invalid, expect is not a valid pattern, or command contains a NUL; nothing ran.
            UnknownUserError, WorkdirError: as for `run`.
            SandboxUnavailable: the sandbox is unavailable and could not be recovered.
        """
        invocation.check_seconds(timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, yield_s=yield_s)
        invocation.check_call(env=env, user=user, workdir=workdir, on_output=on_output, cancel=cancel)
        self.keep_outside(env)
        invocation.check_command(command, session, expect, is_input)
        wait = WaitOptions(timeout_s, idle_timeout_s, expect and expectation(expect).pattern, yield_s, cancel)
        if user is not None:
            session = self._session_of(session, user)
        text = ""
        if env or workdir:
            workdir = self._enterable(workdir, user)
            text = invocation.in_subshell(command, env or {}, workdir) if command.strip() else ""
        if text and is_input:
            raise UsageError("env and workdir apply to a new command only. Leave them out with is_input.")
        return self._shell(session).execute(command, wait, is_input=is_input, text=text, listener=on_output)

    def _begin_execute(self, *words: Any, **options: Any) -> Begun[CommandObservation] | None:
        """Begin `execute` in an event loop's thread; return None if that might block."""
        if len(words) != 1 or options.keys() - {"session", "timeout_s", "cancel"} or options["cancel"].is_set():
            return None
        session, wait = options.pop("session", MAIN), WaitOptions(**options)
        invocation.check_seconds(timeout_s=wait.timeout_s)
        invocation.check_command(words[0], session, None, is_input=False)
        shell = self._shells.get(session)
        return None if shell is None else shell.begin(words[0], wait)

    def _session_of(self, session: str, user: str | int) -> str:
        """Return the session of that user beside this one, opened if necessary; this one if it is the user's."""
        with self._lock:
            shell = self._shells.get(session)
        if shell is not None and shell.user == user:
            return session
        name = f"{session}@{user}"
        if name not in self._shells:
            try:
                self.open_session(name, user=user)
            except UsageError:
                if name not in self._shells:  # else another thread has opened it
                    raise
        return name

    def _enterable(self, workdir: str | None, user: str | int | None) -> str | None:
        """Return the absolute path of workdir; raise WorkdirError if it cannot be entered."""
        if workdir is not None:
            workdir = self._absolute(workdir)
            invocation.check_entered(self._call(WorkerCall(b":", workdir, user=user)).status, workdir)
        return workdir

    def interrupt(self, session: str = MAIN) -> None:
        """Send Ctrl-C to the command that is running in the session, if any. Thread-safe."""
        with self._lock:
            shell = self._shells.get(session)
        if shell is not None:
            shell.interrupt()

    def last_output(self, session: str = MAIN, *, limit_bytes: int = 4096) -> bytes:
        """Return the last unread output of the session's running command, at most limit_bytes; not masked."""
        shell = self._shells.get(session)
        return b"" if shell is None else shell.last_output(limit_bytes)

    def open_session(
        self,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
    ) -> None:
        """Open a session with options; a session that is opened by its first `execute` has the defaults.

        Raises:
            UsageError: a session of that name is open, or an option is invalid.
            UnknownUserError, WorkdirError: as for `run`.
        """
        invocation.check_session(name)
        invocation.check_call(env=env, user=user, workdir=workdir)
        self.keep_outside(env)
        self._drop_warmed()
        workdir = self._enterable(workdir, user)
        with self._lock:
            if name in self._shells:
                raise UsageError(f"Session {name!r} is open already. Close it first, or choose another name.")
            shell = self._shell(name, env=env or {}, workdir=workdir, user=user)
        try:
            shell.start()
        except BaseException:
            with self._lock:
                self._shells.pop(name, None)
            raise

    def warm_up(self) -> None:
        """Start the main session's shell, and a process for short calls, before they are needed.

        Secrets that are given later and options of `open_session` still take effect: the shell is then started again.
        """
        self._warmed = self._shell(MAIN)
        self._warmed.start()
        self.snippet(b":")

    def is_warm(self) -> bool:
        """Whether the main session has a live shell."""
        shell = self._shells.get(MAIN)
        return shell is not None and shell.is_open

    def give_secrets(self, secrets: Secrets) -> None:
        """Set the secrets; see `RecoveringBackend.give_secrets`. A shell that was only warmed up is started again."""
        super().give_secrets(secrets)
        self._drop_warmed()

    def _drop_warmed(self) -> None:
        with self._lock:
            shell, self._warmed = self._warmed, None
            if shell is None or shell is not self._shells.get(MAIN) or not shell.is_unused:
                return
            del self._shells[MAIN]
        shell.close()

    def reopen_session(self, name: str, *, workdir: str) -> None:
        """Make the session's next command run where an earlier process left it; its result says what was lost.

        The exported environment is restored if the sandbox still has it. Nothing is started before that command.
        """
        with self._lock:
            if name not in self._shells:
                self._shell(name, workdir=workdir, is_reopened=True)

    def list_sessions(self) -> list[str]:
        """Return the names of the open sessions, in the order in which they were opened."""
        with self._lock:
            return [*self._shells]

    def close_session(self, name: str) -> None:
        """End a session and its processes.

        Raises:
            UnknownSessionError: no session of that name is open.
        """
        with self._lock:
            shell = self._shells.pop(name, None)
        if shell is None:
            raise UnknownSessionError(f"Unknown session {name!r}. Open sessions: {', '.join(self._shells) or 'none'}")
        shell.close()

    def _shell(
        self,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        is_reopened: bool = False,
    ) -> Shell:
        """Return the session's shell, which may not be started; the options are those of a new one."""
        with self._lock:
            if name not in self._shells:
                added = {**self.environment(), **(env or {})}
                options = SessionOptions(added, workdir or self.workdir, user, is_reopened=is_reopened)
                self._shells[name] = Shell(cast("Runtime", self), name, options)
            return self._shells[name]

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        return self.workdir if path == "." else f"{self.workdir.rstrip('/')}/{path}"

    def set_env(self, env: Mapping[str, str]) -> None:
        """Set variables for all new processes, as long as this runtime is open.

        `run` and new sessions have them at once; an open session exports them before its next command, so its running
        programs keep the old values. They survive a restart of the sandbox. Running Python kernels, browsers and MCP
        servers do not get them.

        Raises:
            UsageError: a name or value is invalid, reserved, or a secret's name; nothing has changed.
        """
        invocation.check_settable(env, self.secrets.names)
        self.keep_outside(env)
        with self._lock:
            self._added_env.update(env)
            self._lead_processes(env)

    def _lead_processes(self, env: Mapping[str, str]) -> None:
        """Make open shells export env before their next command, and workers start again."""
        with self._lock:
            for shell in self._shells.values():
                shell.set_env(env)
        self._pool.discard_all()

    def _drop_shells(self, *, kill: bool) -> None:
        with self._lock:
            shells, self._shells = [*self._shells.values()], {}
        for shell in shells:
            shell.close(kill=kill)

    aexecute = cancellable(execute, _begin_execute)
    aopen_session = waited(open_session)
    aclose_session = waited(close_session)
    ainterrupt = waited(interrupt)
    aset_env = waited(set_env)
