"""Engines beside this machine's own that `DockerRuntime` is tested on: a newer Docker, one with gVisor, and Podman."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNSC = os.environ.get("OHSANDBOX_TEST_RUNSC") or shutil.which("runsc")
"""gVisor's OCI runtime (Debian: runsc)."""
RUNSC_OPTIONS = ("--platform=ptrace", "--network=none", "--ignore-cgroups")
"""Without control groups it enforces no limit on memory, processes or processors, and needs no right to make them."""
PODMAN = shutil.which("podman") if os.getuid() == 0 else None
START_S = 60.0
IMAGE = "ohsandbox-base:debian"


def newer() -> Any:
    """The newer engine's address as a test parameter, skipped where `.ci/engine newer` could start none."""
    address = os.environ.get("OHSANDBOX_NEWER_ENGINE")
    absent = pytest.mark.skipif(address is None, reason="no newer engine (`.ci/engine newer`, then `.ci/pytest`)")
    return pytest.param(address, marks=[absent, pytest.mark.slow])


def with_runsc(directory: Path) -> list[str]:
    """The options of a dockerd that knows gVisor as `runsc`; none where there is no gVisor."""
    if RUNSC is None:
        return []
    config = directory / "daemon.json"
    config.write_text(json.dumps({"runtimes": {"runsc": {"path": RUNSC, "runtimeArgs": RUNSC_OPTIONS}}}))
    return ["--config-file", str(config)]


@contextlib.contextmanager
def gvisor(directory: Path) -> Iterator[str]:
    """The address of an engine of the tests' own that knows `runsc` and has the Debian image."""
    from tests.runtime.docker.test_faults import PrivateEngine  # noqa: PLC0415 - its module imports the runtimes

    private = PrivateEngine(directory, with_runsc(directory))
    private.start()
    try:
        load_image(private.host)
        yield private.host
    finally:
        private.stop()


def load_image(address: str) -> None:
    """Give the engine there the Debian image of this machine's own."""
    with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saved:
        environment = os.environ | {"DOCKER_HOST": address}
        subprocess.run(["docker", "load", "--quiet"], stdin=saved.stdout, check=True, env=environment)


@contextlib.contextmanager
def podman() -> Iterator[str]:
    """The address of a Podman of the tests' own, whose Docker-compatible API has the Debian image."""
    assert PODMAN is not None
    # not pytest's: Podman refuses a --runroot of more than 50 characters
    with tempfile.TemporaryDirectory(prefix="ohs-podman-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield from _podman_in(PODMAN, Path(directory))


def _podman_in(program: str, directory: Path) -> Iterator[str]:
    address = f"unix://{directory}/podman.sock"
    runtime = Path(__file__).with_name("oci_runtime.py")
    options: dict[str, object] = {"root": directory / "root", "runroot": directory / "run", "runtime": runtime}
    options |= {"cgroup-manager": "cgroupfs", "events-backend": "none"}
    # its mounts are its own, and gone with it
    command = [
        "unshare",
        "--mount",
        program,
        *(f"--{name}={value}" for name, value in options.items()),
        "system",
        "service",
        "--time=0",
        address,
    ]
    with (directory / "log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not (directory / "podman.sock").exists() and service.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.poll() is None, (directory / "log").read_text()
        load_image(address)
        yield address
    finally:
        service.terminate()
        service.wait()
        _end_monitors(directory)


def _end_monitors(directory: Path) -> None:
    """Podman's monitor of an exec waits five minutes after its end (`--exit-delay`)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if words.startswith(b"/usr/bin/conmon") and os.fsencode(directory) in words:
                os.kill(int(process.name), signal.SIGKILL)
