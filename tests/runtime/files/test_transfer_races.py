"""Copying in and out while somebody who may write the directory moves its parts about."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_FDCWD, RENAME_EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def fake() -> Iterator[FakeRuntime]:
    with FakeRuntime() as runtime:
        yield runtime


LEAST_TRIES = 10
"""Uploads during which names are exchanged."""


def exchange(one: Path, other: Path) -> None:
    """renameat2(2): both names are there at every moment; a name that is not there is no error."""
    LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)


@contextlib.contextmanager
def repeated(act: Callable[[], None]) -> Iterator[None]:
    """Another process of the same user, as a thread."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "canary").write_bytes(b"good")
    return directory


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "link").symlink_to(outside)
    return directory


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_download_is_not_redirected_by_exchanged_names(fake: FakeRuntime, workspace: Path, outside: Path) -> None:
    fake.run(["sh", "-c", "mkdir -p tree/d && cd tree/d && for i in $(seq 800); do echo evil >$i; done"])
    target = workspace / "out"
    target.mkdir()
    (target / "l").symlink_to(outside)

    def swap() -> None:
        for name in {path.name for path in workspace.iterdir()} - {"link"}:
            exchange(workspace / name, workspace / "link")
        for name in ("d", "1"):
            exchange(target / name, target / "l")

    with repeated(swap):
        for _ in range(5):
            with contextlib.suppress(UsageError, OSError):
                fake.download("tree", target)
            with contextlib.suppress(UsageError, OSError):
                fake.download("tree/d/1", target / "d" / "canary")
    assert files_below(outside) == {"canary": b"good"}
    assert [*outside.iterdir()] == [outside / "canary"]


def test_nothing_is_staged_where_a_sandbox_could_reach_it(fake: FakeRuntime, workspace: Path) -> None:
    fake.run(["sh", "-c", "mkdir tree && cd tree && for i in $(seq 400); do echo x >$i; done"])
    seen: set[str] = set()
    with repeated(lambda: seen.update(path.name for path in workspace.iterdir())):
        fake.download("tree", workspace / "out")
    assert seen <= {"link", "out"}
    assert len(files_below(workspace / "out")) == 400


def test_a_download_through_a_planted_link_is_refused(fake: FakeRuntime, workspace: Path, outside: Path) -> None:
    fake.write_bytes("f", b"evil")
    for target in (workspace / "link" / "new" / "f", workspace / "link" / "canary", workspace / "link" / ".." / "f"):
        with pytest.raises(UsageError, match="is a symlink, which is not followed"):
            fake.download("f", target)
    assert files_below(outside) == {"canary": b"good"}
    assert not (outside.parent / "f").exists()


def test_a_download_to_a_final_link_replaces_the_link(fake: FakeRuntime, workspace: Path, outside: Path) -> None:
    fake.write_bytes("f", b"new")
    (workspace / "f").symlink_to(outside / "canary")
    fake.download("f", workspace / "f")
    assert (workspace / "f").read_bytes() == b"new"
    assert files_below(outside) == {"canary": b"good"}


def test_an_upload_follows_no_planted_link(fake: FakeRuntime, workspace: Path, outside: Path) -> None:
    (workspace / "report.txt").symlink_to(outside / "canary")
    (workspace / "gone").symlink_to(workspace / "nowhere")
    for source in ("report.txt", "link", "link/canary", "link/../outside/canary", "gone"):
        with pytest.raises(UsageError, match="is a symlink, which is not followed"):
            fake.upload(workspace / source, "taken")
    with pytest.raises(FileNotFoundError):
        fake.read_bytes("taken")


def test_an_upload_is_not_redirected_by_exchanged_names(fake: FakeRuntime, workspace: Path, outside: Path) -> None:
    (outside / "canary").write_bytes(b"secret")
    (workspace / "data" / "d").mkdir(parents=True)
    for number in range(100):
        (workspace / "data" / "d" / f"{number}").write_bytes(b"plain")
    (workspace / "data" / "l").symlink_to(outside)
    (workspace / "data" / "f").symlink_to(outside / "canary")

    def swap() -> None:
        exchange(workspace / "data", workspace / "link")
        exchange(workspace / "data" / "d", workspace / "data" / "l")
        exchange(workspace / "data" / "d" / "1", workspace / "data" / "f")

    arrived = 0
    with repeated(swap):
        for number in range(2000):
            with contextlib.suppress(UsageError, OSError):
                fake.upload(workspace / "data" / "d", f"up{number}")
                arrived += 1
            if number >= LEAST_TRIES and arrived:
                break
    assert arrived, "each upload was refused, so that none could have been redirected"
    assert fake.run(["sh", "-c", "find up* -type f -exec cat {} + | grep -c secret"]).stdout == b"0\n"


def test_a_directory_that_becomes_a_pipe_does_not_hold_the_upload(fake: FakeRuntime, workspace: Path) -> None:
    (workspace / "data" / "d" / "e").mkdir(parents=True)
    os.mkfifo(workspace / "pipe")
    with repeated(lambda: exchange(workspace / "data" / "d", workspace / "pipe")):
        for number in range(50):
            with contextlib.suppress(UsageError, OSError):
                fake.upload(workspace / "data", f"up{number}")
    assert fake.run(["find", ".", "-type", "p"]).stdout == b""


def test_another_file_system_gets_copies_and_counts_hard_links_whole(fake: FakeRuntime, tmp_path: Path) -> None:
    there = Path("/dev/shm") / f"ohs-{os.getpid()}"  # another file system on Linux
    there.mkdir(mode=0o700)
    try:
        if there.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        fake.run(["sh", "-c", "mkdir -p t/d; echo 1 >t/d/f; chmod 750 t/d; chmod 640 t/d/f; ln t/d/f t/g; ln -s g t/l"])
        (there / "out" / "d").mkdir(parents=True)
        (there / "out" / "d" / "f").symlink_to(tmp_path / "victim")
        assert fake.download("t", there / "out") == []
        assert files_below(there / "out") == {"d/f": b"1\n", "g": b"1\n", "l": b"1\n"}
        assert (there / "out" / "l").readlink() == Path("g")
        assert (there / "out" / "d" / "f").lstat().st_mode & 0o777 == 0o640
        assert not (tmp_path / "victim").exists()
        fake.download("t/g", there / "file")
        assert (there / "file").read_bytes() == b"1\n"
        assert {path.name for path in there.iterdir()} == {"out", "file"}
    finally:
        fake.run(["rm", "-rf", str(there)])
