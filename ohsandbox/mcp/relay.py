"""Connections out of a sandbox, each relayed by a process there, and an httpcore network backend on top."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import httpcore2

from ohsandbox.errors import OhsandboxError
from ohsandbox.mcp.text import one_line
from ohsandbox.runtime.channel import Chunk, Stream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.channel import Channel


CONNECT_S = 30
GRACE_S = 2.0
"""Time for a connector to notice the end of its input."""

CHUNK_BYTES = 64 * 1024
STDERR_BYTES = 2000
TROUBLE_CHARS = 300

_ITS_OWN = ("localhost", "127.0.0.1", "::1")

_CONNECTED = b"+"
"""The first byte that a connector prints; the remote end's bytes follow."""

_PYTHON = f"""
import os, socket, sys, threading
asked = b""
while not asked.endswith(b"\\n"):
    byte = os.read(0, 1)
    if not byte:
        sys.exit()
    asked += byte
host, port = asked.decode().split()
try:
    far = socket.create_connection((host, int(port)), {CONNECT_S})
except OSError as error:
    sys.exit(error.strerror or str(error) or "timed out")
far.settimeout(None)
os.write(1, b"+")
def up():
    for data in iter(lambda: os.read(0, 65536), b""):
        far.sendall(data)
def down():
    for data in iter(lambda: far.recv(65536), b""):
        while data:
            data = data[os.write(1, data):]
def pump(one):
    try:
        one()
    finally:
        os._exit(0)
threading.Thread(target=pump, args=(up,)).start()
pump(down)
"""

_BASH = (
    'read -r host port||exit 0;exec 3<>"/dev/tcp/$host/$port" 4<&0||exit 1;printf +;'
    "cat <&3 3>&- 4<&-&down=$!;cat <&4 >&3 4<&-&wait -n;kill $! $down"
)

_CONNECTOR = """
exec 3>&1 >/dev/null
if command -v python3;then exec python3 -ISc "$0" >&3;fi
if command -v bash&&bash -c '((BASH_VERSINFO[0]*100+BASH_VERSINFO[1]>=403))';then exec bash -c "$1" >&3;fi
read -r host port||exit 0
if command -v nc;then exec >&3;printf +;exec nc "$host" "$port";fi
echo "it has none of python3, bash and nc to connect with">&2;exit 1
"""
"""Reads `HOST PORT`, then connects, with programs that most images have (`wait -n` needs bash 4.3; nc cannot report
when it has connected). The output of `command -v` goes to /dev/null, the remote end's bytes to descriptor 3."""


class ConnectionRelay:
    """Makes connections from inside a sandbox. Starts no process before the first connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._guard = threading.Lock()
        self._links: set[_Link] = set()
        self._spare: Channel | None = None
        self._connecting: set[Channel] = set()
        self._closed = False
        self.trouble = ""
        """Why the last connection failed; empty if it succeeded."""

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to host:port as seen from the sandbox; blocks.

        Raises:
            ConnectionError: it cannot be reached; gives the reason and the remedy.
        """
        self.trouble = ""
        try:
            channel, first = self._connected(f"{host} {port}\n".encode())
        except (OhsandboxError, OSError) as error:
            self.note(host, port, str(error))
            raise ConnectionError(self.trouble) from None
        near, far = socket.socketpair()
        link = _Link(channel, far, first, lambda why: self.note(host, port, why))
        with self._guard:
            self._links = {one for one in self._links if not one.is_over} | {link}
            if self._closed:
                link.end()
        threading.Thread(target=link.run, name="ohsandbox-relay", daemon=True).start()
        threading.Thread(target=self._prepare, name="ohsandbox-relay-spare", daemon=True).start()
        return near

    def _connected(self, asked: bytes) -> tuple[Channel, list[Chunk]]:
        """Return a connected channel and the data already received. A spare connector may be dead by now."""
        with self._guard:
            spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(OhsandboxError, BrokenPipeError, _DiedSilentlyError):
                return spare, self._ask(spare, asked)
        channel = self._start()
        try:
            return channel, self._ask(channel, asked)
        except _DiedSilentlyError:
            raise ConnectionError("the program that was to connect was killed") from None

    def _ask(self, channel: Channel, asked: bytes) -> list[Chunk]:
        with self._guard:
            self._connecting.add(channel)
            if self._closed:
                _kill(channel)
        try:
            return _ask(channel, asked)
        finally:
            with self._guard:
                self._connecting.discard(channel)

    def _start(self) -> Channel:
        return self._runtime.channel(["/bin/sh", "-c", _CONNECTOR, _PYTHON, _BASH])

    def _prepare(self) -> None:
        """Start a spare connector: starting one takes a hundred times as long as connecting."""
        with self._guard:
            if self._closed or self._spare is not None:
                return
        with contextlib.suppress(OhsandboxError, OSError):
            spare = self._start()
            with self._guard:
                if not self._closed and self._spare is None:
                    self._spare = spare
                    return
            _dismiss(spare)

    def close(self) -> None:
        """End every connection and its process in the sandbox. Safe to call twice."""
        with self._guard:
            self._closed = True
            links, spare, self._spare = list(self._links), self._spare, None
            for channel in self._connecting:
                _kill(channel)
        for link in links:
            link.end()
        if spare is not None:
            _dismiss(spare)
        for link in links:
            if not link.ended.wait(2 * GRACE_S):
                link.kill()

    def note(self, host: str, port: int, why: str) -> None:
        """Record why a connection failed, with the remedy."""
        remedy = "Start the server there" if host in _ITS_OWN else "Give the sandbox a network (`--network open`)"
        self.trouble = (
            f"From inside the sandbox, {host}:{port} cannot be reached: {one_line(why, limit_chars=TROUBLE_CHARS)}. "
            f'{remedy}, or take out `"where": "sandbox"` to connect from this machine'
        )


