"""What cases of several themes share: a directory of their own on each side, limits of time, the look at a refusal."""
# ruff: noqa: S101, D103, PT017 - what helpers of cases assert is their purpose; names say the rest

from __future__ import annotations

import contextlib
import errno
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime

SOON_S = 20.0
"""What is done at once takes milliseconds, or this on a machine that is busy with something else. What goes wrong takes
a minute: that long sleeps what nobody may wait for."""

STUBBORN = (
    "trap '' INT TERM HUP; sleep {0} & setsid sleep {0} & nohup sleep {0} 2>/dev/null & while :; do sleep {0}; done"
)
"""A program that no signal but SIGKILL ends, with children that leave its group; {0} is how long each sleeps."""


@contextlib.contextmanager
def soon(within_s: float = SOON_S) -> Iterator[None]:
    """What is done inside must not take longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < within_s


@contextlib.contextmanager
def scratch(runtime: Runtime) -> Iterator[str]:
    """A directory of the case's own in the sandbox."""
    path = runtime.run(["mktemp", "-d"]).stdout.decode().strip()
    try:
        yield path
    finally:
        runtime.run(["/bin/sh", "-c", 'chmod -R u+rwx "$1"; rm -rf "$1"', "sh", path])


@contextlib.contextmanager
def host_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ohsandbox-case-") as path:
        yield Path(path)


def sh(runtime: Runtime, directory: str, script: str) -> str:
    result = runtime.run(["/bin/sh", "-c", script], workdir=directory, timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode("utf-8", "surrogateescape")


def mode_of(runtime: Runtime, path: str) -> str:
    return runtime.run(["stat", "-c", "%a", path]).stdout.decode().strip()


def refused(
    number: int, kind: type[Exception], act: Callable[[], object], *, within_s: float = SOON_S
) -> SandboxFileError:
    """The error of act, which must be ours, of that errno, the builtin too, and quick."""
    began = time.monotonic()
    try:
        act()
    except SandboxFileError as error:
        took = time.monotonic() - began
        assert took < within_s, f"refused after {took:.1f} s: {error}"
        assert isinstance(error, kind), repr(error)
        assert error.errno == number, repr(error)
        assert ".ohs-" not in str(error), str(error)
        assert "eval" not in str(error), str(error)
        return error
    raise AssertionError(f"not refused; wanted errno {errno.errorcode[number]}")
