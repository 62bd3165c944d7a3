"""Podman behind its Docker-compatible socket: translation of the create call (measured with 4.3.1).

Podman takes a seccomp filter as the path of a file, where Docker's API takes the text. It ignores `MaskedPaths`, for
which it has a security option.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.runtime.docker.error_mapping import engine_errors

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine

_INLINE_FILTER = "seccomp={"


def is_podman(engine: Engine) -> bool:
    """Whether Podman answers, by its ping in 1 ms."""
    api = engine.api
    with engine_errors("asking the engine what it is"):
        return "Libpod-API-Version" in api.get(f"{api.base_url}/_ping", timeout=api.timeout).headers


def translate(payload: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Return the body of a create call in Podman's form.

    Raises:
        UsageError: Podman runs on another machine, where it could not read the filter; or the state directory cannot
            be written.
    """
    if not engine.address.is_local:
        raise UsageError(
            f"Podman at {engine.address} reads the filter of system calls from a file of its own machine. "
            "Remedy: run ohsandbox on that machine, or use a Docker engine."
        )
    config = payload["HostConfig"]
    options = [_by_path(option) for option in config["SecurityOpt"]]
    return payload | {"HostConfig": config | {"SecurityOpt": [*options, f"mask={':'.join(config['MaskedPaths'])}"]}}


def _by_path(option: str) -> str:
    """Write the filter to a file of ours, named by its content; Podman reads it while it creates the container."""
    if not option.startswith(_INLINE_FILTER):
        return option
    text = option.partition("=")[2].encode()
    path = subdirectory("filters") / f"{hashlib.sha256(text).hexdigest()}.json"
    write_atomically(path, text, durable=False)
    return f"seccomp={path}"
