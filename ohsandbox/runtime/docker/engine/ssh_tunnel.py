"""The connection to an engine on another machine: one `ssh` process, and a local socket that it forwards.

OpenSSH itself handles keys, checks the host's key, and reads the user's configuration; so what works as `ssh HOST`
works here. All engines of this process at one address share the connection.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from ohsandbox import host_programs
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.text import quoted_line

CONNECT_S = 30.0
"""Seconds to connect: a handshake takes 0.1 to 2 s, and several over a slow line or two jump hosts."""
_ALIVE_EVERY_S = 15
"""Interval of keep-alive messages; a connection that answers none for three times as long is lost."""
_FORWARD_S = 10.0
"""Seconds for a second `ssh` to make the first one listen; it takes 10 ms."""
_SETTLES_S = 0.5
"""Seconds to wait for the end of `ssh` itself, which follows that of the forwarded connections by some milliseconds."""
_LAST_WORDS_S, _WORD_S = 10.0, 0.2
"""Seconds to wait for what an `ssh` that has ended wrote about the reason: it is in the pipe, and only the thread that
reads it may need so long on a busy machine. Of an empty pipe that a program of the user's (ProxyCommand) still holds,
nothing more is awaited."""
_ENDS_S = 2.0
"""Seconds to wait for `ssh` to end before each signal; `open` in another thread waits meanwhile."""
AGAIN_S = 2.0
"""After a failed connection, minimum seconds until the next attempt, over all callers."""
_DEFAULT_SOCKET = "/var/run/docker.sock"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9_.-]{1,32})?")
"""A name in ssh_config, a host name or an address. It becomes a word of commands, some of which the user has configured
(ProxyCommand with %h), so no character that a shell interprets is accepted."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_SOCKET = re.compile(r"/[A-Za-z0-9_./-]{1,107}")
"""A path without characters that ssh's -L would split at or expand."""
_OPTIONS = (
    "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no",
    "-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", "EscapeChar=none", "-o", "LogLevel=ERROR",
    "-o", f"ConnectTimeout={CONNECT_S:.0f}", "-o", f"ServerAliveInterval={_ALIVE_EVERY_S}",
    "-o", "ServerAliveCountMax=3", "-o", "StreamLocalBindMask=0177",
)  # fmt: skip
"""Options that, whatever the user's configuration says, forbid prompts and the user's forwardings, and make a
connection of our own."""
_LOCAL = 'd=$1; shift; "$@"; rm -rf -- "$d"'
"""Wraps the local `ssh`: even if this process is killed, the connection ends (at the end of its input), and the
directory of its sockets is removed."""
_THERE = """exec sh -c 'printf "%s:%s\\n" NONCE "$(docker context inspect --format "{{.Endpoints.docker.Host}}" \
2>/dev/null)"; exec cat >/dev/null'"""
"""Prints where the engine's socket is according to the remote `docker`, and waits for the end of its input."""


