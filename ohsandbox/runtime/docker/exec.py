"""One exec of the engine: starting it with a handshake, its exit code, killing it."""

from __future__ import annotations

import errno
import re
import secrets
import time
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import (
    SandboxUnavailable,
    UnknownUserError,
    UsageError,
    WorkdirMissingError,
    WorkdirNotADirectoryError,
)
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.docker.error_mapping import engine_errors, start_error
from ohsandbox.runtime.docker.wire import Demultiplexer, Passthrough, Wire, swallowed, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ohsandbox.runtime.docker.engine import Engine

HELLO_TIMEOUT_S = 20.0
"""From the exec's start to its hello: 32 ms when idle, 3.7 s behind an exec whose pipe a background job held open."""
HELLO_LIMIT_BYTES = 64 * 1024
"""More output before the hello comes from an image whose shell prints; runc's longest message was 400 bytes."""
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""One argv string without its NUL (Linux MAX_ARG_STRLEN)."""
KILLED = 137
"""128 + SIGKILL; the engine also reports it for every exec of a container that it removed or killed."""

ENTER_SCRIPT = """
read -r go
f=
cd -- "$1" 2>/dev/null || {
  if [ -d "$1" ]; then f=" cd:denied"; elif [ -e "$1" ]; then f=" cd:file"; else f=" cd:missing"; fi
  [ -z "$2" ] || { cd /; f=; }
}
unset OLDPWD
shift 2
"""
"""Enters the working directory from inside the container. The OCI runtime starts every process in `/`: an agent can
replace any other directory by a link to a descriptor that the runtime has open (CVE-2024-21626), and no process would
start there any more."""

HELLO_SCRIPT = ENTER_SCRIPT + 'printf "%s %s%s\\n" NONCE $$ "$f"\nGO unset f go\nexec "$@"'
"""Prints nothing before our first write: docker-py loses bytes that arrive together with the HTTP header."""

CHECK_SCRIPT = (
    ENTER_SCRIPT.replace("cd -- ", '[ -z "$2" ] || [ -e "$1" ] || mkdir -p -- "$1" 2>/dev/null\ncd -- ')
    + files("ohsandbox.runtime").joinpath("scripts/selfcheck.sh").read_text("utf-8")
    + HELLO_SCRIPT.removeprefix(ENTER_SCRIPT)
)
"""HELLO_SCRIPT that also creates a missing working directory, and reports the kernel's facts of the process and its
sandbox, in 5 ms."""

_WAIT_FOR_GO = "read -r go;"
"""Without a terminal the process waits for a second newline: the engine copies its two streams in two threads, so that
standard error written after the hello was seen to arrive before it. A terminal has one stream, and would echo."""

KILL_SCRIPT = 'kill -9 "-$1" 2>/dev/null||kill -9 "$1" 2>/dev/null;:'
"""busybox's kill accepts no `--`, so the negative number stands alone; dash and bash accept that after a signal."""


class ExecRequest(NamedTuple):
    """A process to start."""

    argv: Sequence[str]
    tty: bool = False
    env: Mapping[str, str] | None = None
    user: str = ""
    workdir: str = "/"
    elsewhere: bool = False
    """Start in the root directory if workdir cannot be entered."""
    unset: Sequence[str] = ()
    """Variables of the container to remove from the process."""
    check: bool = False
    """Report the facts of CHECK_SCRIPT."""


class Handshake(NamedTuple):
    """What the wrapper script reported before it executed the program."""

    pid: int
    facts: dict[str, str]


class StartedProcess(NamedTuple):
    """A process that completed the handshake, and its connection."""

    wire: Wire
    hello: Handshake


