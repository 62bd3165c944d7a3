"""`CLIRuntime`: runs commands on this host. It is not a real sandbox, except inside bubblewrap."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox import host_programs
from ohsandbox.arguments import expect, expect_path, suggests_names
from ohsandbox.errors import SandboxUnavailable, UnknownUserError, UsageError, WorkdirMissingError
from ohsandbox.private_files import try_lock
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.channel import POLL_MS, Channel, Chunk, Stream
from ohsandbox.runtime.process.invocation import check_env

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from ohsandbox.network.tunnel.ports import ExposedPort, Forward

READ_BYTES = 1 << 18
"""Maximum size of a read, which returns what is there; a pipe holds 64 KiB by default."""

_TAKE_TERMINAL = 'exec <"$0" >"$0" 2>&1; exec "$@"'
"""Shell text that gives the leader of a new session its terminal as the controlling one (POSIX.1-2017 11.1.3)."""

_BY_POPEN = {signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that Python itself ignores; Popen restores them in its children."""
_WITH_DEFAULT_SIGNALS = """
import os, signal, sys
for number in signal.valid_signals():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
    sys.exit(126 if isinstance(error, PermissionError) else 127)
"""
"""Restores ignored signals before it executes argv, in 9 ms. A shell starts background jobs with SIGINT and SIGQUIT
ignored, `nohup` with SIGHUP; children inherit this, and a shell cannot undo it (POSIX.1-2017 2.11). `preexec_fn` would
fork a process of many threads."""

_left_running: set[subprocess.Popen[bytes]] = set()
"""Processes whose channel was closed before they ended; a thread waits for each, so that none remains a zombie."""


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    _left_running.discard(process)


@atexit.register
def _reap_the_last() -> None:
    for process in _left_running.copy():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


_TERMINAL_CLOSED_S = 0.01
"""Seconds between checks of whether a terminal that no process has open was opened again."""


