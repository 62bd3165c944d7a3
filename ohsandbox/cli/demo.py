"""`ohsandbox demo`: the loop of `run` with the model that ships, so that no key is needed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.run import work
from ohsandbox.cli.sandbox import make_runtime
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from ohsandbox.cli.options import SandboxOptions

TASK = "Write a small Python module that merges overlapping intervals. Test it, and show that it works."


def run_demo(asked: SandboxOptions, *, no_tui: bool) -> int:
    """Work the script through in a fresh sandbox; 0 only if everything in it went as it says.

    Raises:
        ScriptError: a command of the script gave another result than the script expects.
        OhsandboxError: as `run`.
    """
    own = Settings.load()
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        where = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(where.with_settings(settings))
        return work(TASK, settings, where, no_tui=no_tui)