class SshAddress(NamedTuple):
    """The parts of ssh://[USER@]HOST[:PORT][/SOCKET]."""

    host: str
    user: str | None
    port: int | None
    socket: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse and validate a URL.

        Raises:
            UsageError: a part is missing, or contains characters that it may not have.
        """

        def refuse(fault: str) -> UsageError:
            return UsageError(
                f"DOCKER_HOST={quoted_line(url, limit_chars=100)!r} is refused: {fault}. Use ssh://USER@HOST[:PORT]."
            )

        if not url.isascii() or not url.isprintable() or " " in url:  # urlsplit drops some of these characters
            raise refuse("it holds characters that no address has")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise refuse(str(error)) from None
        host = parts.netloc.rpartition("@")[2]
        host = host[1 : host.index("]")] if host.startswith("[") and "]" in host else host.partition(":")[0]
        if parts.password is not None:
            raise refuse("it holds a password, which others can see; use a key")
        if not _HOST.fullmatch(host):
            raise refuse(f"{quoted_line(host, limit_chars=60)!r} is not a host")
        if parts.username is not None and not _USER.fullmatch(parts.username):
            raise refuse(f"{quoted_line(parts.username, limit_chars=60)!r} is not a user")
        socket = parts.path if parts.path not in {"", "/"} else None
        if parts.query or parts.fragment or (socket is not None and not _SOCKET.fullmatch(socket)):
            raise refuse("the path after the host is not a socket's")
        return cls(host, parts.username, port, socket)

    @property
    def words(self) -> list[str]:
        """The arguments of `ssh` that name the address."""
        user = ["-l", self.user] if self.user else []
        return [*user, *(["-p", str(self.port)] if self.port else []), "--", self.host]


class SshTunnel:
    """A connection to one address, which is restored when lost; `socket` is its local end."""

    def __init__(self, url: str) -> None:
        """Store the address without connecting.

        Raises:
            UsageError: url is not an ssh address.
        """
        self._address = SshAddress.parse(url)
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._listener: threading.Thread | None = None
        self._failure: tuple[float, EngineUnavailable] | None = None
        self._directory = ""
        self.socket = ""

    def open(self) -> str:
        """Connect unless connected; return the path of the local socket.

        Raises:
            EngineUnavailable: the machine is unreachable, its key is not the known one, it rejects ours, or there is no
                `ssh` program on this machine.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                if Path(self.socket).exists():
                    return self.socket
                self.settle()  # its directory is removed just before it ends
            if self._failure is not None and time.monotonic() - self._failure[0] < AGAIN_S:
                raise self._failure[1]
            try:
                self._connect()
            except EngineUnavailable as error:
                self._failure = time.monotonic(), error
                raise
            self._failure = None
            return self.socket

    def settle(self) -> None:
        """Wait up to 0.5 s for the `ssh` of a lost connection to end, so that `open` notices."""
        if (process := self._process) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SETTLES_S)

    def close(self) -> None:
        """Close the connection; `open` makes a new one."""
        with self._lock:
            self._failure = None
            self._end()

    def _connect(self) -> None:
        if (program := host_programs.find_program("ssh")) is None:
            raise EngineUnavailable(
                f"The engine at {self._url} is reached by the program ssh, which is not here. Install OpenSSH's client."
            )
        self._end()
        # not in the state directory: a socket's path has at most 107 bytes
        self._directory = directory = tempfile.mkdtemp(prefix="ohsandbox-ssh-", dir=os.environ.get("XDG_RUNTIME_DIR"))
        control, nonce = f"{directory}/control", secrets.token_hex(8)
        words = [program, *_OPTIONS, "-o", f"ControlPath={control}", *self._address.words]
        self._said.clear()
        self._process = host_programs.start(
            ["/bin/sh", "-c", _LOCAL, "sh", directory, *words, _THERE.replace("NONCE", nonce)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only this process
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, args=(self._process,), name="ohsandbox-ssh", daemon=True)
        self._listener.start()
        try:
            socket_there = self._socket_there(self._process, nonce)  # once it is told, there is a connection
            path = f"{directory}/engine.sock"
            self._ask(control, "forward", "-L", f"{path}:{self._address.socket or socket_there}")
            self.socket = path
        except BaseException:
            self._end()
            raise

    def _ask(self, control: str, request: str, *options: str) -> None:
        """Send a control request to the connection, through a second `ssh` that reads no configuration of the user.

        Raises:
            EngineUnavailable: the request failed, or took longer than 10 s.
        """
        words = ["ssh", "-F", "none", "-S", control, "-O", request, *options, "--", "x"]
        try:
            ended = host_programs.run(words, capture_output=True, timeout=_FORWARD_S, check=False)
        except subprocess.TimeoutExpired:
            raise self._unreachable() from None
        if ended.returncode:
            self._said.append(ended.stderr.decode(errors="replace"))
            raise self._unreachable()

    def _socket_there(self, process: subprocess.Popen[bytes], nonce: str) -> str:
        """Return the path of the engine's socket on the remote machine; output of its start-up files is skipped.

        Raises:
            EngineUnavailable: `ssh` ended or printed nothing within 30 s.
        """
        assert process.stdout is not None  # noqa: S101 - a pipe
        sockets: list[str] = []

        def read() -> None:
            for line in iter(process.stdout.readline, b""):  # type: ignore[union-attr]
                if line.startswith(nonce.encode() + b":"):
                    sockets.append(line.decode(errors="replace").partition(":")[2].strip())
                    return

        reader = threading.Thread(target=read, name="ohsandbox-ssh-hello", daemon=True)
        reader.start()
        reader.join(CONNECT_S)
        if not sockets:
            if self._listener is not None and not reader.is_alive():  # it has closed its output: it has ended
                self._await_last_words(process, self._listener)
            raise self._unreachable()
        socket_path = sockets[0].removeprefix("unix://")
        return socket_path if sockets[0].startswith("unix://") and _SOCKET.fullmatch(socket_path) else _DEFAULT_SOCKET

    def _await_last_words(self, process: subprocess.Popen[bytes], listener: threading.Thread) -> None:
        """Wait until the listener has read what an `ssh` that has ended wrote."""
        until, is_empty = time.monotonic() + _LAST_WORDS_S, False
        while listener.is_alive() and time.monotonic() < until and not is_empty:
            with contextlib.suppress(ValueError):  # closed: the listener is about to end
                pipe = select.poll()
                pipe.register(process.stderr, select.POLLIN)  # type: ignore[arg-type]
                is_empty = not pipe.poll(0)
            listener.join(_WORD_S)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # noqa: S101 - a pipe
        with process.stderr as lines:
            for line in lines:
                self._said.append(line.decode(errors="replace").strip())

    def _unreachable(self) -> EngineUnavailable:
        why, remedy = self._explained(" ".join(self._said))
        return EngineUnavailable(f"No Docker engine answers at {self._url}: {why}.", remedy=remedy)

    def _explained(self, complaint: str) -> tuple[str, str]:
        """Return the reason, a clause, and the remedy, a sentence."""
        host = self._address.host
        if "IDENTIFICATION HAS CHANGED" in complaint:
            return (
                f"the host key of {host} is not the one that is known, as where somebody is in between",
                f"Ask who runs it; only if it was really changed, run `ssh-keygen -R {host}`, then `ssh {host}`.",
            )
        if "Host key verification failed" in complaint or "host key is known" in complaint:
            return f"the host key of {host} is not known", f"Run `ssh {host}` once, and compare it."
        if "Permission denied (" in complaint:
            return f"{host} does not accept a key", f"Have `ssh {host}` work without a question (ssh-add)."
        words = quoted_line(complaint[-200:], limit_chars=200) or f"no answer within {CONNECT_S:.0f} s"
        return f"ssh says: {words}", f"Have `ssh {host} docker version` work."

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self.socket:
            with contextlib.suppress(OSError, EngineUnavailable):
                self._ask(str(Path(self.socket).with_name("control")), "exit")
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_S)
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
        shutil.rmtree(self._directory, ignore_errors=True)  # needed if the shell around `ssh` was killed
        self.socket = ""


_tunnels: dict[str, SshTunnel] = {}
_lock = threading.Lock()


def tunnel_to(url: str) -> SshTunnel:
    """Return this process's connection to that address, which may not be open yet.

    Raises:
        UsageError: url is not an ssh address.
    """
    with _lock:
        if url not in _tunnels:
            _tunnels[url] = SshTunnel(url)
        return _tunnels[url]


def _forget_in_child() -> None:
    """Forget the connections in a forked child, which opens its own; the parent ends its connections itself."""
    _tunnels.clear()


os.register_at_fork(after_in_child=_forget_in_child)
