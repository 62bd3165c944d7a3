"""Building a task's Dockerfile with the docker client, for host projects whose tasks have one."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ImageUnavailable

if TYPE_CHECKING:
    import threading

LOOK_EVERY_S = 0.1
"""How often a build looks whether it is cancelled."""
ERROR_CHARS = 2000
"""The end of what a failed build printed; its last step is there."""


class BuiltImage(NamedTuple):
    """An image, and where its commands run."""

    name: str
    workdir: str
    """Its WORKDIR; the root directory where it has none, for `COPY file .` has put the file there."""


def build_image(place: str | Path, *, cancel: threading.Event | None = None) -> BuiltImage:
    """Build the Dockerfile `place`, or the one in the directory `place`; its directory is the context.

    Raises:
        ImageUnavailable: the build failed, or there is no docker client.
    """
    file = Path(place).resolve()
    file = file / "Dockerfile" if file.is_dir() else file
    name = f"ohsandbox-build:{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    _docker(["build", "--tag", name, "--file", str(file), str(file.parent)], f"Building {file}", cancel)
    workdir = _docker(["image", "inspect", "--format", "{{.Config.WorkingDir}}", name], f"Inspecting {name}", cancel)
    return BuiltImage(name, workdir.strip() or "/")


def _docker(words: list[str], doing: str, cancel: threading.Event | None) -> str:
    try:
        client = subprocess.Popen(
            ["docker", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError:
        raise ImageUnavailable(f"{doing} needs the docker client, which is not there. Remedy: install it.") from None
    with client:
        while True:
            try:
                printed = client.communicate(timeout=LOOK_EVERY_S)[0].decode(errors="replace")
                break
            except subprocess.TimeoutExpired:
                if cancel is not None and cancel.is_set():
                    client.terminate()
    if client.returncode:
        end = printed.strip()[-ERROR_CHARS:]
        raise ImageUnavailable(f"{doing} failed with exit code {client.returncode}. Remedy: see its last step:\n{end}")
    return printed