class LocalChannel(Channel):
    """A child process, over pipes or a pseudo-terminal."""

    def __init__(self, argv: Sequence[str], *, tty: bool, env: Mapping[str, str], workdir: str) -> None:
        """Start argv in workdir with exactly env.

        Raises:
            OSError: workdir cannot be entered, or argv[0] cannot be executed (if we ignore a signal, that gives exit
                code 126 or 127).
        """
        ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        if ignored - _BY_POPEN:
            argv = [sys.executable, "-I", "-S", "-c", _WITH_DEFAULT_SIGNALS, *argv]
        self._master: int | None = None
        if tty:
            self._master, slave = pty.openpty()
            name = os.ttyname(slave)
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _TAKE_TERMINAL, name, *argv],
                    stdin=slave, stdout=slave, stderr=slave,
                    env=dict(env), cwd=workdir, start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(slave)
            self._streams = {self._master: Stream.STDOUT}
            self._stdin: int | None = self._master
        else:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(env), cwd=workdir, start_new_session=True, bufsize=0,
            )  # fmt: skip
            assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: PT018, S101 - PIPE gives all three
            self._streams = {
                self._process.stdout.fileno(): Stream.STDOUT,
                self._process.stderr.fileno(): Stream.STDERR,
            }
            self._stdin = self._process.stdin.fileno()
        self.pid = self._process.pid
        self._poll = select.poll()
        for fd in self._streams:
            self._poll.register(fd, select.POLLIN)

    def filenos(self) -> list[int]:
        """The descriptors of the streams that are still open."""
        return list(self._streams)

    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """See `Channel.read`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._streams:
            left_ms = POLL_MS if deadline is None else (deadline - time.monotonic()) * 1000
            has_ended = self._master is not None and self._process.poll() is not None
            ready = self._poll.poll(max(0, min(left_ms, POLL_MS)))
            chunks = [chunk for fd, _ in ready if (chunk := self._read_one(fd))]
            if chunks:
                return chunks
            if has_ended and not ready:
                self._streams = {}  # a process of another session may hold the terminal: an engine does not wait for it
            if self._streams and deadline is not None and time.monotonic() >= deadline:
                return None
        return []

    def _read_one(self, fd: int) -> Chunk | None:
        stream = self._streams.get(fd)
        if stream is None:  # closed by another thread meanwhile
            return None
        try:
            data = os.read(fd, READ_BYTES)
        except OSError:  # EIO: no process has the terminal open; a shell that closed its own opens it for each command
            if self._process.poll() is None:
                time.sleep(_TERMINAL_CLOSED_S)
                return None
            data = b""
        if data:
            return Chunk(stream, data)
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)
            del self._streams[fd]
        return None

    def write(self, data: Buffer) -> None:
        """See `Channel.write`."""
        view = memoryview(data)
        while view:
            if (stdin := self._stdin) is None:
                raise BrokenPipeError("stdin is closed")
            try:
                view = view[os.write(stdin, view) :]
            except OSError as error:
                raise BrokenPipeError(str(error)) from error

    def write_some(self, data: Buffer) -> int:
        """See `Channel.write_some`."""
        view, count = memoryview(data), 0
        if (stdin := self._stdin) is None:
            raise BrokenPipeError("stdin is closed")
        poller = select.poll()
        poller.register(stdin, select.POLLOUT)
        try:
            while count < len(view) and poller.poll(0):
                count += os.write(stdin, view[count : count + select.PIPE_BUF])
        except OSError as error:
            raise BrokenPipeError(str(error)) from error
        return count

    def close_stdin(self) -> None:
        """See `Channel.close_stdin`."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._stdin = None

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"Process {self.pid} still runs after {timeout_s} s") from None
        return 128 - code if code < 0 else code

    def resize(self, columns: int, rows: int) -> bool:
        """See `Channel.resize`."""
        if (master := self._master) is None or self._process.poll() is not None:
            return False
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        except OSError:  # closed in another thread meanwhile
            return False
        return True

    def kill(self) -> None:
        """See `Channel.kill`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """See `Channel.close`."""
        self._stdin, self._streams = None, {}  # before their numbers may be those of other files
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None
        if self._process.poll() is None:
            _left_running.add(self._process)
            threading.Thread(target=_reap, args=(self._process,), name="ohsandbox-reap", daemon=True).start()


WARNING = "CLIRuntime runs commands on THIS HOST, as you, with no container around them."
_STATE_PREFIX = "ohsandbox-cli-"
_CLEANUP_S = 1.0
_BUBBLEWRAP_S = 5.0
"""Seconds for bwrap to set up its namespaces, which takes some 5 ms or fails."""
_PASSED_ENV = ("HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "TZ")
_CAPABILITIES_OF_ROOT = (
    "--cap-add", "CAP_CHOWN", "--cap-add", "CAP_DAC_OVERRIDE", "--cap-add", "CAP_FOWNER"
)  # fmt: skip
"""What root keeps in bubblewrap, to work in the directory of another user. bubblewrap 0.8 would leave it everything,
so that it could mount all writable again. Disks can be written without any, so root gets a /dev without them."""
QUIET_ENV = {
    "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "DEBIAN_FRONTEND": "noninteractive",
}  # fmt: skip


class _StateDirectory:
    """A directory in $TMPDIR, locked while this process lives: another process removes it if this one was killed."""

    def __init__(self) -> None:
        remove_left_directories()
        while True:
            self._made = tempfile.TemporaryDirectory(prefix=_STATE_PREFIX, ignore_cleanup_errors=True)
            self.path = Path(self._made.name)
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                self._made.cleanup()
                continue  # another process saw it before it was locked, and has removed it
            self._unlock = weakref.finalize(self, os.close, descriptor)
            try:
                is_locked = try_lock(descriptor)
            except OSError:  # a file system without locks, on which nobody else removes it
                is_locked = True
            if is_locked and self.path.exists():
                return
            self._unlock()  # as above, and removes it
            self._made.cleanup()

    def remove(self) -> None:
        """Remove it and give up its lock."""
        _remove_tree(self.path)
        self._made.cleanup()
        self._unlock()


def remove_left_directories(*, dry_run: bool = False) -> list[Path]:
    """Remove the directories in $TMPDIR of runtimes whose processes were killed; return them. dry_run: remove none."""
    leftovers = []
    for path in Path(tempfile.gettempdir()).glob(f"{_STATE_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as lock:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            lock.callback(os.close, descriptor)
            if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                leftovers.append(path)
                if not dry_run:
                    _remove_tree(path)
    return leftovers


def _remove_tree(path: Path) -> None:
    """Remove a directory in which keepers that end may still write or remove files; give up after _CLEANUP_S."""
    deadline = time.monotonic() + _CLEANUP_S
    while path.exists() and time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)


class CLIRuntime(Runtime):
    """Commands and files of this host, with a scrubbed environment and process groups of their own.

    If bubblewrap works (Linux) and is not disabled, the host's files are read-only outside the working directory and
    /tmp. Nothing else is confined: use DockerRuntime for anything that you do not trust.
    """

    isolated = False
    private_processes = False

    @suggests_names
    def __init__(self, workdir: Path | str | None = None, *, env: Mapping[str, str] | None = None,
                 bubblewrap: bool | None = None, quiet: bool = False, watch: bool = False) -> None:  # fmt: skip
        """Run in workdir (default: the current directory).

        bubblewrap: None uses it if it works, True requires it, False does without. watch makes `workspace_changes`
        report workdir, whose whole tree is read at the start.

        Raises:
            UsageError: an argument has a wrong type.
            WorkdirMissingError: the directory does not exist.
        """
        super().__init__()
        check_env(env)
        expect_path("workdir", workdir)
        expect("bubblewrap", bubblewrap, bool)
        expect("quiet", quiet, bool, optional=False)
        expect("watch", watch, bool, optional=False)
        self._workdir = Path(workdir or Path.cwd()).resolve()
        if not self._workdir.is_dir():
            raise WorkdirMissingError(
                2, "The working directory does not exist", str(self._workdir), remedy="Make it, or name another."
            )
        self._env = dict(env or {})
        self._bubblewrap, self._quiet = bubblewrap, quiet
        self._watches = watch
        self._prefix: list[str] = []
        self._directory: _StateDirectory | None = None
        self.state_dir = ""

    @property
    def id(self) -> str:
        """`cli-` and the id of our process."""
        return f"cli-{os.getpid()}"

    @property
    def workdir(self) -> str:
        """The directory where commands start."""
        return str(self._workdir)

    def start(self) -> Self:
        """Print a warning, and create the directory that sessions need.

        Raises:
            SandboxUnavailable: bubblewrap is required and does not work here.
        """
        if self._directory is None:
            host_programs.exclude_workspace(self._workdir)
            self._directory = _StateDirectory()
            self.state_dir = str(self._directory.path)
            if self._watches:
                self.watch(self._workdir)
            self._prefix = _bubblewrap(self._workdir, self.state_dir) if self._bubblewrap is not False else []
            if self._bubblewrap and not self._prefix:
                self._close()
                raise SandboxUnavailable("bubblewrap does not work here. Install `bwrap`, or use DockerRuntime.")
            if not self._quiet:
                walls = f"With {self._confinement}." if self._confinement else "Use DockerRuntime instead."
                print(f"WARNING: {WARNING} {walls}", file=sys.stderr)  # noqa: T201 - a warning that is always shown
        return self

    def is_alive(self) -> bool:
        """Whether it was started and not closed."""
        return self._directory is not None

    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """See `Runtime.open_channel`; the user is always our own."""
        if self._directory is None:
            raise SandboxUnavailable("The CLIRuntime is not started; call start() or use `with`")
        if any("\0" in word for word in argv):
            raise UsageError("An argument contains a NUL byte. Send such data over stdin.")
        if user is not None and str(user) not in (str(os.getuid()), os.environ.get("USER", "")):
            raise UnknownUserError(f"CLIRuntime runs as you and cannot become user {user!r}. Use DockerRuntime.")
        passed = {name: os.environ[name] for name in _PASSED_ENV if name in os.environ}
        passed["PATH"] = host_programs.person_path()
        environment = {"LANG": "C.UTF-8", **passed, **QUIET_ENV, **self._env, **(env or {})}
        return LocalChannel([*self._prefix, *argv], tty=tty, env=environment, workdir=workdir or self.workdir)

    def forward(self, port: int, host_port: int = 0) -> Forward:
        """See `Runtime.forward`. A server here already has its port; a different host_port is relayed to it."""
        return self._ports.forward_here(port, host_port)

    def expose_host(self, port: int) -> ExposedPort:
        """See `Runtime.expose_host`: services of this host can already be reached."""
        return self._ports.expose_here(port)

    def _close(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.remove()

    def describe(self) -> dict[str, str]:
        """Facts for a system prompt."""
        return {
            "runtime": "this host, no container",
            "working directory": self.workdir,
            "confinement": self._confinement or "none",
        }

    @property
    def _confinement(self) -> str:
        """Describe the confinement by bubblewrap, which has no network or process namespace."""
        if not self._prefix:
            return ""
        return "bubblewrap: only files in the working directory and /tmp are writable, but services of this host answer"


def _bubblewrap(workdir: Path, state_dir: str) -> list[str]:
    """Return the words before a command that run it in bubblewrap; none if that does not work.

    --die-with-parent is left out: the kernel considers the *thread* that started it the parent (prctl(2),
    PR_SET_PDEATHSIG), and our threads end. When we die, a session's keeper and a worker read end of file and exit.
    """
    program = host_programs.find_program("bwrap")
    if program is None:
        return []
    root = ["--dev", "/dev", "--cap-drop", "ALL", *_CAPABILITIES_OF_ROOT]
    limits = root if os.geteuid() == 0 else ["--dev-bind", "/dev", "/dev"]
    words = [
        program, "--ro-bind", "/", "/", *limits, "--proc", "/proc", "--bind", "/tmp", "/tmp",  # noqa: S108
        "--bind", state_dir, state_dir, "--bind", str(workdir), str(workdir), "--",
    ]  # fmt: skip
    try:
        with LocalChannel([*words, "true"], tty=False, env={}, workdir="/") as channel:
            return words if channel.wait(_BUBBLEWRAP_S) == 0 else []
    except (OSError, TimeoutError):
        return []
