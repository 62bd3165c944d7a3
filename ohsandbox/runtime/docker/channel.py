"""`DockerChannel`: one exec of the engine as a duplex byte channel, started with a handshake."""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import time
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import (
    OhsandboxError,
    SandboxUnavailable,
    UnknownUserError,
    UsageError,
    WorkdirMissingError,
    WorkdirNotADirectoryError,
)
from ohsandbox.runtime.channel import KILLED, Channel, Stream
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors, start_error
from ohsandbox.runtime.docker.engine.wire import Demultiplexer, Passthrough, buffered_bytes, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from ohsandbox.runtime.channel import Chunk
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine.wire import Wire

HELLO_TIMEOUT_S = 60.0
"""Seconds from the exec's start to its hello: measured 32 ms when idle, 3.7 s behind an exec whose pipe a background
job held open, 24 s beside 20 busy processes that share 2 % of a processor. A sandbox whose shell is silent is
restarted, which ends all its processes."""
_HELLO_LIMIT_BYTES = 64 * 1024
"""Maximum size of output before the hello, as from a shell that prints at its start; runc's longest was 400 bytes."""
_MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""Maximum size of one argv string without its NUL (Linux MAX_ARG_STRLEN)."""
BUFFER_BYTES = 1024 * 1024
"""Bytes of one read: the engine sends frames of up to 32 KiB, so one call reads up to 32 full frames."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1

_ENTER_SCRIPT = """
read -r go
f=
cd -- "$1" 2>/dev/null || {
  if [ -d "$1" ]; then f=" cd:denied"; elif [ -e "$1" ]; then f=" cd:file"; else f=" cd:missing"; fi
  [ -z "$2" ] || { cd /; f=; }
}
unset OLDPWD
shift 2
"""
"""Enters the working directory from inside the container. The OCI runtime itself starts every process in `/`: an agent
can replace any other directory by a link to a descriptor that the runtime has open (CVE-2024-21626), after which no
process could start there."""

_SYSTEM_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH; export PATH"
_HELLO_SCRIPT = 'printf "%s %s%s\\n" NONCE $$ "$f"\nGO unset f go\nexec "$@"'
"""Prints nothing before we write: docker-py loses bytes that arrive together with the HTTP header."""

_CHECK_SCRIPT = _ENTER_SCRIPT.replace(
    "cd -- ", '[ -z "$2" ] || [ -e "$1" ] || mkdir -p -- "$1" 2>/dev/null\ncd -- '
) + files("ohsandbox.runtime").joinpath("scripts/selfcheck.sh").read_text("utf-8")
"""_ENTER_SCRIPT that also creates a missing working directory, and reports the kernel's facts about the process and its
sandbox, in 5 ms."""

_WAIT_FOR_GO = "read -r go;"
"""Without a terminal the process waits for a second newline: the engine copies its two streams in two threads, so
standard error written after the hello was seen to arrive before it. A terminal has one stream, and would echo the
newline."""

_KILL_SCRIPT = 'kill -9 "-$1" 2>/dev/null||kill -9 "$1" 2>/dev/null;:'
"""busybox's kill accepts no `--`, so the negative number stands alone; dash and bash accept that after a signal."""


class ProcessRequest(NamedTuple):
    """A process to start."""

    argv: Sequence[str]
    tty: bool = False
    env: Mapping[str, str] = {}
    user: str | None = None
    """User of the process; None means the container's."""
    workdir: str | None = None
    """Working directory; None means the root directory."""
    elsewhere: bool = False
    """Start in the root directory if workdir cannot be entered."""
    unset: Sequence[str] = ()
    """Variables of the container to remove from the process."""
    system_path: bool = False
    """Find programs in the system's directories before those of the image's PATH."""
    check: bool = False
    """Report the facts that _CHECK_SCRIPT prints."""


