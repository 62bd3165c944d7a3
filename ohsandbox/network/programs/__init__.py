"""Static programs that run in a sandbox: their C sources and the binaries built from them.

connector    carries TCP connections over its standard streams: network `allowlist`, forwarded ports
gateway      sets in a network namespace which addresses are unreachable: network `open`
"""

from __future__ import annotations

from importlib.resources import files

PROGRAMS = {
    "x86_64": "connector-x86_64",
    "amd64": "connector-x86_64",
    "aarch64": "connector-aarch64",
    "arm64": "connector-aarch64",
}
"""The connector for each machine that `uname -m` prints."""


def program(machine: str) -> bytes | None:
    """Return the connector for a machine that `uname -m` prints; None if there is none."""
    name = PROGRAMS.get(machine)
    return None if name is None else files(__name__).joinpath(name).read_bytes()
