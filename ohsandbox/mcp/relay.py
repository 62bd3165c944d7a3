"""Connections from inside a sandbox, each relayed by a process there, and an httpcore network backend for them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import httpcore2

from ohsandbox.errors import OhsandboxError
from ohsandbox.mcp.content import visible_line
from ohsandbox.runtime.channel import Chunk, Stream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

    from ohsandbox.runtime.base import Runtime

CONNECT_S = 30

GRACE_S = 2.0
"""Seconds for a connector to notice the end of its input."""

CHUNK_BYTES, STDERR_BYTES, TROUBLE_CHARS = 64 * 1024, 2000, 300

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_LISTED_PORTS = (443, 80)
"""Ports of an allowlist rule that names only a host."""

_CONNECTED = b"+"
"""First byte of a connector's output; the bytes of the remote end follow."""

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
"""Reads `HOST PORT`, then connects, by a program that most images have (`wait -n` needs bash 4.3; nc cannot report that
it has connected). The output of `command -v` goes to /dev/null, the remote end's bytes to descriptor 3."""


class ConnectionRelay:
    """Makes connections from inside a sandbox; before the first one it starts no process there."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._guard = threading.Lock()
        self._live: set[_Connector] = set()
        self._spare: _Connector | None = None
        self._closed = False
        self.trouble = ""
        """Why the last connection failed; "" if it did not."""

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to host:port, as resolved and reached from the sandbox. Blocks.

        If the sandbox has an allowlist, hosts other than the sandbox itself are reached through the allowlist's proxy,
        without a process inside.

        Raises:
            ConnectionError: the host cannot be reached; the message has the reason and the remedy.
        """
        self.trouble = ""
        note = partial(self._note, host, port)
        try:
            if host not in LOOPBACK and (listed := self._runtime.connect_proxy()) is not None:
                return _through_proxy(listed, host, port)
            connector = self._connected(f"{host} {port}\n".encode())
        except (OhsandboxError, OSError) as error:
            note(str(error))
            raise ConnectionError(self.trouble) from None
        near, far = socket.socketpair()
        threading.Thread(target=connector.relay, args=(far, note), name="ohsandbox-relay", daemon=True).start()
        threading.Thread(target=self._prepare, name="ohsandbox-relay-spare", daemon=True).start()
        return near

    def _connected(self, request: bytes) -> _Connector:
        with self._guard:
            spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(OhsandboxError, BrokenPipeError, _DiedSilentlyError):  # the spare was killed
                spare.connect(request)
                return spare
        connector = self._start()
        try:
            connector.connect(request)
        except _DiedSilentlyError:
            raise ConnectionError("the process that makes the connection was killed") from None
        return connector

    def _start(self) -> _Connector:
        connector = _Connector(self._runtime)
        with self._guard:
            self._live = {connector for connector in self._live if not connector.ended.is_set()} | {connector}
            closed = self._closed
        if closed:
            connector.kill()
        return connector

    def _prepare(self) -> None:
        """Start a spare connector: starting one takes a hundred times as long as connecting."""
        if self._closed or self._spare is not None:
            return
        with contextlib.suppress(OhsandboxError, OSError):
            connector = self._start()
            with self._guard:
                if not self._closed and self._spare is None:
                    self._spare = connector
                    return
            connector.end()

    def close(self) -> None:
        """End all connections and their processes in the sandbox; idempotent."""
        with self._guard:
            self._closed, self._spare = True, None
            live = [*self._live]
        for connector in live:
            connector.end()
        for connector in live:
            if not connector.ended.wait(2 * GRACE_S):  # the remote end accepts no data
                connector.kill()

    def _note(self, host: str, port: int, reason: str) -> None:
        rule = host if port in _LISTED_PORTS else f"{host}:{port}"
        remedy = "Start the server there" if host in LOOPBACK else f"Let the sandbox reach it (`--allow {rule}`)"
        reason = visible_line(reason, limit_chars=TROUBLE_CHARS).rstrip(".")
        self.trouble = (
            f"From inside the sandbox, {host}:{port} cannot be reached: {reason}. "
            f'{remedy}, or remove `"where": "sandbox"` to connect from this machine'
        )


def _through_proxy(near: socket.socket, host: str, port: int) -> socket.socket:
    """Connect to host:port through the proxy at the other end of `near`; return that socket.

    Raises:
        ConnectionError: the proxy refuses; the message has the reason.
    """
    with contextlib.ExitStack() as failed:
        failed.callback(near.close)
        near.settimeout(CONNECT_S)
        address = f"{host}:{port}".encode()
        near.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (address, address))
        answer = http.client.HTTPResponse(near, method="CONNECT")
        failed.callback(answer.close)
        try:
            answer.begin()
        except http.client.HTTPException:
            raise ConnectionError("the proxy of its allowlist ended the connection") from None
        if answer.status != http.HTTPStatus.OK:
            raise ConnectionError(answer.reason)
        answer.close()
        near.settimeout(None)
        failed.pop_all()
    return near