class DockerChannel(Channel):
    """A process in a container that has completed its handshake. The constructor starts it.

    Raises:
        UsageError: an argument cannot be passed, or the user or the working directory does not exist.
        SandboxUnavailable: the container is paused, stopped or removed, its image has no shell, no hello arrives within
            20 s, or the engine is gone.
    """

    facts: dict[str, str]
    """Facts that the script reported before it executed the program."""

    def __init__(self, container: Container, request: ProcessRequest) -> None:
        _refuse_impossible(request)
        self._container = container
        self._request = request
        self._frames: Demultiplexer | Passthrough = Passthrough() if request.tty else Demultiplexer()
        self._buffer: memoryview | None = None
        self._code: int | None = None
        self._closed = self._ended = False
        with container.starting():
            nonce = secrets.token_hex(8)
            raw = self._start(nonce)
            self._wire: Wire = wrap(raw)
            try:
                self.pid, self.facts = self._greet(nonce, raw)
                self._refuse_elsewhere()
            except BaseException:
                self._wire.close()
                raise

    def _start(self, nonce: str) -> Any:
        request = self._request
        script = (_CHECK_SCRIPT if request.check else _ENTER_SCRIPT) + _HELLO_SCRIPT
        script = _SYSTEM_PATH * request.system_path + script
        script = script.replace("NONCE", nonce).replace("GO ", "" if request.tty else _WAIT_FOR_GO)
        argv = ("/bin/sh", "-c", script, "sh", request.workdir or "/", "yes" * request.elsewhere, *request.argv)
        with self._engine_errors("opening a process in the sandbox"):
            self._exec_id = self._create(argv, stdin=True)
            return self._container.engine.api.exec_start(self._exec_id, socket=True, tty=request.tty)

    @contextlib.contextmanager
    def _engine_errors(self, doing: str) -> Iterator[None]:
        """Translate errors as `engine_errors` does; if the container was lost, raise that loss instead."""
        try:
            with engine_errors(doing):
                yield
        except SandboxUnavailable as error:  # Podman's API answers 500 where Docker reports a user in the stream
            refused = self._start_error(str(error))
            raise self._container.loss() or (refused if isinstance(refused, UnknownUserError) else error) from error

    def _create(self, argv: Sequence[str], *, stdin: bool) -> str:
        request = self._request
        environment = [f"{name}={value}" for name, value in request.env.items()]
        # a bare name unsets the variable; Podman refuses it, and what we unset means nothing when it is empty
        empty = "=" if self._container.engine.is_podman else ""
        environment += [f"{name}{empty}" for name in request.unset if name not in request.env]
        created = self._container.engine.api.exec_create(
            self._container.id, list(argv), stdin=stdin, tty=request.tty and stdin, user=request.user or "",
            environment=environment, workdir="/", detach_keys=_detach_keys() if request.tty else None,
        )  # fmt: skip
        return str(created["Id"])

    def _greet(self, nonce: str, raw: Any) -> tuple[int, dict[str, str]]:
        """Write the newline for which the script waits, and read its hello; earlier output is dropped."""
        deadline = time.monotonic() + HELLO_TIMEOUT_S
        # bytes after the hello stay in the socket for `poll`; without a terminal there are none
        buffer = memoryview(bytearray(1 if self._request.tty else 4096))
        pattern = re.compile(rb"%s (\d{1,10})([^\r\n]*)\r?\n" % nonce.encode())
        greeting = b""
        try:
            self._wire.sendall(memoryview(b"\n"))
            while len(greeting) < _HELLO_LIMIT_BYTES:
                if not self._wire.readable(deadline):
                    raise self._lost(f"its shell said nothing for {HELLO_TIMEOUT_S:.0f} s")
                if not (count := self._wire.recv_into(buffer)):
                    break
                for chunk in self._frames.feed(buffer[:count]):
                    if chunk.stream is Stream.STDOUT:
                        greeting += chunk.data
                if greeting.endswith(b"\n") and (match := pattern.search(greeting)):
                    if not self._request.tty:
                        self._wire.sendall(memoryview(b"\n"))
                    words = [word.partition(":") for word in match[2].decode(errors="replace").split()]
                    return int(match[1]), {name: value for name, _, value in words}
        except OSError:
            pass  # the engine reset the connection; what it sent before states the reason
        # check the container's state first, since any process may have written this text
        text = (greeting or buffered_bytes(raw)[8:]).decode(errors="replace")
        raise self._container.loss() or self._start_error(text)

    def _start_error(self, text: str) -> OhsandboxError:
        return start_error(text, user=self._request.user or "", workdir=self._request.workdir or "/")

    def _refuse_elsewhere(self) -> None:
        workdir = self._request.workdir or "/"
        match self.facts.get("cd"):
            case "missing":
                raise WorkdirMissingError(
                    errno.ENOENT, "The directory does not exist in the sandbox", workdir, remedy="Make it first."
                )
            case "file":
                raise WorkdirNotADirectoryError(
                    errno.ENOTDIR, "It is not a directory", workdir, remedy="Name a directory."
                )
            case "denied":
                raise UsageError(
                    f"{workdir!r} may not be entered.", remedy="Name a directory that this user may enter."
                )

    def _lost(self, what: str) -> SandboxUnavailable:
        """Return the error for a broken connection: the container's loss, or else the connection's own error."""
        return self._container.loss() or SandboxUnavailable(
            f"The connection to a process in the sandbox broke: {what}.", remedy="Open it again."
        )

    def _exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self._code is None:
            with self._engine_errors("asking how a process in the sandbox ended"):
                inspected = self._container.engine.api.exec_inspect(self._exec_id)
            code = inspected.get("ExitCode")
            if inspected.get("Running") or not isinstance(code, int):
                return None
            # the engine also reports 137 for every exec of a container that it removed or killed
            if code == KILLED and (loss := self._container.loss_soon()) is not None:
                raise loss
            self._code = code
        return self._code

    # --- the channel's interface ---

    def filenos(self) -> list[int]:
        """See `Channel.filenos`."""
        return [] if self._ended or self._closed else [self._wire.fileno()]

    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """See `Channel.read`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._ended or self._closed):
            chunks = self._read_once(deadline)
            if chunks or chunks is None:
                return chunks
        return []

    def _read_once(self, deadline: float | None) -> list[Chunk] | None:
        """Receive once; return None when deadline passes, [] at the end of the stream or for a read without payload."""
        if self._buffer is None:  # a channel that only waits for output needs no buffer
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        try:
            if not self._wire.readable(deadline):
                return None
            count = self._wire.recv_into(self._buffer)
        except ConnectionResetError:  # Linux resets a Unix socket whose peer closed with our input unread
            count = 0
        except (OSError, ValueError) as error:
            if not self._closed:
                raise self._lost(f"reading failed: {error}") from error
            count = 0
        self._ended = not count
        return self._frames.feed(self._buffer[:count])

    def write(self, data: Buffer) -> None:
        """See `Channel.write`."""
        with self._write_errors():
            self._wire.sendall(memoryview(data).cast("B"), self._refuse_ended)

    def write_some(self, data: Buffer) -> int:
        """See `Channel.write_some`."""
        with self._write_errors():
            return self._wire.send_some(memoryview(data).cast("B"))

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except (BrokenPipeError, ConnectionResetError):
            raise BrokenPipeError("The process closed its input or ended.") from None
        except (OSError, ValueError) as error:
            if self._closed:
                raise BrokenPipeError("The channel is closed.") from None
            raise self._lost(f"writing failed: {error}") from error

    def _refuse_ended(self) -> None:
        """Raise if the process has ended: its connection may stay open with 10 MB of input unread (observed)."""
        if self._exit_code() is not None:
            raise BrokenPipeError

    def close_stdin(self) -> None:
        """See `Channel.close_stdin`."""
        try:
            self._wire.half_close()
        except (OSError, ValueError):
            return  # the peer is gone already; `wait` reports how the process ended

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while (code := self._exit_code()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"The process still runs after {timeout_s:g} s.")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        return code

    def resize(self, columns: int, rows: int) -> bool:
        """See `Channel.resize`."""
        if not self._request.tty or self._closed:
            return False
        try:
            with self._engine_errors("resizing a terminal of the sandbox"):
                self._container.engine.api.exec_resize(self._exec_id, height=rows, width=columns)
        except SandboxUnavailable:  # engines refuse to resize the terminal of a process that has ended
            if self._exit_code() is None:
                raise
            return False
        return True

    def kill(self) -> None:
        """See `Channel.kill`. Kills from inside, as the same user: the engine's API cannot kill an exec.

        The exec that kills is detached: while a child holds an ended exec's streams open, engine 20.10 blocks every
        attached exec. What kills every process of a sandbox, as `kill -9 -1` or a full disk's watch, may kill the one
        that is about to kill, and the engine reports that as a failure of its own: a second one is started.
        """
        if self._exit_code() is not None:
            return
        try:
            self._kill()
        except SandboxUnavailable:
            if self._exit_code() is None:
                self._kill()

    def _kill(self) -> None:
        with self._engine_errors("killing a process in the sandbox"):
            killer = ("/bin/sh", "-c", _KILL_SCRIPT, "sh", str(self.pid))
            self._container.start_detached(partial(self._create, killer, stdin=False))

    def close(self) -> None:
        """See `Channel.close`."""
        self._closed = True
        self._wire.close()


def _detach_keys() -> str:
    """Return the keys that detach from a terminal's exec; the engine requires some, by default Ctrl-P Ctrl-Q.

    The engine withholds the first key until the next byte arrives, so it is NUL, a key rarely typed (it sets the mark
    in editors). An unguessable number follows.
    """
    return ",".join(["ctrl-@", *secrets.token_hex(16)])


def _refuse_impossible(request: ProcessRequest) -> None:
    """Refuse arguments that the engine or the kernel would refuse with a less clear message."""
    argv, env = request.argv, request.env
    if not argv or not argv[0] or argv[0].startswith("-"):
        raise UsageError("The command's first word must name a program.", remedy="Pass argv with a program first.")
    if not all(env) or any("=" in name for name in env):
        raise UsageError("An environment variable's name is empty or contains '='.", remedy="Correct env.")
    for text in (*argv, *env, *env.values()):
        if "\0" in text:
            raise UsageError(
                "A NUL byte cannot be passed in an argument or the environment.", remedy="Send it over stdin."
            )
        if len(text) > _MAX_ARGUMENT_BYTES // 4 and len(text.encode(errors="surrogateescape")) > _MAX_ARGUMENT_BYTES:
            raise UsageError(
                f"An argument of {len(text)} characters is over the limit of 128 KiB.", remedy="Send it over stdin."
            )
