"""git as a calculator: on files of ours, in a directory of ours, by nobody's configuration, hooks or attributes."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT_S = 300.0


def is_here() -> bool:
    """There is a git on this machine."""
    return shutil.which("git") is not None


def call(arguments: Sequence[str], *, directory: Path) -> tuple[int, bytes]:
    """Run git in directory, which is no repository; its exit code and output.

    Raises:
        UsageError: there is no git, or it did not end.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            ["git", "--no-pager", *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("This needs git, which is not installed on this machine. Install git.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git did not end within {TIMEOUT_S:.0f} s. Try again with fewer changes.") from None
    return done.returncode, done.stdout
