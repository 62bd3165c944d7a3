"""CLIRuntime inside bubblewrap: outside the working directory and /tmp, the host's files stay as they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxFileError, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

SWAPS = 10_000
CANARY = b"untouched"


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that the sandbox may not write, with a canary in it."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (directory / "f").write_bytes(CANARY)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[CLIRuntime]:
    runtime = CLIRuntime(tmp_path, bubblewrap=True, quiet=True)
    try:
        runtime.start()
    except SandboxUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    yield runtime
    runtime.close()


def test_a_symlink_that_leads_out_is_not_written_through(runtime: CLIRuntime, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").symlink_to(outside / "f")
    for path in ("link/f", "link/new", "file", f"{outside}/f"):
        with pytest.raises(SandboxFileError, match="Read-only"):
            runtime.write_bytes(path, b"changed")
    assert runtime.execute("echo x > link/f").exit_code != 0
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_bytes() == CANARY


def test_a_directory_that_becomes_a_symlink_in_mid_write_leads_nowhere(
    runtime: CLIRuntime, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(outside)
    done = threading.Event()

    def move(source: Path, target: Path) -> None:
        while True:
            try:
                source.rename(target)
            except OSError:  # a write has made a directory of that name meanwhile
                shutil.rmtree(target, ignore_errors=True)
            else:
                return

    def swap() -> None:
        for _ in range(SWAPS):
            for name in ("real", "link"):
                move(tmp_path / name, tmp_path / "d")
                move(tmp_path / "d", tmp_path / name)
        done.set()

    swapper = threading.Thread(target=swap)
    swapper.start()
    written = 0
    while not done.is_set():
        with contextlib.suppress(SandboxFileError):
            runtime.write_bytes("d/f", b"changed")
            written += 1
    swapper.join()
    assert written
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_bytes() == CANARY


def test_root_cannot_open_the_wall(runtime: CLIRuntime, outside: Path) -> None:
    remount = f"mount -o remount,rw,bind $(findmnt -nT {outside} -o TARGET)"
    own_namespace = f"unshare -m sh -c '{remount}; echo changed > {outside}/f'"
    of_the_host = (
        f"nsenter -t 1 -m sh -c 'echo changed > {outside}/f'; echo changed > /proc/{os.getpid()}/root{outside}/f"
    )
    for escape in (f"{remount}; echo changed > {outside}/f", own_namespace, of_the_host):
        assert runtime.run(["sh", "-c", escape]).exit_code != 0
        assert (outside / "f").read_bytes() == CANARY
    assert runtime.describe()["confinement"].startswith("bubblewrap: only files in the working directory and /tmp")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open disks")
def test_root_finds_no_disk(runtime: CLIRuntime) -> None:
    assert runtime.run(["find", "/dev", "-type", "b"]).stdout == b""
    assert runtime.run(["sh", "-c", "mknod /tmp/ohs-disk-$$ b 8 0"]).exit_code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works in another user's directory")
def test_root_works_in_another_users_directory(runtime: CLIRuntime, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "theirs/f").write_text("old")
    for path in (tmp_path / "theirs", tmp_path / "theirs/f"):
        os.chown(path, 1234, 1234)
    script = "echo new > theirs/f && chmod 600 theirs/f && touch theirs/g && chown 1234:1234 theirs/g"
    assert runtime.run(["sh", "-c", script]).exit_code == 0
    assert (tmp_path / "theirs/g").stat().st_uid == 1234