class _DiedSilentlyError(Exception):
    """A connector ended without output."""


class _Connector:
    """A process in the sandbox that connects, and relays the bytes until one end closes."""

    def __init__(self, runtime: Runtime) -> None:
        self._channel = runtime.channel(["/bin/sh", "-c", _CONNECTOR, _PYTHON, _BASH])
        self._is_asked = False
        self._far: socket.socket | None = None
        self._first: list[Chunk] = []
        """Data received with the answer."""
        self.ended = threading.Event()
        """Set when both ends are closed and the process has exited."""

    def connect(self, asked: bytes) -> None:
        """Connect; end the process on failure.

        Raises:
            ConnectionError: the connector could not connect.
            _DiedSilentlyError: the connector was killed.
        """
        self._is_asked = True
        try:
            self._channel.write(asked)
            self._first = self._answer()
        except BaseException:
            self.kill()
            self._channel.close()
            self.ended.set()
            raise

    def _answer(self) -> list[Chunk]:
        until, stderr = time.monotonic() + CONNECT_S, b""
        while chunks := self._channel.read(max(0, until - time.monotonic())):
            for number, (stream, data) in enumerate(chunks):
                if stream is Stream.STDOUT:
                    early = [Chunk(Stream.STDERR, stderr), Chunk(Stream.STDOUT, data.removeprefix(_CONNECTED))]
                    return [chunk for chunk in early if chunk.data] + chunks[number + 1 :]
                stderr = (stderr + data)[-STDERR_BYTES:]
        if chunks is None:
            raise ConnectionError("it does not answer")
        if not stderr.strip():
            raise _DiedSilentlyError
        raise ConnectionError(stderr.decode("utf-8", "replace"))

    def relay(self, far: socket.socket, note: Callable[[str], None]) -> None:
        """Relay bytes until the connection is closed and the process has exited."""
        self._far = far
        try:
            with far, self._channel:
                upward = threading.Thread(target=self._up, args=(far,), name="ohsandbox-relay-up", daemon=True)
                upward.start()
                with contextlib.suppress(OSError, OhsandboxError):  # the sandbox is gone, or nobody listens here
                    self._down(far, note)
                self.end()
                upward.join()
        finally:
            self.ended.set()

    def _up(self, far: socket.socket) -> None:
        with contextlib.suppress(OSError, OhsandboxError):
            while data := far.recv(CHUNK_BYTES):
                self._channel.write(data)
        self._finish()

    def _down(self, far: socket.socket, note: Callable[[str], None]) -> None:
        stderr, answered, chunks = b"", False, self._first
        while chunks or (chunks := self._channel.read() or []):
            for stream, data in chunks:
                if stream is Stream.STDOUT:
                    answered = True
                    far.sendall(data)
                else:
                    stderr = (stderr + data)[-STDERR_BYTES:]
            chunks = []
        if stderr.strip() and not answered:
            note(stderr.decode("utf-8", "replace"))

    def end(self) -> None:
        """End the connection or, without one, the process. After both have ended, another process may have its id."""
        if self.ended.is_set():
            return
        if self._far is not None:
            with contextlib.suppress(OSError):
                self._far.shutdown(socket.SHUT_RDWR)
        elif self._is_asked:
            self.kill()
        else:
            with contextlib.suppress(OhsandboxError, OSError), self._channel:
                self._finish()
            self.ended.set()

    def _finish(self) -> None:
        with contextlib.suppress(OSError, OhsandboxError):
            try:
                self._channel.close_stdin()
                self._channel.wait(GRACE_S)
            except (TimeoutError, OSError):
                self._channel.kill()

    def kill(self) -> None:
        """Kill the process, which also ends pending reads and waits."""
        with contextlib.suppress(OhsandboxError, OSError):
            self._channel.kill()


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
        """Connect to host:port, as resolved and reached from the sandbox.

        Raises:
            httpcore2.ConnectError: see `ConnectionRelay.connect`.
            httpcore2.ConnectTimeout: no connection within timeout seconds.
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


def _close_late(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class _Connection(httpcore2.AsyncNetworkStream):
    """httpcore's stream interface for asyncio's streams; httpcore's own implementation, for anyio, is not public."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        with _translated(httpcore2.ReadTimeout, httpcore2.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        with _translated(httpcore2.WriteTimeout, httpcore2.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with _translated(httpcore2.ConnectTimeout, httpcore2.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._writer.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        # an idle connection that can be read has ended
        return self._reader.at_eof() if info == "is_readable" else self._writer.get_extra_info(info)


@contextlib.contextmanager
def _translated(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from None
    except OSError as error:  # ssl.SSLError is an OSError
        raise broken(str(error)) from None
