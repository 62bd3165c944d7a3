"""Running git on our own files in our own directory, without any configuration, hooks or attributes."""

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
    """Whether git is installed on this machine."""
    return shutil.which("git") is not None


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
        UsageError: git is not installed, or did not end in time.
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
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("This needs git, which is not installed on this machine. Install git.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git did not end within {timeout_s:.0f} s. Try again with fewer files.") from None
    return done.returncode, done.stdout
