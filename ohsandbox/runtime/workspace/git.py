"""Running git without the configuration of the user and the system, with limits of time, memory and output.

The limits are for foreign repositories: an object of some MB can stand for many GB.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING

from ohsandbox import host_programs
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

TIMEOUT_S = 300.0
MEMORY_BYTES = 2 * 1024**3
"""Limit for each process, without the packs that it maps. git reads a file of up to 512 MiB whole, and two such files
to compare them."""
MAX_OUTPUT_BYTES = 256 * 1024**2
"""Limit for the output that `call` returns: enough for the names of two million files."""
_PIECE_BYTES = 1024**2
_SAID_BYTES = 2048
_BOUNDED = 'ulimit -d "$1" 2>/dev/null; shift; exec "$@"'
"""Runs git with RLIMIT_DATA of $1 KiB, which on Linux limits all private writable memory (setrlimit(2)), and elsewhere
less of it."""


def is_here() -> bool:
    """Whether git is installed on this machine."""
    return host_programs.find_program("git") is not None


def call(
    arguments: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    stdin: bytes = b"",
) -> tuple[int, bytes]:
    """Run git in directory; return its exit code and output. environment is added to ours.

    Unless it sets GIT_DIR, directory must not be in a repository: git would obey its configuration.

    Raises:
        UsageError: as `run`; or it printed over MAX_OUTPUT_BYTES.
    """
    output = bytearray()

    def collect(piece: bytes) -> bool:
        output.extend(piece)
        return len(output) <= MAX_OUTPUT_BYTES

    code = run(arguments, collect, directory=directory, environment=environment, timeout_s=timeout_s, stdin=stdin)
    if len(output) > MAX_OUTPUT_BYTES:
        raise UsageError(f"git printed over {MAX_OUTPUT_BYTES >> 20} MiB. Try again with fewer files.")
    return code, bytes(output)


def run(
    arguments: Sequence[str],
    take: Callable[[bytes], bool],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    stdin: bytes = b"",
) -> int:
    """Run git as `call` does, and pass its output to take in pieces of at most 1 MiB until take returns False.

    Return the exit code; 0 if take returned False.

    Raises:
        UsageError: git is not installed, did not end in time, or needed over MEMORY_BYTES.
    """
    git_program = host_programs.program("git", remedy="Install git.")
    words = ["/bin/sh", "-c", _BOUNDED, "sh", str(MEMORY_BYTES >> 10), git_program, "--no-pager", *arguments]
    late = threading.Event()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(stdin)
        given.seek(0)
        with host_programs.start(
            words,
            cwd=directory,
            env=_environment(directory, environment or {}),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=said,
        ) as git:

            def end() -> None:
                late.set()
                git.kill()

            clock = threading.Timer(timeout_s, end)
            clock.start()
            try:
                assert git.stdout is not None  # noqa: S101 - a pipe
                while (piece := os.read(git.stdout.fileno(), _PIECE_BYTES)) and take(piece):
                    pass
                has_enough = bool(piece)
                if not has_enough:
                    git.wait()
            finally:
                clock.cancel()
                git.kill()
        if has_enough:
            return 0
        if late.is_set():
            raise UsageError(f"git did not end within {timeout_s:.0f} s. Try again with fewer files.")
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_BYTES))
        if git.returncode and b"ut of memory" in said.read():
            raise UsageError(
                f"git needs over {MEMORY_BYTES >> 20} MiB of memory for one of the files or commits in "
                f"{str(directory)!r}. Look for what is as large."
            )
    return int(git.returncode)


def _environment(directory: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return git's environment: ours without GIT_* variables, without configuration files, and with more added."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "LC_ALL": "C",
        **more,
    }
