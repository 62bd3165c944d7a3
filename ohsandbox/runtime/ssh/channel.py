"""A channel to a process on another machine: an `ssh` of this host, over a connection that the others share."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import subprocess
import time
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.local.channel import LocalChannel
from ohsandbox.runtime.process.invocation import check_entered, start_script
from ohsandbox.runtime.process.quoting import told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

START_S = 20.0
"""A connection takes 0.1 to 2 s, a process over an open one some 50 ms and what the login shell reads at its start."""
KILL_S = 10.0
FAREWELL_S = 1.0
"""Between the end of the output of an `ssh` and what it says of the reason."""
NOISE_BYTES = 64 * 1024
"""Of what start-up files of a login shell may print before our hello."""
_CONNECTION_FAILED = 255
"""ssh(1), EXIT STATUS; a process may end with it, too."""

_SUPERVISOR = "exec 3>&2 4<&0 2>/dev/null </dev/null; (exec %s <&4 2>&3 3>&- 4<&-); exit $?"
"""The parent of the process: it ends with 128 + N where signal N ended that, and of which `ssh` would only say 255."""
_HELLO = '[ ! -t 0 ] || stty raw -echo; printf "%s\\000" "$0$$";'
"""Said before our script is read from stdin, so that no argument and no variable of the process stands in an argv that
others on the machine see. A terminal in its usual mode would cut the script at 4,095 bytes."""
_MODES = "[ ! -t 0 ] || stty 38400 sane\n"
"""A multiplexed `ssh` that has no terminal itself gives the other one no modes at all: no Ctrl-C (OpenSSH 9.2)."""
_KILL = 'kill -9 "-$0" 2>/dev/null || kill -9 "$0"'


class SshChannel(LocalChannel):
    """A process on another machine. It leads its process group, and its session where it has no terminal.

    `wait` returns once nothing holds the process's streams any more: only then `ssh` tells the exit code.
    """

    def __init__(
        self, ssh: Sequence[str], argv: Sequence[str], *, tty: bool = False, env: Mapping[str, str], workdir: str,
        loss: Callable[[], SandboxUnavailable | None] = lambda: None,
    ) -> None:  # fmt: skip
        """Start argv. ssh: the words of a command up to the host; loss() tells what became of the connection.

        Raises:
            UsageError: argv or env cannot be passed to a process.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: `ssh` starts no process there.
        """
        nonce = f"ohs-{secrets.token_hex(8)}:"
        (*shell, reader), script = told(_MODES * tty + start_script(argv, env, workdir))
        process = shlex.join([*["setsid"][tty:], *shell, _HELLO + reader, nonce])
        self._ssh, self._tty, self._loss = [*ssh], tty, loss
        super().__init__(self._words(_SUPERVISOR % process), tty=False, env=os.environ, workdir=".")
        try:
            while nonce not in (hello := self.read_word()):
                pass
            self.pid = int(hello.rpartition(nonce)[2])
            self._read_stderr(0)
            with contextlib.suppress(BrokenPipeError):  # read_word tells why
                self.write(script)
            check_entered(self.read_word(), workdir)
        except BaseException:
            self.close()
            raise

    def _words(self, script: str, *arguments: str) -> list[str]:
        options = ["-o", f"RequestTTY={'force' if self._tty else 'no'}"]
        return [self._ssh[0], *options, *self._ssh[1:], shlex.join(["exec", "/bin/sh", "-c", script, *arguments])]

    def read_word(self) -> str:
        """What comes on stdout up to a NUL, and not a byte more.

        Raises:
            SandboxUnavailable: none comes within START_S.
        """
        stdout, word, deadline = next(iter(self._streams)), b"", time.monotonic() + START_S
        while len(word) < NOISE_BYTES and select.select([stdout], [], [], max(0, deadline - time.monotonic()))[0]:
            if (byte := os.read(stdout, 1)) == b"\0":
                return word.decode("utf-8", "surrogateescape")
            if not byte:
                break
            word += byte
        said = " ".join(self._read_stderr(FAREWELL_S).decode("utf-8", "replace").split())[-300:].rstrip(".")
        raise self._loss() or SandboxUnavailable(
            f"{shlex.join([self._ssh[0], self._ssh[-1]])} started no process: {said or 'no answer'}. "
            "Remedy: make that command work without a question about keys, hosts or passwords."
        )

    def _read_stderr(self, timeout_s: float) -> bytes:
        stderr, said = [*self._streams][1], b""
        while select.select([stderr], [], [], timeout_s)[0] and (data := os.read(stderr, NOISE_BYTES)):
            said += data
        return said

    def _read_one(self, fd: int) -> Chunk | None:
        chunk = super()._read_one(fd)
        return None if self._tty and chunk and chunk.stream is Stream.STDERR else chunk  # that is of `ssh` itself

    @property
    def ended(self) -> bool:
        """The `ssh` has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        code = super().wait(timeout_s)
        if (code == _CONNECTION_FAILED or self._process.returncode < 0) and (loss := self._loss()):
            raise loss
        return code

    def kill(self) -> None:
        """See `Channel.kill`."""
        if not self.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                words = self._words(_KILL, str(self.pid))
                subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=KILL_S, check=False)

    def close(self) -> None:
        """See `Channel.close`."""
        super().close()
        if not self.ended:
            self._process.terminate()  # without it a terminal would stay open there