class _DiedSilentlyError(Exception):
    """A connector ended without output."""


def _ask(channel: Channel, asked: bytes) -> list[Chunk]:
    """Tell a connector to connect; return the data already received. Closes the channel on failure.

    Raises:
        ConnectionError: it could not connect.
        _DiedSilentlyError: it was killed.
    """
    try:
        channel.write(asked)
        return _answer(channel)
    except BaseException:
        channel.kill()
        channel.close()
        raise


def _answer(channel: Channel) -> list[Chunk]:
    until, said = time.monotonic() + CONNECT_S, b""
    while chunks := channel.read(max(0, until - time.monotonic())):
        for number, (stream, data) in enumerate(chunks):
            if stream is Stream.STDOUT:
                early = [Chunk(Stream.STDERR, said), Chunk(Stream.STDOUT, data.removeprefix(_CONNECTED))]
                return [chunk for chunk in early if chunk.data] + chunks[number + 1 :]
            said = (said + data)[-STDERR_BYTES:]
    if chunks is None:
        raise ConnectionError("it does not answer")
    if not said.strip():
        raise _DiedSilentlyError
    raise ConnectionError(_words(said))


def _kill(channel: Channel) -> None:
    with contextlib.suppress(OhsandboxError, OSError):
        channel.kill()


def _dismiss(channel: Channel) -> None:
    with contextlib.suppress(OhsandboxError, OSError), channel:
        try:
            channel.close_stdin()
            channel.wait(GRACE_S)
        except (TimeoutError, OSError):
            channel.kill()


def _words(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split()).rstrip(".")


class _Link:
    """One connection: relays bytes in both directions until one end closes."""

    def __init__(self, channel: Channel, far: socket.socket, first: list[Chunk], note: Callable[[str], None]) -> None:
        self._channel, self._far, self._first, self._note = channel, far, first, note
        self.ended = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether both ends are closed and the process has exited."""
        return self.ended.is_set()

    def end(self) -> None:
        """Make `run` return."""
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Make `run` return even if the remote end accepts no data."""
        _kill(self._channel)

    def run(self) -> None:
        """Relay bytes; returns when the connection is closed and its process has exited."""
        try:
            with self._far, self._channel:
                upward = threading.Thread(target=self._up, name="ohsandbox-relay-up", daemon=True)
                upward.start()
                with contextlib.suppress(OSError, OhsandboxError):  # the sandbox is gone, or nobody listens here
                    self._down()
                self.end()
                upward.join()
        finally:
            self.ended.set()

    def _up(self) -> None:
        with contextlib.suppress(OSError, OhsandboxError):
            while data := self._far.recv(CHUNK_BYTES):
                self._channel.write(data)
        with contextlib.suppress(OSError, OhsandboxError):
            try:
                self._channel.close_stdin()
                self._channel.wait(GRACE_S)
            except (TimeoutError, OSError):
                self._channel.kill()

    def _down(self) -> None:
        said, answered, chunks = b"", False, self._first
        while chunks or (chunks := self._channel.read() or []):
            for stream, data in chunks:
                if stream is Stream.STDOUT:
                    answered = True
                    self._far.sendall(data)
                else:
                    said = (said + data)[-STDERR_BYTES:]
            chunks = []
        if said.strip() and not answered:
            self._note(_words(said))


class SandboxNetwork(httpcore2.AsyncNetworkBackend):
    """Connects through a relay, from inside the sandbox."""

    def __init__(self, relay: ConnectionRelay) -> None:
        self._relay = relay

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,  # noqa: ARG002 - as above
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - as above
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to host:port as the sandbox resolves and reaches it.

        Raises:
            httpcore2.ConnectError: see `ConnectionRelay.connect`.
            httpcore2.ConnectTimeout: not within timeout seconds.
        """
        connecting = asyncio.get_running_loop().run_in_executor(None, self._relay.connect, host, port)
        try:
            async with asyncio.timeout(timeout):
                near = await asyncio.shield(connecting)
        except ConnectionError as error:
            raise httpcore2.ConnectError(str(error)) from None
        except BaseException as error:
            connecting.add_done_callback(_close_late)
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout(f"{host}:{port} was not reached within {timeout:g} s") from None
            raise
        return _Connection(*await asyncio.open_connection(sock=near))

    async def sleep(self, seconds: float) -> None:
        """Sleep between attempts."""
        await asyncio.sleep(seconds)


def _close_late(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class _Connection(httpcore2.AsyncNetworkStream):
    """httpcore's stream over asyncio's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        """Read up to max_bytes; empty at the end of the stream."""
        with _translated(httpcore2.ReadTimeout, httpcore2.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Write all of buffer."""
        with _translated(httpcore2.WriteTimeout, httpcore2.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        """Close without waiting for the other end."""
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        """Start TLS on this connection and return it."""
        try:
            with _translated(httpcore2.ConnectTimeout, httpcore2.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._writer.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """`is_readable` (true on an idle connection: it has ended), else asyncio's transport info."""
        return self._reader.at_eof() if info == "is_readable" else self._writer.get_extra_info(info)


@contextlib.contextmanager
def _translated(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from None
    except OSError as error:  # ssl.SSLError is one
        raise broken(str(error)) from None
