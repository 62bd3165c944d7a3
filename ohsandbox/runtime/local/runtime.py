"""`CLIRuntime`: the same surface on this host. No sandbox worth the name, except inside bubblewrap."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import SandboxUnavailable, UnknownUserError, UsageError, WorkdirMissingError
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.local.channel import LocalChannel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.channel import Channel

WARNING = "CLIRuntime runs commands on THIS HOST, as you, with no container around them."
CLEANUP_S = 1.0
BUBBLEWRAP_S = 5.0
"""bwrap sets up its namespaces in some 5 ms, or fails."""
_PASSED_ENV = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "TZ")
QUIET_ENV = {
    "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "DEBIAN_FRONTEND": "noninteractive",
}  # fmt: skip


class CLIRuntime(Runtime):
    """Commands and files of this host, with a scrubbed environment and process groups of their own.

    Where bubblewrap works (Linux) and is not refused, the host's files are read-only outside the working directory
    and /tmp. Nothing else is confined: use DockerRuntime for anything you do not trust.
    """

    isolated = False
    private_processes = False

    def __init__(self, workdir: Path | str | None = None, *, env: Mapping[str, str] | None = None,
                 bubblewrap: bool | None = None, quiet: bool = False, watch: bool = False) -> None:  # fmt: skip
        """Run in workdir (default: the current directory). bubblewrap None: when it works; True: or fail.

        watch: `workspace_changes` tells of workdir; its whole tree is read at the start.

        Raises:
            WorkdirMissingError: the directory does not exist.
        """
        super().__init__()
        self._workdir = Path(workdir or Path.cwd()).resolve()
        if not self._workdir.is_dir():
            raise WorkdirMissingError(
                2, "The working directory does not exist. Make it, or name another", str(self._workdir)
            )
        self._env = dict(env or {})
        self._bubblewrap, self._quiet = bubblewrap, quiet
        self._watches = watch
        self._prefix: list[str] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.state_dir = ""

    @property
    def id(self) -> str:
        """This host, and our process."""
        return f"cli-{os.getpid()}"

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return str(self._workdir)

    def start(self) -> Self:
        """Warn, and make the directory that sessions need."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="ohsandbox-", ignore_cleanup_errors=True)
            self.state_dir = self._directory.name
            if self._watches:
                self.watch(self._workdir)
            self._prefix = _bubblewrap(self._workdir, self.state_dir) if self._bubblewrap is not False else []
            if self._bubblewrap and not self._prefix:
                self._close()
                raise SandboxUnavailable("bubblewrap does not work here; install `bwrap`, or use DockerRuntime")
            if not self._quiet:
                walls = f"With {self._walls}." if self._walls else "Use DockerRuntime instead."
                print(f"WARNING: {WARNING} {walls}", file=sys.stderr)  # noqa: T201 - the contract's loud warning
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
        """See `Runtime.open_channel`; no other user than our own."""
        if self._directory is None:
            raise SandboxUnavailable("The CLIRuntime is not started; call start() or use `with`")
        if any("\0" in word for word in argv):
            raise UsageError("A NUL byte cannot stand in an argument")
        if user is not None and str(user) not in (str(os.getuid()), os.environ.get("USER", "")):
            raise UnknownUserError(f"CLIRuntime runs as you and cannot become user {user!r}; use DockerRuntime")
        return LocalChannel(
            [*self._prefix, *argv], tty=tty, env=self._environment(env or {}), workdir=workdir or self.workdir
        )

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ENV if name in os.environ}
        return {"LANG": "C.UTF-8", **passed, **QUIET_ENV, **self._env, **env}

    def _close(self) -> None:
        directory, self._directory = self._directory, None
        deadline = time.monotonic() + CLEANUP_S
        while directory is not None and Path(directory.name).exists():  # the keepers remove their own parts meanwhile
            directory.cleanup()
            if time.monotonic() > deadline:
                break

    def describe(self) -> dict[str, str]:
        """Facts for a system prompt."""
        return {
            "runtime": "this host, no container",
            "working directory": self.workdir,
            "confinement": self._walls or "none",
        }

    @property
    def _walls(self) -> str:
        """What bubblewrap comes to: it has no network or process namespace, and root keeps every capability in it."""
        if not self._prefix:
            return ""
        if os.geteuid() == 0:
            return "bubblewrap, which is no wall for root: it can mount everything writable again"
        return "bubblewrap: only files in the working directory and /tmp are writable, but services of this host answer"


def _bubblewrap(workdir: Path, state_dir: str) -> list[str]:
    """The words before a command that put it into bubblewrap; none where that does not work.

    Not --die-with-parent: the kernel takes the *thread* that started it for the parent (prctl(2), PR_SET_PDEATHSIG),
    and ours come and go. When we die, a session's keeper and a worker read end of file and leave.
    """
    program = shutil.which("bwrap")
    if program is None:
        return []
    words = [
        program, "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--bind", "/tmp", "/tmp",  # noqa: S108
        "--bind", state_dir, state_dir, "--bind", str(workdir), str(workdir), "--",
    ]  # fmt: skip
    try:
        with LocalChannel([*words, "true"], tty=False, env={}, workdir="/") as channel:
            return words if channel.wait(BUBBLEWRAP_S) == 0 else []
    except (OSError, TimeoutError):
        return []
