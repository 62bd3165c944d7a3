"""Static programs for the inside of a sandbox, their sources, and the binaries built from them.

connector    carries TCP connections over its standard streams: network `allowlist`, forwarded ports
gateway      says in a network namespace which addresses lead nowhere: network `open`
"""

from __future__ import annotations

from importlib.resources import files

PROGRAMS = {
    "x86_64": "connector-x86_64",
    "amd64": "connector-x86_64",
    "aarch64": "connector-aarch64",
    "arm64": "connector-aarch64",
}
"""What `uname -m` says, and the program for it."""


def program(machine: str) -> bytes | None:
    """The connector for what `uname -m` says; None where there is none."""
    name = PROGRAMS.get(machine)
    return None if name is None else files(__name__).joinpath(name).read_bytes()
