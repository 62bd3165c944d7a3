"""`Runtime`: the operations of every sandbox, implemented once on `open_channel`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.arguments import expect
from ohsandbox.errors import UnknownSessionError, UsageError
from ohsandbox.runtime import tools
from ohsandbox.runtime.aio import AsyncLifecycle, Begun, cancellable, waited
from ohsandbox.runtime.backend import Backend
from ohsandbox.runtime.files import operations, transfer
from ohsandbox.runtime.ports import PortForwarding
from ohsandbox.runtime.process import invocation
from ohsandbox.runtime.process.cancellation import killing
from ohsandbox.runtime.process.run import AT_ONCE_OPTIONS, Process
from ohsandbox.runtime.process.worker import DEFAULT_LIMIT_BYTES, WorkerCall
from ohsandbox.runtime.registered_tools import RegisteredTools
from ohsandbox.runtime.results import CommandObservation, DirEntry, ExecResult, LeftOut, ResumeReport
from ohsandbox.runtime.shell.shell import SessionOptions, Shell
from ohsandbox.runtime.shell.wait import WaitOptions, expectation

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from ohsandbox.runtime.process.worker import OnBytes
    from ohsandbox.runtime.results import Checkpoint
    from ohsandbox.runtime.tools import MCPAction, MCPToolCaller
    from ohsandbox.schema import Observation
    from ohsandbox.secrets import Secrets

MAIN = "main"


class Runtime(PortForwarding, AsyncLifecycle):
    """A sandbox in which commands run and files are stored.

    A backend implements `open_channel` and the lifecycle (see `Backend`); everything else is implemented here. All
    operations may be called from any thread. A dead sandbox raises `SandboxUnavailable`, never returns a result.
    """

    mcp: MCPToolCaller | None = None
    """The MCP servers that run in the sandbox, set by the conversation that started them."""

    def __init__(self) -> None:
        super().__init__()
        self._shells: dict[str, Shell] = {}
        self._warmed: Shell | None = None
        """The shell that `warm_up` started, until something makes it the caller's."""
        self.registered_tools = RegisteredTools(self)

    # --- lifecycle ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, keep: bool | None = None) -> None:
        """End every process that we started and release the sandbox. Closing twice is fine.

        keep decides now whether the sandbox stays or is removed; None: as constructed. A closed one stays as it is.

        Raises:
            UsageError: this kind of sandbox cannot be kept, or, joined, not be removed; it is still open.
        """
        if keep is not None:
            expect("keep", keep, bool)
            self._decide_keep(keep=keep)
        self.registered_tools.close()
        self._close_ports()
        self._drop_shells(kill=not self.ends_processes)
        if not self.ends_processes:
            self._end_calls()
        self._pool.close()
        self._close()
        if not self.reports_changes_later:
            self.discard_changes()

    def set_env(self, env: Mapping[str, str]) -> None:
        """Add variables, or give them other values, for every process from now on, while this runtime is open.

        Those that `run` starts and new sessions have them at once; an open session exports them before its next
        command, so what runs in it now keeps what it has. They outlast a restart of the sandbox. A Python kernel or a
        browser that runs already, and MCP servers, do not get them.

        Raises:
            UsageError: a name or value is invalid, reserved, or a secret's name; nothing has changed.
        """
        invocation.check_settable(env, self.secrets.names)
        self.keep_outside(env)
        with self._lock:
            self._added_env.update(env)
            self._lead_processes(env)

    def _lead_processes(self, env: Mapping[str, str]) -> None:
        """Have open shells export env before their next command, and workers started anew."""
        with self._lock:
            for shell in self._shells.values():
                shell.set_env(env)
        self._pool.discard_all()

    def _drop_shells(self, *, kill: bool) -> None:
        with self._lock:
            shells, self._shells = [*self._shells.values()], {}
        for shell in shells:
            shell.close(kill=kill)

    def resume(self, checkpoints: Sequence[str] = ()) -> ResumeReport:  # noqa: ARG002 - for those that keep some
        """Like `start`, but in the sandbox that an earlier process of the same conversation left, if it exists.

        Processes that still run in it are ended. If it is gone, a new sandbox starts with the files of the first of
        checkpoints (ids, newest first) that exists.

        Raises:
            SandboxUnavailable: it cannot be started, or another process works in it.
        """
        self.start()
        self.resumed = ResumeReport("same")
        return self.resumed

    def restore(self, checkpoint: Checkpoint | str) -> None:
        """Restore the files of a checkpoint; all sessions and processes end. The sandbox keeps its name.

        Raises:
            UsageError: this backend does not support checkpoints.
            ImageUnavailable: there is no such checkpoint; nothing has changed.
            SandboxUnavailable: it cannot be done; nothing has changed.
        """
        self._restore(checkpoint if isinstance(checkpoint, str) else checkpoint.id)
        with self._lock:
            self._forget()
            self._drop_shells(kill=False)

    # --- shells -------------------------------------------------------------------------------

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
        """Run command in the named shell, which is made on first use and keeps its state between commands.

        timeout_s ends the command and all it started (`timed_out`), and so does another thread that sets cancel
        (`cancelled`). After yield_s, after idle_timeout_s of silence, at a match of the regular expression `expect`,
        and where a program waits for input, the call only returns (`running`), and an empty command then waits on.
        is_input types command to the running program: a key name (`C-c`, `ENTER`, `UP`) or a line.

        Calls of several threads in one session queue (`queued_s`); timeout_s counts from the command's start, yield_s
        from the call. Behind a command that was left running a new one is refused at once, with `running` and a notice.

        With env or workdir the command runs in a subshell: it sees the session's state, and what it changes of its
        environment, variables and directory ends with it. With user it runs in a shell of that user's own, the session
        `SESSION@USER`, which begins in `workdir`, keeps its state and is polled and closed by that name.

        `on_output(text)` hears the output as it comes: masked, without escapes, with carriage returns and with what the
        shell says of background jobs. It is called in this thread, and the command waits while it is slow; what it
        raises ends the command and is raised here. It may use other sessions, but not this one.

        Raises:
            UsageError: an option is invalid, expect is not a valid pattern, or command contains a NUL; nothing ran.
            UnknownUserError, WorkdirError: as `run`.
            SandboxUnavailable: the sandbox cannot serve and could not be brought back.
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
            raise UsageError("env and workdir apply to a new command only. Leave them out with is_input")
        return self._shell(session).execute(command, wait, is_input=is_input, text=text, listener=on_output)

    def _begin_execute(self, *words: Any, **options: Any) -> Begun[CommandObservation] | None:
        """`execute`, begun in an event loop's thread; None where that might block."""
        if len(words) != 1 or options.keys() - {"session", "timeout_s", "cancel"} or options["cancel"].is_set():
            return None
        session, wait = options.pop("session", MAIN), WaitOptions(**options)
        invocation.check_seconds(timeout_s=wait.timeout_s)
        invocation.check_command(words[0], session, None, is_input=False)
        shell = self._shells.get(session)
        return None if shell is None else shell.begin(words[0], wait)

    def _session_of(self, session: str, user: str | int) -> str:
        """The session of that user beside this one, opened where it is not; this one where it is the user's."""
        with self._lock:
            shell = self._shells.get(session)
        if shell is not None and shell.user == user:
            return session
        name = f"{session}@{user}"
        if name not in self._shells:
            try:
                self.open_session(name, user=user)
            except UsageError:
                if name not in self._shells:  # else another thread has opened it meanwhile
                    raise
        return name

    def _enterable(self, workdir: str | None, user: str | int | None) -> str | None:
        """The absolute path of workdir, once it has been entered. Raises WorkdirError."""
        if workdir is not None:
            workdir = self._absolute(workdir)
            invocation.check_entered(self._call(WorkerCall(b":", workdir, user=user)).status, workdir)
        return workdir

    def interrupt(self, session: str = MAIN) -> None:
        """Send Ctrl-C to the command that runs in the session, from any thread; does nothing when none runs."""
        with self._lock:
            shell = self._shells.get(session)
        if shell is not None:
            shell.interrupt()

    def last_output(self, session: str = MAIN, *, limit_bytes: int = 4096) -> bytes:
        """The last unread output of the session's running command, at most limit_bytes; not masked."""
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
        """Open a shell session with options; a session opened by its first `execute` has the defaults.

        Raises:
            UsageError: a session of that name is open, or an option is invalid.
            UnknownUserError, WorkdirError: as `run`.
        """
        invocation.check_session(name)
        invocation.check_call(env=env, user=user, workdir=workdir)
        self.keep_outside(env)
        self._drop_warmed()
        workdir = self._enterable(workdir, user)
        with self._lock:
            if name in self._shells:
                raise UsageError(f"Session {name!r} is open already; close it first or choose another name")
            shell = self._shell(name, env=env or {}, workdir=workdir, user=user)
        try:
            shell.start()
        except BaseException:
            with self._lock:
                self._shells.pop(name, None)
            raise

    def warm_up(self) -> None:
        """Start the main session's shell, and a process for short calls, before their first use.

        Secrets that are given later, and options of `open_session`, still reach that shell: it is started again.
        """
        self._warmed = self._shell(MAIN)
        self._warmed.start()
        self.snippet(b":")

    def is_warm(self) -> bool:
        """Whether the main session has a live shell."""
        shell = self._shells.get(MAIN)
        return shell is not None and shell.is_open

    def give_secrets(self, secrets: Secrets) -> None:
        """See `Backend.give_secrets`; a shell that was only warmed up is started anew with them."""
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
        """Have the session's next command run where an earlier process left it; its result tells what is lost.

        The exported environment comes back where the sandbox still has it. Nothing is started before that command.
        """
        with self._lock:
            if name not in self._shells:
                self._shell(name).take_over(workdir)

    def list_sessions(self) -> list[str]:
        """Names of the open sessions, in the order in which they were opened."""
        with self._lock:
            return [*self._shells]

    def close_session(self, name: str) -> None:
        """End a session and what it runs.

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
    ) -> Shell:
        """The session's shell, not started; the options are those of a new one."""
        with self._lock:
            if name not in self._shells:
                options = SessionOptions({**self.environment(), **(env or {})}, workdir or self.workdir, user)
                self._shells[name] = Shell(self, name, options)
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
        merge_streams: bool = False,
        on_output: OnBytes | None = None,
        cancel: threading.Event | None = None,
    ) -> ExecResult:
        """Run one process to its end, streams apart and binary-safe; after stdin it reads end of file.

        A missing executable is exit code 127 and one that cannot be executed 126, both `not_started`. After
        timeout_s seconds the process and all it started are killed: a result with `timed_out`. Of each stream the
        first limit_bytes are returned. merge_streams puts standard error into stdout, in the order of writing.

        `on_output(stream, data)` hears all of it as it comes, past limit_bytes too: 'stdout' or 'stderr' and bytes,
        not masked. It is called in this thread, and the process waits while it is slow; what it raises ends the
        process and is raised here. Once another thread sets cancel the process and all it started are killed: a
        result with `cancelled`. Where it was set before, nothing runs.

        Raises:
            UsageError: argv is empty, a string, contains a NUL, or an option is invalid; nothing ran.
            UnknownUserError: also a LookupError.
            WorkdirError: also FileNotFoundError or NotADirectoryError.
            SandboxUnavailable: the sandbox went away.
        """
        process = Process(
            argv, self._absolute, stdin=stdin, env=env, workdir=workdir, user=user, timeout_s=timeout_s,
            limit_bytes=limit_bytes, merge_streams=merge_streams, on_output=on_output, cancel=cancel,
        )  # fmt: skip
        self.keep_outside(env)
        if cancel is not None and cancel.is_set():
            return ExecResult(None, b"", b"", not_started=True, cause="cancelled", cancelled=True)
        return process.run(self._call, self.ran_out_of_memory)

    def _begin_run(self, *words: Any, **options: Any) -> Begun[ExecResult] | None:
        """`run`, begun in an event loop's thread; None where that might block."""
        if len(words) != 1 or options.keys() - AT_ONCE_OPTIONS or options["cancel"].is_set():
            return None
        process = Process(words[0], self._absolute, **options)
        self.keep_outside(options.get("env"))
        begun = self._begin_call(process.call)
        finish = partial(process.run, partial(self._call, begun=begun), self.ran_out_of_memory)
        return None if begun is None else Begun(partial(begun.worker.ended, begun), finish)

    # --- files --------------------------------------------------------------------------------

    def read_bytes(
        self, path: str | PathLike[str], *, limit_bytes: int = DEFAULT_LIMIT_BYTES, user: str | int | None = None
    ) -> bytes:
        """A regular file's bytes.

        Raises:
            UsageError: an argument is invalid.
            SandboxFileError: also the builtin of its errno: ENOENT, EACCES, EISDIR, ENOTDIR, ENAMETOOLONG, ELOOP;
                EINVAL for a FIFO, socket or device; EFBIG over limit_bytes; ETIMEDOUT where a read blocks for 10 s.
        """
        invocation.check_call(user=user)
        invocation.check_bytes_limit(limit_bytes)
        path = operations.path_of(path)
        call = partial(self._file_call, path=path, user=user)
        return operations.read(call, self._file(path), limit_bytes, shown=path)

    def write_bytes(
        self, path: str | PathLike[str], data: bytes, *, mode: int | None = None, user: str | int | None = None
    ) -> None:
        """Replace or make a file at once: readers see the old bytes or the new ones. Missing parents are made.

        An existing file keeps its owner and its mode, without setuid, setgid and sticky; a new one has 0o644 and a new
        directory 0o755 whatever the umask; mode (0o644, say) overrides. Through a symlink its target is written. Hard
        links to the old file keep the old bytes. Where the name cannot be replaced (a mount point, a directory that
        this user may not write, an owner that it cannot give) the file is rewritten in place, and then not at once.

        Raises:
            UsageError: an argument is invalid: data is text, say.
            SandboxFileError: as read_bytes, and ENOSPC, EROFS; the old file is then intact.
        """
        invocation.check_call(user=user)
        invocation.check_buffer("data", data)
        invocation.check_mode(mode)
        path = operations.path_of(path)
        operations.check_file_path(path)
        body = operations.write_body(self._file(path), len(data), mode)
        self._file_call(body, path=path, user=user, limit_bytes=len(data), stdin=data, takes_stdin=True)

    def list_dir(self, path: str | PathLike[str], *, user: str | int | None = None) -> list[DirEntry]:
        """A directory's entries, sorted by name; those that vanish while it looks are left out.

        Raises:
            SandboxFileError: ENOENT, ENOTDIR, EACCES; EFBIG when the names alone fill DEFAULT_LIMIT_BYTES.
        """
        invocation.check_call(user=user)
        path = operations.path_of(path)
        body = operations.list_body(self._file(path))
        data = self._file_call(body, path=path, user=user, limit_bytes=DEFAULT_LIMIT_BYTES)
        if len(data) > DEFAULT_LIMIT_BYTES:
            raise operations.too_large(DEFAULT_LIMIT_BYTES, path)
        return operations.parse_list(data)

    def _file_call(self, body: bytes, **options: Any) -> bytes:
        return operations.perform(self._call, body, **options)

    def upload(
        self,
        source: PathLike[str] | str,
        target: PathLike[str] | str,
        *,
        user: str | int | None = None,
        limits: transfer.TransferLimits | None = None,
        cancel: threading.Event | None = None,
    ) -> list[str]:
        """Copy a host file to target, or a directory's contents into it; creates target and replaces what is there.

        Modes are kept, except for setuid, setgid and sticky; the owner is user. Symlinks are copied as they are, never
        followed; hard links stay linked.

        Returns:
            What was left out: sockets, FIFOs and devices.

        Raises:
            UsageError: source is neither a file nor a directory, or its path contains a symlink that a sandbox could
                have made.
            SandboxFileError: source does not exist (then also FileNotFoundError), the sandbox cannot store it, or this
                machine cannot read it.
            ToolError: it is larger than limits; nothing was sent.
            CallCancelledError: cancel was set before it ended.
        """
        invocation.check_call(user=user, cancel=cancel)
        limits = transfer.limits_of(limits)
        here, there = Path(operations.path_of(source)), self._file(operations.path_of(target))
        with killing(cancel) as killed:
            return transfer.upload(lambda argv: killed(self.channel(argv, user=user)), here, there, limits)

    def download(
        self,
        source: PathLike[str] | str,
        target: PathLike[str] | str,
        *,
        user: str | int | None = None,
        limits: transfer.TransferLimits | None = None,
        cancel: threading.Event | None = None,
    ) -> list[LeftOut]:
        """Copy a sandbox file to target on the host, or a directory's contents into it, through a strict filter.

        Files, hard links and directories come out, and symlinks that stay inside; without setuid, setgid and sticky,
        directories always open to you. What target already has under the same name is replaced, directories are
        merged, and no symlink in target is ever followed.

        Returns:
            What was left out, and why.

        Raises:
            SandboxFileError: source does not exist or cannot be read, the sandbox sends an invalid archive, or this
                machine cannot store it.
            ToolError: it is larger than limits; target is untouched.
            UsageError: target is itself a symlink to a directory, or its path leads through one.
            CallCancelledError: cancel was set before it ended.
        """
        invocation.check_call(user=user, cancel=cancel)
        limits = transfer.limits_of(limits)
        there, here = self._file(operations.path_of(source)), Path(operations.path_of(target))
        with killing(cancel) as killed:
            return transfer.download(lambda argv: killed(self.channel(argv, user=user)), there, here, limits)

    def _file(self, path: str) -> str:
        operations.check_path(path)
        return self._absolute(path)

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        return self.workdir if path == "." else f"{self.workdir.rstrip('/')}/{path}"

    # --- ports --------------------------------------------------------------------------------

    # --- tools --------------------------------------------------------------------------------

    def get_tools(self) -> list[dict[str, Any]]:
        """The runtime's own tools in MCP shape: execute_bash, file_read, file_write."""
        return tools.definitions()

    def execute_tool(
        self, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None = None
    ) -> Observation:
        """Run one of these, or any registered tool that needs only a runtime: `glob`, `file_editor`, `browser`...

        A tool keeps its state (edits to undo, a Python kernel) until `close`. An unknown name or wrong arguments give
        an ErrorObservation. `registered_tools.names()` lists what there is. cancel ends the call.
        """
        return tools.execute(self, name, arguments, cancel=cancel)

    def call_tool_mcp(self, action: MCPAction) -> Observation:
        """Call a tool of the sandbox's MCP servers; an unknown tool or a missing result gives an ErrorObservation."""
        return tools.call_mcp(self.mcp, action)

    # --- async: each method awaited; see `aio` ----------------------------------------------------

    aexecute = cancellable(execute, _begin_execute)
    arun = cancellable(run, _begin_run)
    aread_bytes = waited(read_bytes)
    awrite_bytes = waited(write_bytes)
    alist_dir = waited(list_dir)
    aupload = cancellable(upload)
    adownload = cancellable(download)
    aexecute_tool = cancellable(execute_tool)
    acall_tool_mcp = waited(call_tool_mcp)
    aopen_session = waited(open_session)
    aclose_session = waited(close_session)
    ainterrupt = waited(interrupt)
    aset_env = waited(set_env)
    aresume = waited(resume)
    acheckpoint = waited(Backend.checkpoint)
    arestore = waited(restore)
    ais_alive = waited(Backend.is_alive)
    aworkspace_changes = waited(Backend.workspace_changes)
