"""git as a calculator: on files of ours, in a directory of ours, by nobody's configuration, hooks or attributes."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TIMEOUT_S = 300.0


def is_here() -> bool:
    """There is a git on this machine."""
    return shutil.which("git") is not None


def call(
    arguments: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, bytes]:
    """Run git in directory; its exit code and output. environment is added to ours.

    Where that names no GIT_DIR, directory must be no repository: git would obey its configuration.

    Raises:
        UsageError: there is no git, or it did not end.
    """
    full = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    full |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "LC_ALL": "C",
    } | dict(environment or {})
    try:
        done = subprocess.run(
            ["git", "--no-pager", *arguments],
            cwd=directory,
            env=full,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("This needs git, which is not installed on this machine. Install git.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git did not end within {timeout_s:.0f} s. Try again with fewer files.") from None
    return done.returncode, done.stdout
