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
"""From the exec's start to its hello: 32 ms idle, 3.7 s behind an exec whose pipe a background job held."""
HELLO_LIMIT_BYTES = 64 * 1024
"""More than this before the hello is an image whose shell talks; runc's longest message was 400 bytes."""
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""One argv string, its NUL not counted (Linux MAX_ARG_STRLEN)."""
KILLED = 137
"""128 + SIGKILL: also what the engine reports for every exec of a container that it removed or killed."""

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
"""Go to the working directory from inside. The engine's runtime starts every process in `/`: an agent can replace any
other directory by a link to what the runtime has open (CVE-2024-21626), and no process would begin there any more."""

HELLO_SCRIPT = ENTER_SCRIPT + 'printf "%s %s%s\\n" NONCE $$ "$f"\nGO unset f go\nexec "$@"'
"""Says nothing before we write: docker-py loses bytes that arrive together with the HTTP header."""

CHECK_SCRIPT = (
    ENTER_SCRIPT.replace("cd -- ", '[ -z "$2" ] || [ -e "$1" ] || mkdir -p -- "$1" 2>/dev/null\ncd -- ')
    + files("ohsandbox.runtime").joinpath("scripts/selfcheck.sh").read_text("utf-8")
    + HELLO_SCRIPT.removeprefix(ENTER_SCRIPT)
)
"""HELLO_SCRIPT that also makes a working directory that is not there, and reports what the kernel says of the process
and its sandbox, in 5 ms."""

_WAIT_FOR_GO = "read -r go;"
"""Without a terminal the process waits for a second newline: the engine copies its two streams by two threads, so that
standard error written after the hello was seen to arrive before it. A terminal has one stream, and would echo."""

KILL_SCRIPT = 'kill -9 "-$1" 2>/dev/null||kill -9 "$1" 2>/dev/null;:'
"""busybox's kill takes no `--`, so the negative number stands alone; dash and bash accept that after a signal."""


class ExecRequest(NamedTuple):
    """One process to start."""

    argv: Sequence[str]
    tty: bool = False
    env: Mapping[str, str] | None = None
    user: str = ""
    workdir: str = "/"
    elsewhere: bool = False
    """Begin in the root directory where workdir cannot be entered."""
    unset: Sequence[str] = ()
    """Variables of the container that the process must not have."""
    check: bool = False
    """Ask for the facts of CHECK_SCRIPT."""


class Handshake(NamedTuple):
    """What the wrapper script reported before it became the process."""

    pid: int
    facts: dict[str, str]


class StartedProcess(NamedTuple):
    """A process that completed the handshake, and its connection."""

    wire: Wire
    hello: Handshake


class Exec:
    """One exec of one container.

    Args:
        engine: where.
        container: its id.
        start: the process.
        loss: tells what became of the container; None where it runs as before.
        starting: held while the engine starts a process; see `Container.starting`.
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
            UsageError: an argument cannot be passed, the user or the working directory is not there.
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
        except SandboxUnavailable as error:  # Podman's API answers 500 where Docker's tells it in the stream
            refused = start_error(str(error), user=start.user, workdir=start.workdir)
            raise self._loss() or (refused if isinstance(refused, UnknownUserError) else error) from error

    def _create(self, argv: Sequence[str], *, stdin: bool = True) -> str:
        start = self._start
        environment = [f"{name}={value}" for name, value in (start.env or {}).items()]
        environment += [name for name in start.unset if name not in (start.env or {})]  # a bare name is removed
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
        """Write the newline that the wrapper waits for, then read up to its hello; what comes before is dropped."""
        deadline = time.monotonic() + HELLO_TIMEOUT_S
        # what follows the hello stays in the socket, where `poll` sees it; without a terminal nothing does
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
            pass  # the engine reset the connection; what it said before that tells why
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
        """The error for a missing handshake. The container's state comes first: anybody may have written the text."""
        return self._loss() or start_error(
            heard.decode(errors="replace"), user=self._start.user, workdir=self._start.workdir
        )

    def lost(self, what: str) -> SandboxUnavailable:
        """The error for a broken connection: what became of the container, or else of the connection."""
        return self._loss() or SandboxUnavailable(
            f"The connection to a process in the sandbox broke: {what}. Remedy: open it again."
        )

    def exit_code(self) -> int | None:
        """None while it runs.

        Raises:
            SandboxUnavailable: the container died or went, so the exit code of the process is unknown.
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
        """SIGKILL to pid's group, sent from inside as the same user: the engine's API cannot kill an exec.

        Detached: while a child still holds an ended exec's streams, engine 20.10 keeps every attached one waiting.
        """
        try:
            with self._starting(), engine_errors("killing a process in the sandbox"):
                killer = self._create(("/bin/sh", "-c", KILL_SCRIPT, "sh", str(pid)), stdin=False)
                self._engine.api.exec_start(killer, detach=True)
        except SandboxUnavailable as error:
            raise self._loss() or error from error


class _HandshakeReader:
    """Looks for the hello at the beginning of a stream."""

    def __init__(self, nonce: str) -> None:
        self._pattern = re.compile(rb"%s (\d{1,10})([^\r\n]*)\r?\n" % nonce.encode())
        self.heard = b""

    def feed(self, chunks: list[Chunk]) -> Handshake | None:
        """The hello, once its line is whole; standard error before it is dropped."""
        for chunk in chunks:
            if chunk.stream is not Stream.STDOUT:
                continue
            self.heard += chunk.data
            if chunk.data.endswith(b"\n") and (found := self._pattern.search(self.heard)):
                words = [word.partition(":") for word in found[2].decode(errors="replace").split()]
                return Handshake(int(found[1]), {name: value for name, _, value in words})
        return None


def _refuse_impossible(start: ExecRequest) -> None:
    """What the engine or the kernel would refuse with worse words."""
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
