"""The release and the commit of what runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ohsandbox import __version__

COMMIT_CHARS = 12
_PACKAGE = Path(__file__).parents[1]


def version_text(package: Path = _PACKAGE) -> str:
    """`ohsandbox 0.1.0 (commit)`; without the commit where none is known: no clone, and built of none."""
    commit = _commit(package)
    return f"ohsandbox {__version__}" + (f" ({commit[:COMMIT_CHARS]})" if commit else "")


def _commit(package: Path) -> str:
    """The commit that the build wrote down, or of the clone that the package lies in."""
    try:
        return (package / "commit").read_text("ascii").strip()
    except (OSError, ValueError):
        pass
    if not (package.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(package.parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
