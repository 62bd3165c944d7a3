"""A build hook of hatchling: the commit that a wheel or an sdist is built of, in `ohsandbox/commit`."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[misc, type-arg, unused-ignore]
    """An sdist is no clone: a wheel that is built of it takes the file that is there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, but not to an editable install, which asks git."""
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return
        said = subprocess.run(
            ["git", "-C", self.root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        if said.returncode == 0:
            self._made = Path(tempfile.mkdtemp()) / "commit"
            self._made.write_text(said.stdout)
            build_data["force_include"][str(self._made)] = "ohsandbox/commit"
