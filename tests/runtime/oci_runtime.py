#!/usr/bin/env -S python3 -IS
"""`runc` for Podman as a root without CAP_SYS_RESOURCE: the limits it asks for are lowered to what this process has.

Podman 4.3 asks for 4,194,304 processes and 1,048,576 files, which such a root may not grant.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path


def _option(arguments: list[str], *names: str) -> str | None:
    for at, word in enumerate(arguments):
        name, is_joined, value = word.partition("=")
        if name in names:
            return value if is_joined else arguments[at + 1]
    return None


def _lower(path: Path) -> None:
    config = json.loads(path.read_text())
    for limit in config.get("process", config).get("rlimits", []):
        ours = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if ours != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], ours)
            limit["soft"] = min(limit["soft"], ours)
    path.write_text(json.dumps(config))


def _main(arguments: list[str]) -> None:
    if "create" in arguments:
        _lower(Path(_option(arguments, "--bundle", "-b") or ".", "config.json"))
    elif "exec" in arguments and (process := _option(arguments, "--process", "-p")):
        _lower(Path(process))
    os.execvp("runc", ["runc", *arguments])


if __name__ == "__main__":
    _main(sys.argv[1:])
