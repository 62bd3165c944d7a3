"""The kernel's program, for the sandbox's Python 3.8 or newer; of these files only this one is imported on the host."""

from __future__ import annotations

import re
from importlib.resources import files

PARTS = ("showing", "commands", "plain", "ipython", "cells")
"""Bottom up; each may use what stands in those before it."""

_IMPORT = re.compile(r"^from (?:__future__|ohsandbox[\w.]*) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


def source() -> str:
    """All parts as one program: what they import from each other is there already."""
    folder = files(__name__)
    parts = [_IMPORT.sub("", folder.joinpath(f"{part}.py").read_text("utf-8")) for part in PARTS]
    return "\n".join(["from __future__ import annotations", *parts])