class Exec:
    """One exec of one container.

    Args:
        engine: the container's engine.
        container: its id.
        start: the process to start.
        loss: returns why the container cannot be used; None while it runs as before.
        starting: context to hold while the engine starts a process; see `Container.starting`.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        start: ExecRequest,
        *,
        loss: Callable[[], SandboxUnavailable | None],
        starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._starting = starting
        self._engine = engine
        self._container = container
        self._start = start
        self._loss = loss
        self._id = ""
        self._code: int | None = None
        self._nonce = secrets.token_hex(8)
        self.frames: Demultiplexer | Passthrough = Passthrough() if start.tty else Demultiplexer()

    def begin(self) -> StartedProcess:
        """Create and start the exec and read its hello.

        Raises:
            UsageError: an argument cannot be passed, or the user or the working directory does not exist.
            SandboxUnavailable: paused, stopped, removed, no shell in the image, no hello within 20 s, engine gone.
        """
        _refuse_impossible(self._start)
        with self._starting():
            return self._begin()

    def _begin(self) -> StartedProcess:
        raw = self._engine_start()
        wire = wrap(raw)
        try:
            begun = self._greet(wire, raw)
            self._refuse_elsewhere(begun.hello)
        except BaseException:
            wire.close()
            raise
        return begun

    def _engine_start(self) -> Any:
        start = self._start
        script = CHECK_SCRIPT if start.check else HELLO_SCRIPT
        script = script.replace("NONCE", self._nonce).replace("GO ", "" if start.tty else _WAIT_FOR_GO)
        try:
            with engine_errors("opening a process in the sandbox"):
                self._id = self._create(
                    ("/bin/sh", "-c", script, "sh", start.workdir, "yes" * start.elsewhere, *start.argv)
                )
                return self._engine.api.exec_start(self._id, socket=True, tty=start.tty)
        except SandboxUnavailable as error:  # Podman's API answers 500 where Docker reports it in the stream
            refused = start_error(str(error), user=start.user, workdir=start.workdir)
            raise self._loss() or (refused if isinstance(refused, UnknownUserError) else error) from error

    def _create(self, argv: Sequence[str], *, stdin: bool = True) -> str:
        start = self._start
        environment = [f"{name}={value}" for name, value in (start.env or {}).items()]
        environment += [name for name in start.unset if name not in (start.env or {})]  # a bare name unsets it
        created = self._engine.api.exec_create(
            self._container,
            list(argv),
            stdin=stdin,
            tty=start.tty and stdin,
            user=start.user,
            environment=environment,
            workdir="/",
        )
        return str(created["Id"])

    def _greet(self, wire: Wire, raw: Any) -> StartedProcess:
        """Write the newline that the wrapper waits for, then read up to its hello; earlier output is dropped."""
        deadline = time.monotonic() + HELLO_TIMEOUT_S
        # bytes after the hello stay in the socket for `poll`; without a terminal there are none
        buffer = memoryview(bytearray(1 if self._start.tty else 4096))
        greeting = _HandshakeReader(self._nonce)
        try:
            wire.sendall(memoryview(b"\n"))
            while len(greeting.heard) < HELLO_LIMIT_BYTES:
                if not wire.readable(deadline):
                    raise self.lost(f"its shell said nothing for {HELLO_TIMEOUT_S:.0f} s")
                if not (count := wire.recv_into(buffer)):
                    break
                if (hello := greeting.feed(self.frames.feed(buffer[:count]))) is not None:
                    if not self._start.tty:
                        wire.sendall(memoryview(b"\n"))
                    return StartedProcess(wire, hello)
        except OSError:
            pass  # the engine reset the connection; what it sent before holds the reason
        raise self._failure(greeting.heard or swallowed(raw)[8:])

    def _refuse_elsewhere(self, hello: Handshake) -> None:
        where = self._start.workdir
        match hello.facts.get("cd"):
            case "missing":
                raise WorkdirMissingError(
                    errno.ENOENT, "The directory does not exist in the sandbox; make it first", where
                )
            case "file":
                raise WorkdirNotADirectoryError(errno.ENOTDIR, "It is not a directory; name a directory", where)
            case "denied":
                raise UsageError(f"{where!r} may not be entered. Remedy: name a directory that this user may enter.")

    def _failure(self, heard: bytes) -> Exception:
        """Return the error for a missing handshake: the container's state first; anybody may have written the text."""
        return self._loss() or start_error(
            heard.decode(errors="replace"), user=self._start.user, workdir=self._start.workdir
        )

    def lost(self, what: str) -> SandboxUnavailable:
        """Return the error for a broken connection: the container's loss, or else the connection's own error."""
        return self._loss() or SandboxUnavailable(
            f"The connection to a process in the sandbox broke: {what}. Remedy: open it again."
        )

    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs.

        Raises:
            SandboxUnavailable: the container died or was removed, so the exit code is unknown.
        """
        if self._code is None:
            self._code = self._ask_exit_code()
        return self._code

    def _ask_exit_code(self) -> int | None:
        try:
            with engine_errors("asking how a process in the sandbox ended"):
                found = self._engine.api.exec_inspect(self._id)
        except SandboxUnavailable as error:
            raise self._loss() or error from error
        code = found.get("ExitCode")
        if found.get("Running") or not isinstance(code, int):
            return None
        if code == KILLED and (loss := self._loss()) is not None:
            raise loss
        return code

    def kill(self, pid: int) -> None:
        """Send SIGKILL to pid's group from inside, as the same user: the engine's API cannot kill an exec.

        Detached: while a child holds an ended exec's streams open, engine 20.10 blocks every attached exec.
        """
        try:
            with self._starting(), engine_errors("killing a process in the sandbox"):
                killer = self._create(("/bin/sh", "-c", KILL_SCRIPT, "sh", str(pid)), stdin=False)
                self._engine.api.exec_start(killer, detach=True)
        except SandboxUnavailable as error:
            raise self._loss() or error from error


class _HandshakeReader:
    """Searches the beginning of a stream for the hello."""

    def __init__(self, nonce: str) -> None:
        self._pattern = re.compile(rb"%s (\d{1,10})([^\r\n]*)\r?\n" % nonce.encode())
        self.heard = b""

    def feed(self, chunks: list[Chunk]) -> Handshake | None:
        """Return the hello once its line is complete; earlier standard error is dropped."""
        for chunk in chunks:
            if chunk.stream is not Stream.STDOUT:
                continue
            self.heard += chunk.data
            if chunk.data.endswith(b"\n") and (found := self._pattern.search(self.heard)):
                words = [word.partition(":") for word in found[2].decode(errors="replace").split()]
                return Handshake(int(found[1]), {name: value for name, _, value in words})
        return None


def _refuse_impossible(start: ExecRequest) -> None:
    """Refuse what the engine or the kernel would refuse with a less clear message."""
    if not start.argv or start.argv[0] in {"", "-"} or start.argv[0].startswith("-"):
        raise UsageError("The command's first word must name a program. Remedy: pass argv with a program first.")
    if not all(start.env or {}) or any("=" in name for name in start.env or {}):
        raise UsageError("An environment variable's name is empty or holds '='. Remedy: correct env.")
    for text in (*start.argv, *(start.env or {}), *(start.env or {}).values()):
        if "\0" in text:
            raise UsageError(
                "A NUL byte cannot be passed in an argument or the environment. Remedy: send it over stdin."
            )
        if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode(errors="surrogateescape")) > MAX_ARGUMENT_BYTES:
            raise UsageError(
                f"An argument of {len(text)} characters is over the limit of 128 KiB. Remedy: send it over stdin."
            )
