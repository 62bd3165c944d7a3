"""`Runtime`: the operations of every sandbox, implemented once on `open_channel`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.arguments import expect
from ohsandbox.runtime import tool_calls
from ohsandbox.runtime.aio import AsyncLifecycle, Begun, cancellable, waited
from ohsandbox.runtime.backend import Backend
from ohsandbox.runtime.files import operations, transfer
from ohsandbox.runtime.process import invocation
from ohsandbox.runtime.process.cancellation import killing
from ohsandbox.runtime.process.run import AT_ONCE_OPTIONS, Process
from ohsandbox.runtime.process.worker import DEFAULT_LIMIT_BYTES
from ohsandbox.runtime.registered_tools import RegisteredTools
from ohsandbox.runtime.results import DirEntry, ExecResult, LeftOut, ResumeReport
from ohsandbox.runtime.sessions import ShellSessions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from ohsandbox.runtime.process.worker import CallResult, OnBytes, WorkerCall
    from ohsandbox.runtime.results import Checkpoint
    from ohsandbox.runtime.tool_calls import MCPAction, MCPToolCaller
    from ohsandbox.schema import Observation


class Runtime(ShellSessions, AsyncLifecycle):
    """A sandbox in which commands run and files are stored.

    A backend implements `open_channel` and the life cycle (see `Backend`); everything else is implemented here. All
    operations are thread-safe. A dead sandbox raises `SandboxUnavailable`; it never returns a result.
    """

    mcp: MCPToolCaller | None = None
    """The MCP servers that run in the sandbox, set by the conversation that started them."""

    def __init__(self) -> None:
        super().__init__()
        self.registered_tools = RegisteredTools(self)

    # --- lifecycle ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, keep: bool | None = None) -> None:
        """End all processes that this object started, and release the sandbox; idempotent.

        keep says whether the sandbox stays or is removed; None means as constructed. A sandbox that is closed already
        is not changed.

        Raises:
            UsageError: this kind of sandbox cannot be kept or, if it was joined, not be removed; it is still open.
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

    def resume(self, checkpoints: Sequence[str] = ()) -> ResumeReport:  # noqa: ARG002 - for those that keep some
        """Start as `start` does, but in the sandbox that an earlier process of the conversation left, if it exists.

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
            SandboxUnavailable: restoring failed; nothing has changed.
        """
        self._restore(checkpoint if isinstance(checkpoint, str) else checkpoint.id)
        with self._lock:
            self._forget()
            self._drop_shells(kill=False)

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
        """Run one process to its end, with separate, binary-safe streams; after stdin it reads end of file.

        A missing executable gives exit code 127 and one that cannot be executed 126, both with `not_started`. After
        timeout_s seconds the process and its descendants are killed, and the result has `timed_out`. The result has the
        first limit_bytes of each stream. merge_streams adds standard error to stdout, in the order of writing.

        `on_output(stream, data)` gets all output as it comes, also beyond limit_bytes: 'stdout' or 'stderr' and bytes,
        not masked. It is called in this thread, and the process waits while it is slow; its errors end the process and
        are raised here. When another thread sets cancel, the process and its descendants are killed, and the result has
        `cancelled`; if it is set before the call, nothing runs.

        Raises:
            UsageError: argv is empty, a string, or contains a NUL, or an option is invalid; nothing ran.
            UnknownUserError: user does not exist; this is also a LookupError.
            WorkdirError: workdir cannot be entered; this is also a FileNotFoundError or NotADirectoryError.
            SandboxUnavailable: the sandbox is gone.
        """
        process = Process(
            argv, self._absolute, stdin=stdin, env=env, workdir=workdir, user=user, timeout_s=timeout_s,
            limit_bytes=limit_bytes, merge_streams=merge_streams, on_output=on_output, cancel=cancel,
        )  # fmt: skip
        self.keep_outside(env)
        if cancel is not None and cancel.is_set():
            return ExecResult(None, b"", b"", not_started=True, cause="cancelled", cancelled=True)
        return self._run(process, self._call, self._notices, len(self._notices))

    def _run(
        self, process: Process, call: Callable[[WorkerCall], CallResult], notices: Sequence[str], known: int
    ) -> ExecResult:
        """Run a process, and add to its result what came after the known notices."""
        result = process.run(call, self.ran_out_of_memory)
        return result._replace(notice=self._notices_after(notices, known))

    def _begin_run(self, *words: Any, **options: Any) -> Begun[ExecResult] | None:
        """Begin `run` in an event loop's thread; return None if that might block."""
        if len(words) != 1 or options.keys() - AT_ONCE_OPTIONS or options["cancel"].is_set():
            return None
        process = Process(words[0], self._absolute, **options)
        self.keep_outside(options.get("env"))
        exchange = self._begin_call(process.call)
        finish = partial(self._run, process, partial(self._call, begun=exchange), self._notices, len(self._notices))
        return None if exchange is None else Begun(partial(exchange.worker.ended, exchange), finish)

    # --- files --------------------------------------------------------------------------------

    def read_bytes(
        self, path: str | PathLike[str], *, limit_bytes: int = DEFAULT_LIMIT_BYTES, user: str | int | None = None
    ) -> bytes:
        """Return the bytes of a regular file.

        Raises:
            UsageError: an argument is invalid.
            SandboxFileError: also the builtin exception of its errno: ENOENT, EACCES, EISDIR, ENOTDIR, ENAMETOOLONG,
                ELOOP; EINVAL for a FIFO, socket or device; EFBIG over limit_bytes; ETIMEDOUT if a read blocks for 10 s.
        """
        invocation.check_call(user=user)
        invocation.check_bytes_limit(limit_bytes)
        path = operations.path_of(path)
        call = partial(self._file_call, path=path, user=user)
        return operations.read(call, self._file(path), limit_bytes, shown=path)

    def write_bytes(
        self, path: str | PathLike[str], data: bytes, *, mode: int | None = None, user: str | int | None = None
    ) -> None:
        """Create or replace a file atomically: readers see the old bytes or the new ones. Missing parents are created.

        An existing file keeps its owner and its mode, without setuid, setgid and sticky; a new file gets mode 0o644 and
        a new directory 0o755, whatever the umask; mode (such as 0o644) overrides this. Of a symlink the target is
        written. Hard links to the old file keep the old bytes. If the name cannot be replaced (a mount point, a
        directory that this user may not write, an owner that it cannot set), the file is rewritten in place, which is
        not atomic.

        Raises:
            UsageError: an argument is invalid, for example data is a str.
            SandboxFileError: as for read_bytes, and ENOSPC, EROFS; the old file is then intact.
        """
        invocation.check_call(user=user)
        invocation.check_buffer("data", data)
        invocation.check_mode(mode)
        path = operations.path_of(path)
        operations.check_file_path(path)
        body = operations.write_body(self._file(path), len(data), mode)
        self._file_call(body, path=path, user=user, limit_bytes=len(data), stdin=data, takes_stdin=True)

    def list_dir(self, path: str | PathLike[str], *, user: str | int | None = None) -> list[DirEntry]:
        """Return a directory's entries, sorted by name, without those that vanish meanwhile.

        Raises:
            SandboxFileError: ENOENT, ENOTDIR, EACCES; EFBIG if the names take more than DEFAULT_LIMIT_BYTES.
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
        """Copy a host file to target, or a directory's contents into it; target is created, its files are replaced.

        Modes are kept, except setuid, setgid and sticky; the owner is user. Symlinks are copied, never followed; hard
        links stay linked.

        Returns:
            The paths that were left out: sockets, FIFOs and devices.

        Raises:
            UsageError: source is neither a file nor a directory, or its path contains a symlink that a sandbox could
                have made.
            SandboxFileError: source does not exist (then also FileNotFoundError), the sandbox cannot store it, or this
                machine cannot read it.
            ToolError: it is larger than limits; nothing was sent.
            CallCancelledError: cancel was set before the end.
        """
        invocation.check_call(user=user, cancel=cancel)
        limits = transfer.transfer_limits(limits)
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

        Files, hard links, directories, and symlinks that stay inside are copied, without setuid, setgid and sticky; you
        can always open the directories. Entries of target with the same names are replaced, directories are merged, and
        no symlink in target is followed.

        Returns:
            The entries that were left out, and why.

        Raises:
            SandboxFileError: source does not exist or cannot be read, the sandbox sends an invalid archive, or this
                machine cannot store it.
            ToolError: it is larger than limits; target is untouched.
            UsageError: target is a symlink to a directory, or its path contains one.
            CallCancelledError: cancel was set before the end.
        """
        invocation.check_call(user=user, cancel=cancel)
        limits = transfer.transfer_limits(limits)
        there, here = self._file(operations.path_of(source)), Path(operations.path_of(target))
        with killing(cancel) as killed:
            return transfer.download(lambda argv: killed(self.channel(argv, user=user)), there, here, limits)

    def _file(self, path: str) -> str:
        operations.check_path(path)
        return self._absolute(path)

    # --- tools --------------------------------------------------------------------------------

    def get_tools(self) -> list[dict[str, Any]]:
        """Return the runtime's own tools, as in MCP's `tools/list`: execute_bash, file_read, file_write."""
        return tool_calls.definitions()

    def execute_tool(
        self, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None = None
    ) -> Observation:
        """Run one of the runtime's tools, or a registered tool that needs only a runtime: `glob`, `file_editor`...

        A tool keeps its state (edits to undo, a Python kernel) until `close`. An unknown name or invalid arguments give
        an ErrorObservation. `registered_tools.names()` lists the registered ones. Setting cancel ends the call.
        """
        return tool_calls.execute(self, name, arguments, cancel=cancel)

    def call_tool_mcp(self, action: MCPAction) -> Observation:
        """Call a tool of the sandbox's MCP servers; an unknown tool or a failed call gives an ErrorObservation."""
        return tool_calls.call_mcp(self.mcp, action)

    # --- async: each method awaited; see `aio` ----------------------------------------------------

    arun = cancellable(run, _begin_run)
    aread_bytes = waited(read_bytes)
    awrite_bytes = waited(write_bytes)
    alist_dir = waited(list_dir)
    aupload = cancellable(upload)
    adownload = cancellable(download)
    aexecute_tool = cancellable(execute_tool)
    acall_tool_mcp = waited(call_tool_mcp)
    aresume = waited(resume)
    acheckpoint = waited(Backend.checkpoint)
    arestore = waited(restore)
    ais_alive = waited(Backend.is_alive)
    aworkspace_changes = waited(Backend.workspace_changes)
